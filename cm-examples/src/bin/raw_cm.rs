//! `cm_server` and `cm_client` in one program, which uses only `rdmsg::cm` and `rdmsg::verbs`. The
//! source shows all objects of an RDMA connection.
//!
//! Run `raw_cm --server ADDR:PORT` on one host and `raw_cm ADDR:PORT` on another. The steps are:
//!
//! 1. A *communication id* is like a socket. A server binds an id and listens. A client's id finds
//!    the device that leads to the server (ADDR_RESOLVED), and then the route (ROUTE_RESOLVED). The
//!    results arrive as events on the id's *event channel*.
//! 2. Each side creates the objects for sending and receiving: a *protection domain*; registered
//!    *memory* in this domain, which the device accesses itself; a *completion queue*, in which the
//!    device reports completed requests; and a *queue pair*: one queue for sends, one for receives.
//! 3. The client connects, the server gets a CONNECT_REQUEST and accepts; both get ESTABLISHED.
//! 4. A send transfers a message into the memory of a receive that the peer has posted. If the peer
//!    has posted none, the send and (in this program) the connection fail. So **each side posts
//!    receives before it connects or accepts**, and reposts a used receive before it sends a reply.
//! 5. The client disconnects, and both sides get DISCONNECTED.
//!
//! Two receives are enough, because the client waits for each echo. In general, a sender counts the
//! peer's receives (credits). This program lacks credits, acknowledged closes and keepalives.

use std::{
    error::Error,
    net::SocketAddr,
    os::fd::AsFd,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use cm_examples::{Latencies, check, cm::rejection_cause, fill, init_trace};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rdmsg::{
    cm::{CmEvent, CmId, ConnParam, EventChannel, PortSpace},
    status::{CmEventType, WcStatus},
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap,
        QpInitAttr, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
    },
};

/// The time limit of each wait.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The maximum length of a message in bytes. Each receive has room for one message.
const LARGEST: usize = 64 * 1024;
/// The number of receives. While the program reads a message, the other receive stays posted.
const RECEIVES: usize = 2;
/// The index of the send slot, after the receive slots. It is also each send's work request id.
const SEND: usize = RECEIVES;

