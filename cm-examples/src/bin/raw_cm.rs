//! The same job as `cm_server` and `cm_client` by hand, with `rdmsg::cm` and `rdmsg::verbs` alone.
//! It shows the parts of a connection.
//!
//! Run `raw_cm --server ADDR:PORT` on one host and `raw_cm ADDR:PORT` on another. In order of
//! appearance:
//!
//! 1. A *communication id* is a socket. A server binds one and listens. A client's finds the device
//!    that leads to an address (ADDR_RESOLVED) and the way there (ROUTE_RESOLVED). The result of a
//!    call is an event on the id's *event channel*.
//! 2. Each side makes the objects for sending and receiving: a *protection domain*; registered
//!    *memory* in it, which the device reads and writes by itself; a *completion queue*, in which
//!    the device reports completed requests; and a *queue pair*, one queue for sends and one for
//!    receives.
//! 3. The client connects, the server gets a CONNECT_REQUEST and accepts; both get ESTABLISHED.
//! 4. A message goes from a posted send into a posted receive: the receiver names the memory
//!    beforehand. A message that finds no receive fails, here with the connection, so **receives
//!    are posted before connect and accept**, and each again before anything is answered.
//! 5. The client disconnects, and both get DISCONNECTED.
//!
//! Two receives are enough since the client waits for each echo. In general a sender counts its
//! peer's. Such credits are left out here, as are acknowledged endings and signs of life.

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
/// The longest message: each receive has room for one.
const LARGEST: usize = 64 * 1024;
/// The number of posted receives: one for the next message while the last one is read.
const RECEIVES: usize = 2;
/// The index of the send's memory, after those of the receives. It is also the id of the request.
const SEND: usize = RECEIVES;

/// Messages and their echo over RDMA, with the connection manager and verbs alone.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Wait at the address for one client and echo its messages
    #[arg(long)]
    server: bool,
    /// The server's address and port
    address: SocketAddr,
    /// Message sizes in bytes, one after the other (client)
    #[arg(short, long, value_delimiter = ',', default_value = "64,4096,16384")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=LARGEST as i64))]
    size: Vec<u32>,
    /// The number of messages of each size (client)
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

/// The server: accepts one client and echoes its messages until it disconnects.
fn serve(options: &Options) -> Result<()> {
    let events = EventChannel::new()?;
    let mut listener = CmId::new(&events, PortSpace::TCP, 0)?;
    listener.bind_addr(options.address)?;
    listener.listen(1)?;
    let address = listener.local_addr().unwrap_or(options.address);
    println!("listening on {address}");

    let mut asked = step(&events, CmEventType::CONNECT_REQUEST)?;
    let id = asked.take_request().ok_or("a request without an id")?;
    drop(listener); // Later clients are refused.
    let mut connection = Connection::prepare(id, events)?;
    connection.id.accept(&connection_wanted())?;
    step(&connection.events, CmEventType::ESTABLISHED)?;

    let mut number = 0;
    while let Some(message) = connection.receive()? {
        check(number, &message)?;
        connection.send(&message)?;
        number += 1;
    }
    connection.id.disconnect()?; // The client has disconnected; this confirms it.
    println!("echoed {number} messages, every byte as expected");
    Ok(())
}

/// The client: connects, sends, checks the echoes, and disconnects.
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
                return Err(format!("sent {size} bytes, got {} back", answer.len()).into());
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

/// The parameters of both sides: a message that finds no receive is an error.
fn connection_wanted() -> ConnParam {
    ConnParam {
        rnr_retry_count: 0,
        ..ConnParam::default()
    }
}

/// Waits for the connection manager's next event, which must be this one, and traces it.
fn step(events: &EventChannel, wanted: CmEventType) -> Result<CmEvent> {
    let Some(event) = events.wait_event(TIME_LIMIT)? else {
        return Err(format!("no {wanted} within {TIME_LIMIT:?}").into());
    };
    log::info!("{}", event.event());
    match event.event() {
        came if came == wanted && event.status() == 0 => Ok(event),
        CmEventType::REJECTED => Err(rejection_cause(&event).into()),
        came => Err(format!("{came} instead of {wanted}: {}", event.cm_status()).into()),
    }
}

