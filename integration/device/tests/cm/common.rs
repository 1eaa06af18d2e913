//! A listener, those who connect to it, and what they say.

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
use toolbox::{Lab, open_fds};

/// `EINVAL` of `errno.h`.
pub(crate) const EINVAL: i32 = 22;
/// How long to wait for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The next event, which must be of this kind, and of the id with this number.
pub(crate) fn expect(channel: &EventChannel, event: CmEventType, context: u64) -> CmEvent {
    let came = channel.wait_event(PATIENCE).unwrap();
    let came = came.unwrap_or_else(|| panic!("no {event} came"));
    assert_eq!((came.event(), came.context()), (event, context), "{came:?}");
    came
}

/// The next event, which must be of this kind and say that all is well.
pub(crate) fn good(channel: &EventChannel, event: CmEventType, context: u64) -> CmEvent {
    let came = expect(channel, event, context);
    assert_eq!(came.status(), 0, "{came:?}");
    came
}

/// That no event is there.
pub(crate) fn assert_none(channel: &EventChannel) {
    let event = channel.poll_event().unwrap();
    assert!(event.is_none(), "{event:?}");
}

/// What to connect or accept with.
pub(crate) fn param(private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: PrivateData::try_from(private_data).unwrap(),
        ..ConnParam::default()
    }
}

/// A listener with a channel of its own.
pub(crate) struct Server {
    pub(crate) listener: CmId,
    pub(crate) channel: EventChannel,
    pub(crate) addr: SocketAddr,
}

impl Server {
    pub(crate) const CONTEXT: u64 = 1000;

    /// Listens on a free port of this address.
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

    /// The next event, a request.
    pub(crate) fn request(&self) -> CmEvent {
        let event = good(&self.channel, CmEventType::CONNECT_REQUEST, Self::CONTEXT);
        assert_eq!(event.listen_context(), Some(Self::CONTEXT));
        event
    }
}

/// An id that has a route to the address.
pub(crate) fn resolved(channel: &EventChannel, addr: SocketAddr, context: u64) -> CmId {
    let mut id = CmId::new(channel, PortSpace::TCP, context).unwrap();
    id.resolve_addr(None, addr, PATIENCE).unwrap();
    good(channel, CmEventType::ADDR_RESOLVED, context);
    id.resolve_route(PATIENCE).unwrap();
    good(channel, CmEventType::ROUTE_RESOLVED, context);
    id
}

/// An id that connects with a queue pair of its own.
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

/// A queue pair and all that it needs.
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
    /// Has `make` make a queue pair.
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

    /// With the id's queue pair.
    pub(crate) fn of(id: &mut CmId) -> Self {
        let context = id.verbs().unwrap();
        Self::new(&context, |pd, attr| id.create_qp(pd, attr).unwrap())
    }

    /// The next completion, of a request that succeeded.
    pub(crate) fn success(&self) -> Success {
        let deadline = Instant::now() + PATIENCE;
        let mut one = [WorkCompletion::default()];
        while self.cq.poll(&mut one).unwrap() == 0 {
            assert!(Instant::now() < deadline, "no completion came");
            thread::yield_now();
        }
        one[0].result().unwrap()
    }

    /// Says something to the other, who hears it.
    pub(crate) fn say(&self, other: &Self, text: &str) {
        let recv = RecvWr::new(7, Sge::new(&other.region, ..));
        other.qp.post_recv(&[recv]).unwrap();
        let send = SendWr::send(8, Inline(text.as_bytes()));
        self.qp.post_send(&[send]).unwrap();
        assert_eq!(self.success().wr_id, 8);
        let heard = other.success();
        assert_eq!((heard.wr_id, heard.byte_len as usize), (7, text.len()));
        let mut bytes = vec![0; text.len()];
        other.region.copy_out(0, &mut bytes);
        assert_eq!(bytes, text.as_bytes());
    }

    /// Both say something.
    pub(crate) fn talk(&self, other: &Self) {
        self.say(other, "ping");
        other.say(self, "pong!");
    }
}

/// One side of a connection.
pub(crate) struct Side {
    pub(crate) id: CmId,
    pub(crate) queues: Queues,
    pub(crate) channel: EventChannel,
}

/// The number of the side that connects.
pub(crate) const CLIENT: u64 = 1;
/// The number of the side that accepts.
pub(crate) const SERVER: u64 = 2;

/// A connection: who connected, who accepted, and the listener.
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
    good(&client.channel, CmEventType::ESTABLISHED, CLIENT);
    good(&server.channel, CmEventType::ESTABLISHED, SERVER);
    let accepted = Side {
        id,
        queues,
        channel: server.channel.clone(),
    };
    (client, accepted, server)
}

/// What exists when one plain connection has come and gone, and how many files are open.
///
/// librdmacm has a protection domain of its own on a device that ids use, and when it lets go of
/// that depends on whether the last id or the last list of devices goes first. So this is counted
/// after the same last act.
pub(crate) fn what_exists(lab: &Lab) -> (String, usize) {
    drop(connected(lab.addr));
    (lab.resources(), open_fds())
}
