//! Helpers that create listeners and connections, and that exchange messages.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use rdmsg::{
    cm::{CmEvent, CmId, ConnParam, EventChannel, PortSpace, PrivateData},
    status::CmEventType,
    verbs::{
        AccessFlags, CompletionQueue, Context, Inline, MemoryRegion, ProtectionDomain, QpCap,
        QpInitAttr, QueuePair, RecvWr, SendWr, Sge, Success, WorkCompletion,
    },
};
use toolbox::{Lab, Usage};

/// `EINVAL` of `errno.h`.
pub(crate) const EINVAL: i32 = 22;
/// The time limit for an event that must arrive.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Returns the next event, which must have type `event` and belong to the id with context
/// `context`.
pub(crate) fn expect(channel: &EventChannel, event: CmEventType, context: u64) -> CmEvent {
    let received = channel.wait_event(TIME_LIMIT).unwrap();
    let received = received.unwrap_or_else(|| panic!("no {event} arrived"));
    assert_eq!(
        (received.event(), received.context()),
        (event, context),
        "{received:?}"
    );
    received
}

/// Like `expect`, and also asserts that the event's status is 0.
pub(crate) fn expect_success(channel: &EventChannel, event: CmEventType, context: u64) -> CmEvent {
    let received = expect(channel, event, context);
    assert_eq!(received.status(), 0, "{received:?}");
    received
}

/// Asserts that no event is pending on the channel.
pub(crate) fn assert_none(channel: &EventChannel) {
    let event = channel.poll_event().unwrap();
    assert!(event.is_none(), "{event:?}");
}

/// Returns connection parameters with `private_data`.
pub(crate) fn param(private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: PrivateData::try_from(private_data).unwrap(),
        ..ConnParam::default()
    }
}

/// A listener with its event channel and address.
pub(crate) struct Server {
    pub(crate) listener: CmId,
    pub(crate) channel: EventChannel,
    pub(crate) addr: SocketAddr,
}

impl Server {
    pub(crate) const CONTEXT: u64 = 1000;

    /// Listens on a free port of `ip`.
    pub(crate) fn new(ip: IpAddr) -> Self {
        let channel = EventChannel::new().unwrap();
        let mut listener = CmId::new(&channel, PortSpace::TCP, Self::CONTEXT).unwrap();
        listener.bind_addr((ip, 0).into()).unwrap();
        listener.listen(16).unwrap();
        let addr = listener.local_addr().unwrap();
        assert_eq!(addr.ip(), ip);
        assert_ne!(addr.port(), 0);
        Self {
            listener,
            channel,
            addr,
        }
    }

    /// Returns the next event, which must be a connection request.
    pub(crate) fn request(&self) -> CmEvent {
        let event = expect_success(&self.channel, CmEventType::CONNECT_REQUEST, Self::CONTEXT);
        assert_eq!(event.listen_context(), Some(Self::CONTEXT));
        event
    }
}

/// Returns a new id whose address and route are resolved.
pub(crate) fn resolved(channel: &EventChannel, addr: SocketAddr, context: u64) -> CmId {
    let mut id = CmId::new(channel, PortSpace::TCP, context).unwrap();
    id.resolve_addr(None, addr, TIME_LIMIT).unwrap();
    expect_success(channel, CmEventType::ADDR_RESOLVED, context);
    id.resolve_route(TIME_LIMIT).unwrap();
    expect_success(channel, CmEventType::ROUTE_RESOLVED, context);
    id
}

/// Creates an id and its queue pair, and starts to connect. Returns the id and the queue pair.
pub(crate) fn connecting(
    channel: &EventChannel,
    addr: SocketAddr,
    context: u64,
    private_data: &[u8],
) -> (CmId, Queues) {
    let mut id = resolved(channel, addr, context);
    let queues = Queues::of(&mut id);
    id.connect(&param(private_data)).unwrap();
    (id, queues)
}

/// A queue pair, and all objects that it uses.
pub(crate) struct Queues {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) pd: ProtectionDomain,
}

pub(crate) fn attr(cq: &CompletionQueue) -> QpInitAttr<'_> {
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_inline_data: 64,
        ..QpCap::default()
    };
    QpInitAttr {
        sq_sig_all: true,
        ..QpInitAttr::rc(cq, cap)
    }
}