/// Sends messages and receives their echoes over RDMA, with only the connection manager and verbs
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Wait for one client at the address, and echo its messages
    #[arg(long)]
    server: bool,
    /// The address and port of the server
    address: SocketAddr,
    /// The message sizes in bytes; the client sends --count messages of each size, in this order
    #[arg(short, long, value_delimiter = ',', default_value = "64,4096,16384")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=LARGEST as i64))]
    size: Vec<u32>,
    /// The number of messages of each size that the client sends
    #[arg(short = 'c', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
}

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let options = Options::parse();
    init_trace(if options.server { "server" } else { "client" });
    let run = if options.server { serve } else { request };
    if let Err(error) = run(&options) {
        eprintln!("raw_cm: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs the server: accepts one client, and echoes its messages until the client disconnects.
fn serve(options: &Options) -> Result<()> {
    let events = EventChannel::new()?;
    let mut listener = CmId::new(&events, PortSpace::TCP, 0)?;
    listener.bind_addr(options.address)?;
    listener.listen(1)?;
    let address = listener.local_addr().unwrap_or(options.address);
    println!("listening on {address}");

    let mut asked = step(&events, CmEventType::CONNECT_REQUEST)?;
    let id = asked.take_request().ok_or("the request has no id")?;
    drop(listener); // Further clients are rejected.
    let mut connection = Connection::prepare(id, events)?;
    connection.id.accept(&connection_wanted())?;
    step(&connection.events, CmEventType::ESTABLISHED)?;

    let mut number = 0;
    while let Some(message) = connection.receive()? {
        check(number, &message)?;
        connection.send(&message)?;
        number += 1;
    }
    connection.id.disconnect()?; // Confirms the client's disconnect.
    println!("echoed {number} messages, every byte as expected");
    Ok(())
}

/// Runs the client: connects, sends messages, checks the echoes, and disconnects.
fn request(options: &Options) -> Result<()> {
    let events = EventChannel::new()?;
    let mut id = CmId::new(&events, PortSpace::TCP, 0)?;
    id.resolve_addr(None, options.address, TIME_LIMIT)?;
    step(&events, CmEventType::ADDR_RESOLVED)?;
    id.resolve_route(TIME_LIMIT)?;
    step(&events, CmEventType::ROUTE_RESOLVED)?;
    let mut connection = Connection::prepare(id, events)?;
    connection.id.connect(&connection_wanted())?;
    step(&connection.events, CmEventType::ESTABLISHED)?;

    let mut number = 0;
    for &size in &options.size {
        let mut latencies = Latencies::new();
        let mut message = vec![0; size as usize];
        for _ in 0..options.count {
            fill(number, &mut message);
            let start = Instant::now();
            connection.send(&message)?;
            let answer = connection.receive()?.ok_or("the server disconnected")?;
            latencies.record(start.elapsed());
            check(number, &answer)?;
            if answer.len() != message.len() {
                return Err(format!("sent {size} bytes, received {}", answer.len()).into());
            }
            number += 1;
        }
        let count = options.count;
        println!(
            "{size} bytes: {count} messages each way, every byte as expected; round trip {latencies}"
        );
    }
    connection.id.disconnect()?;
    step(&connection.events, CmEventType::DISCONNECTED)?;
    Ok(())
}

/// Returns parameters without RNR retries: a send fails if the peer has not posted a receive.
fn connection_wanted() -> ConnParam {
    ConnParam {
        rnr_retry_count: 0,
        ..ConnParam::default()
    }
}

/// Waits for the next event, and logs the event. Fails if the event's type is not `expected`.
fn step(events: &EventChannel, expected: CmEventType) -> Result<CmEvent> {
    let Some(event) = events.wait_event(TIME_LIMIT)? else {
        return Err(format!("{expected} did not arrive within {TIME_LIMIT:?}").into());
    };
    log::info!("received the event {}", event.event());
    match event.event() {
        got if got == expected && event.status() == 0 => Ok(event),
        CmEventType::REJECTED => Err(rejection_cause(&event).into()),
        got => Err(format!("{got} arrived instead of {expected}: {}", event.cm_status()).into()),
    }
}

/// A connection and its objects. Each object keeps alive the objects on which it depends.
struct Connection {
    id: CmId,
    events: EventChannel,
    qp: QueuePair,
    cq: CompletionQueue,
    /// The channel whose descriptor becomes readable when a completion arrives after `req_notify`.
    done: CompletionChannel,
    /// One slot for each receive, and one for the send.
    memory: MemoryRegion,
    /// Whether a send is in flight. During a send, the device may read the slot for the send.
    sending: bool,
    /// The slot and the length of a received message. No second message can arrive, because the
    /// peer sends its next message only after it has received this side's reply.
    received: Option<(usize, usize)>,
}

impl Connection {
    /// Creates the objects that the id needs before it connects or accepts, and posts receives.
    fn prepare(mut id: CmId, events: EventChannel) -> Result<Self> {
        let device = id.verbs().ok_or("the device was removed")?;
        let pd = ProtectionDomain::new(&device)?;
        let memory = MemoryRegion::new(&pd, (RECEIVES + 1) * LARGEST, AccessFlags::LOCAL_WRITE)?;
        let done = CompletionChannel::new(&device)?;
        let cq = CompletionQueue::new(&device, RECEIVES as u32 + 1, Some((&done, 0)))?;
        // The default capacity of each queue is one request.
        let cap = QpCap {
            max_recv_wr: RECEIVES as u32,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        // `create_qp` moves the queue pair to the state INIT, in which it accepts receives.
        let qp = id.create_qp(&pd, &attr)?;
        let connection = Self {
            id,
            events,
            qp,
            cq,
            done,
            memory,
            sending: false,
            received: None,
        };
        for slot in 0..RECEIVES {
            connection.post_receive(slot)?;
        }
        Ok(connection)
    }

    fn post_receive(&self, slot: usize) -> Result<()> {
        let room = Sge::new(&self.memory, slot * LARGEST..(slot + 1) * LARGEST);
        Ok(self.qp.post_recv(&[RecvWr::new(slot as u64, room)])?)
    }

    /// Sends a message after the previous send has completed, because all sends share one slot.
    fn send(&mut self, message: &[u8]) -> Result<()> {
        while self.sending {
            if !self.progress()? {
                return Err("the peer disconnected before it received all messages".into());
            }
        }
        let start = SEND * LARGEST;
        self.memory.copy_in(start, message);
        let bytes = Sge::new(&self.memory, start..start + message.len());
        self.qp.post_send(&[SendWr::send(SEND as u64, bytes)])?;
        self.sending = true;
        Ok(())
    }

    /// Waits for a message, and reposts the used receive. Returns `None` if the peer disconnected.
    fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some((slot, len)) = self.received.take() {
                let mut message = vec![0; len];
                self.memory.copy_out(slot * LARGEST, &mut message);
                self.post_receive(slot)?;
                return Ok(Some(message));
            }
            if !self.progress()? {
                return Ok(None);
            }
        }
    }

    /// Waits for a completion or an event. Returns `false` if the peer disconnected. Polls between
    /// `req_notify` and the wait, because completions before `req_notify` cause no event.
    fn progress(&mut self) -> Result<bool> {
        self.cq.req_notify(false)?;
        if self.take_completions()? {
            return Ok(true);
        }
        let mut files = [self.done.as_fd(), self.events.as_fd()]
            .map(|file| PollFd::new(file, PollFlags::POLLIN));
        match poll(&mut files, PollTimeout::try_from(TIME_LIMIT)?) {
            Ok(0) => return Err(format!("no message arrived within {TIME_LIMIT:?}").into()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while self.done.get_event()?.is_some() {}
        let Some(event) = self.events.poll_event()? else {
            return Ok(true);
        };
        log::info!("received the event {}", event.event());
        match event.event() {
            CmEventType::DISCONNECTED => Ok(false),
            other => Err(format!("{other}: {}", event.cm_status()).into()),
        }
    }

    /// Processes all completions in the queue. Returns `true` if the queue contained completions.
    fn take_completions(&mut self) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); RECEIVES + 1];
        let count = self.cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            let success = match completion.result() {
                // The device has flushed the request, because the connection has ended.
                Err(error) if error.status == WcStatus::WR_FLUSH_ERR => continue,
                result => result?,
            };
            match success.wr_id as usize {
                SEND => self.sending = false,
                slot => self.received = Some((slot, success.byte_len as usize)),
            }
        }
        Ok(count > 0)
    }
}