/// A connection with its objects, which are dropped in the right order.
struct Connection {
    id: CmId,
    events: EventChannel,
    qp: QueuePair,
    cq: CompletionQueue,
    /// Readable when the completion queue has a completion.
    done: CompletionChannel,
    /// A slot for each receive, and one for the send.
    memory: MemoryRegion,
    /// Whether the device may still read the send's slot.
    sending: bool,
    /// A received message: its slot and its length. It is answered before the next.
    received: Option<(usize, usize)>,
}

impl Connection {
    /// Creates all objects that the id needs before it connects or accepts.
    fn prepare(mut id: CmId, events: EventChannel) -> Result<Self> {
        let device = id.verbs().ok_or("the device is gone")?;
        let pd = ProtectionDomain::new(&device)?;
        let memory = MemoryRegion::new(&pd, (RECEIVES + 1) * LARGEST, AccessFlags::LOCAL_WRITE)?;
        let done = CompletionChannel::new(&device)?;
        let cq = CompletionQueue::new(&device, RECEIVES as u32 + 1, Some((&done, 0)))?;
        // By default a queue holds one request.
        let cap = QpCap {
            max_recv_wr: RECEIVES as u32,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        // The id moves its queue pair from state to state. In this state it accepts receives.
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
        for place in 0..RECEIVES {
            connection.post_receive(place)?;
        }
        Ok(connection)
    }

    fn post_receive(&self, place: usize) -> Result<()> {
        let room = Sge::new(&self.memory, place * LARGEST..(place + 1) * LARGEST);
        Ok(self.qp.post_recv(&[RecvWr::new(place as u64, room)])?)
    }

    /// Sends a message. The device may read its memory until the send completes.
    fn send(&mut self, message: &[u8]) -> Result<()> {
        while self.sending {
            if !self.progress()? {
                return Err("the peer disconnected before it had everything".into());
            }
        }
        let start = SEND * LARGEST;
        self.memory.copy_in(start, message);
        let bytes = Sge::new(&self.memory, start..start + message.len());
        self.qp.post_send(&[SendWr::send(SEND as u64, bytes)])?;
        self.sending = true;
        Ok(())
    }

    /// Waits for a message and posts its receive again. `None`: the peer has disconnected.
    fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some((place, len)) = self.received.take() {
                let mut message = vec![0; len];
                self.memory.copy_out(place * LARGEST, &mut message);
                self.post_receive(place)?;
                return Ok(Some(message));
            }
            if !self.progress()? {
                return Ok(None);
            }
        }
    }

    /// Sleeps until an event, unless there is one already. To miss none: first request an event,
    /// then poll, then sleep. Returns whether the connection continues.
    fn progress(&mut self) -> Result<bool> {
        self.cq.req_notify(false)?;
        if self.take_completions()? {
            return Ok(true);
        }
        let mut files = [self.done.as_fd(), self.events.as_fd()]
            .map(|file| PollFd::new(file, PollFlags::POLLIN));
        match poll(&mut files, PollTimeout::try_from(TIME_LIMIT)?) {
            Ok(0) => return Err(format!("no message within {TIME_LIMIT:?}").into()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while self.done.get_event()?.is_some() {}
        let Some(event) = self.events.poll_event()? else {
            return Ok(true);
        };
        log::info!("{}", event.event());
        match event.event() {
            CmEventType::DISCONNECTED => Ok(false),
            other => Err(format!("{other}: {}", event.cm_status()).into()),
        }
    }

    /// Takes completions of the device. Returns whether there were any.
    fn take_completions(&mut self) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); RECEIVES + 1];
        let count = self.cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            let success = match completion.result() {
                Err(error) if error.status == WcStatus::WR_FLUSH_ERR => continue, // An event says why.
                result => result?,
            };
            match success.wr_id as usize {
                SEND => self.sending = false,
                place => self.received = Some((place, success.byte_len as usize)),
            }
        }
        Ok(count > 0)
    }
}