impl Queues {
    /// Calls `make` to create the queue pair, and creates all objects that the queue pair uses.
    pub(crate) fn new(
        context: &Context,
        make: impl FnOnce(&ProtectionDomain, &QpInitAttr<'_>) -> QueuePair,
    ) -> Self {
        let pd = ProtectionDomain::new(context).unwrap();
        let cq = CompletionQueue::new(context, 16, None).unwrap();
        Self {
            qp: make(&pd, &attr(&cq)),
            cq,
            region: MemoryRegion::new(&pd, 4096, AccessFlags::LOCAL_WRITE).unwrap(),
            pd,
        }
    }

    /// Creates a queue pair that belongs to the id, and all objects that the queue pair uses.
    pub(crate) fn of(id: &mut CmId) -> Self {
        let context = id.verbs().unwrap();
        Self::new(&context, |pd, attr| id.create_qp(pd, attr).unwrap())
    }

    /// Returns the next completion, which must report success.
    pub(crate) fn success(&self) -> Success {
        let deadline = Instant::now() + TIME_LIMIT;
        let mut one = [WorkCompletion::default()];
        while self.cq.poll(&mut one).unwrap() == 0 {
            assert!(Instant::now() < deadline, "no completion arrived");
            thread::yield_now();
        }
        one[0].result().unwrap()
    }

    /// Sends `text` to `other`, and checks that `other` has received it.
    pub(crate) fn send_text(&self, other: &Self, text: &str) {
        let recv = RecvWr::new(7, Sge::new(&other.region, ..));
        other.qp.post_recv(&[recv]).unwrap();
        let send = SendWr::send(8, Inline(text.as_bytes()));
        self.qp.post_send(&[send]).unwrap();
        assert_eq!(self.success().wr_id, 8);
        let completion = other.success();
        assert_eq!(
            (completion.wr_id, completion.byte_len as usize),
            (7, text.len())
        );
        let mut bytes = vec![0; text.len()];
        other.region.copy_out(0, &mut bytes);
        assert_eq!(bytes, text.as_bytes());
    }

    /// Sends one message in each direction, and checks that both have arrived.
    pub(crate) fn exchange(&self, other: &Self) {
        self.send_text(other, "ping");
        other.send_text(self, "pong!");
    }
}

/// One side of a connection.
pub(crate) struct Side {
    pub(crate) id: CmId,
    pub(crate) queues: Queues,
    pub(crate) channel: EventChannel,
}

/// The context of the connecting side's id.
pub(crate) const CLIENT: u64 = 1;
/// The context of the accepting side's id.
pub(crate) const SERVER: u64 = 2;

/// Connects to a new listener. Returns the connecting side, the accepting side and the listener.
pub(crate) fn connected(ip: IpAddr) -> (Side, Side, Server) {
    let server = Server::new(ip);
    let channel = EventChannel::new().unwrap();
    let (id, queues) = connecting(&channel, server.addr, CLIENT, b"");
    let client = Side {
        id,
        queues,
        channel,
    };
    let mut id = server.request().take_request().unwrap();
    id.set_context(SERVER);
    let queues = Queues::of(&mut id);
    id.accept(&ConnParam::default()).unwrap();
    expect_success(&client.channel, CmEventType::ESTABLISHED, CLIENT);
    expect_success(&server.channel, CmEventType::ESTABLISHED, SERVER);
    let accepted = Side {
        id,
        queues,
        channel: server.channel.clone(),
    };
    (client, accepted, server)
}

/// Establishes and ends a connection. Then returns the usage of this process.
///
/// librdmacm allocates a protection domain for each device that ids use. When no id uses the device
/// any longer, librdmacm frees this domain, unless a device list exists. This function therefore
/// establishes and ends a connection before each count, so that the domain is in the same state at
/// every count.
pub(crate) fn count_resources(lab: &Lab) -> Usage {
    drop(connected(lab.addr));
    lab.usage()
}

/// Establishes and ends a connection. Then asserts that the usage is not above `before`.
#[track_caller]
pub(crate) fn assert_no_leak(lab: &Lab, before: &Usage) {
    drop(connected(lab.addr));
    lab.assert_no_leak(before);
}
