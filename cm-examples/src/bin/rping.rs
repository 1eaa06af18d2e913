//! RDMA ping: the client sends the address of its memory. The server reads and writes this memory
//! without involving the client's processor. Interoperates with the C program of the same name.
//! Run `rping -s` on one host and `rping -c -a ADDR -C 10 -v` on another.
//!
//! For each ping:
//!
//! 1. The client fills its first buffer, and sends the buffer's *address*, *remote key* and size.
//! 2. The server READs the buffer, and confirms the READ with a message.
//! 3. The client sends the address, the remote key and the size of its second buffer.
//! 4. The server WRITEs the text to that buffer, and confirms. The client compares both buffers.
//!
//! The client can send any size, so the server first checks that its own buffer is large enough.

use std::{process::ExitCode, thread, time::Duration};

use clap::Parser;
use cm_examples::{
    Result,
    cm::{lookup, resolved},
    connection::Connection,
    end, init_debug,
    ping::{Claim, text},
};
use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    verbs::{AccessFlags, MemoryRegion, QpCap, RecvWr, SendWr, Sge},
};

/// RDMA ping: READ and WRITE between a client and a server
#[derive(Parser, Clone)]
#[command(group(clap::ArgGroup::new("role").required(true).args(["server", "client"])))]
struct Options {
    /// Run the server
    #[arg(short)]
    server: bool,
    /// Run the client
    #[arg(short, requires = "address")]
    client: bool,
    /// Server: the address to listen on [default: any]; client: the address of the server
    #[arg(short, value_name = "ADDRESS")]
    address: Option<String>,
    /// Client: the address to connect from
    #[arg(short = 'I', value_name = "ADDRESS")]
    source: Option<String>,
    /// The port of the server
    #[arg(short, default_value_t = 7174)]
    port: u16,
    /// Client: the number of pings; 0 means no limit
    #[arg(short = 'C', default_value_t = 0)]
    count: u32,
    /// The size of a ping in bytes
    #[arg(short = 'S', default_value_t = 64, value_parser = clap::value_parser!(u32).range(23..=65535))]
    size: u32,
    /// Print the text of each ping
    #[arg(short)]
    verbose: bool,
    /// Compare the returned bytes with the original bytes
    #[arg(short = 'V')]
    verify: bool,
    /// Show the events of the connection manager
    #[arg(short)]
    debug: bool,
    /// Server: serve any number of clients, also concurrently
    #[arg(short = 'P')]
    persistent: bool,
    /// Create and modify the queue pair with verbs instead of through the rdma_cm id
    #[arg(short = 'q')]
    own_qp: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(options.debug);
    end(
        "rping",
        if options.server {
            serve(&options)
        } else {
            ping(&options)
        },
    )
}

fn serve(options: &Options) -> Result<()> {
    let address = lookup(
        options.address.as_deref().unwrap_or("0.0.0.0"),
        options.port,
    )?;
    let requests = EventChannel::new()?;
    let mut listener = CmId::new(&requests, PortSpace::TCP, 0)?;
    listener.bind_addr(address)?;
    // A backlog of 0 selects the kernel's maximum. If the backlog is full, clients retry later.
    listener.listen(0)?;
    loop {
        let Some(mut event) = requests.wait_event(Duration::MAX)? else {
            continue;
        };
        let Some(id) = event.take_request() else {
            return Err(format!("{} on the listener", event.event()).into());
        };
        let own = options.clone();
        let answer = move || answer(id, &own);
        if !options.persistent {
            return answer();
        }
        // Each client has its own thread. An error of one client does not affect the others.
        let serving = thread::Builder::new().spawn(move || end("rping", answer()));
        if let Err(error) = serving {
            eprintln!("rping: cannot start a thread for a client: {error}");
        }
    }
}

fn answer(mut id: CmId, options: &Options) -> Result<()> {
    // The connection has its own event channel, so its thread gets no events of other connections.
    let events = EventChannel::new()?;
    id.migrate(&events)?;
    Side::new(id, events, options)?.answer(options.verbose)
}

fn ping(options: &Options) -> Result<()> {
    let server = lookup(options.address.as_deref().unwrap_or_default(), options.port)?;
    let source = options.source.as_deref().map(|host| lookup(host, 0));
    let events = EventChannel::new()?;
    let id = resolved(&events, PortSpace::TCP, source.transpose()?, server)?;
    Side::new(id, events, options)?.ask(options)
}

/// The ids of work requests.
const RECEIVE: u64 = 0;
const REQUEST: u64 = 1;

/// One side of a connection, and its memory.
struct Side {
    connection: Connection,
    incoming: MemoryRegion,
    outgoing: MemoryRegion,
    /// The client's first buffer, which the server reads.
    start: MemoryRegion,
    /// The client's second buffer, which the server writes. On the server: its own buffer.
    data: MemoryRegion,
    /// Whether a send, READ or WRITE is outstanding.
    busy: bool,
    received: Option<Claim>,
}

impl Side {
    /// Creates the objects that the id needs before it connects or accepts, and posts a receive.
    fn new(id: CmId, events: EventChannel, options: &Options) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: 2,
            ..QpCap::default()
        };
        let connection = Connection::new(id, events, cap, options.own_qp)?;
        let open = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let memory = |len, access| MemoryRegion::new(&connection.pd, len, access);
        let side = Self {
            incoming: memory(Claim::LEN, AccessFlags::LOCAL_WRITE)?,
            outgoing: memory(Claim::LEN, AccessFlags::LOCAL_WRITE)?,
            start: memory(options.size as usize, open)?,
            data: memory(options.size as usize, open)?,
            connection,
            busy: false,
            received: None,
        };
        side.post_receive()?;
        Ok(side)
    }

    /// Runs the server: answers pings until the client disconnects.
    fn answer(mut self, verbose: bool) -> Result<()> {
        self.connection.accept(one_at_a_time())?;
        while let Some(source) = self.receive()? {
            let data = self.room_for(source)?;
            self.post(SendWr::read(
                REQUEST,
                Sge::new(&data, ..source.size()),
                source.into(),
            ))?;
            if !self.until(|side| !side.busy)? {
                break;
            }
            let mut text = vec![0; source.size()];
            data.copy_out(0, &mut text);
            let end = text.iter().position(|byte| *byte == 0);
            text.truncate(end.unwrap_or(text.len()));
            if verbose {
                println!("server ping data: {}", String::from_utf8_lossy(&text));
            }
            self.send(Claim::default())?;
            let Some(sink) = self.receive()? else { break };
            // Truncate the text, including its zero byte, to the size of the client's buffer.
            let len = sink.size().min(text.len() + 1);
            self.post(SendWr::write(REQUEST, Sge::new(&data, ..len), sink.into()))?;
            self.send(Claim::default())?;
        }
        println!("server DISCONNECT EVENT...");
        self.connection.disconnect()
    }

    /// Runs the client: sends the pings, and disconnects.
    fn ask(mut self, options: &Options) -> Result<()> {
        self.connection.connect(one_at_a_time())?;
        let (start, data) = (Claim::of(&self.start), Claim::of(&self.data));
        let is_due = |number: &u32| options.count == 0 || *number < options.count;
        for number in (0..).take_while(is_due) {
            let text = text(number, options.size as usize);
            self.start.copy_in(0, &text);
            for claim in [start, data] {
                self.send(claim)?;
                self.receive()?.ok_or("the server disconnected")?;
            }
            let mut back = vec![0; text.len()];
            self.data.copy_out(0, &mut back);
            if options.verify && back != text {
                return Err(format!("data mismatch: the server changed ping {number}").into());
            }
            if options.verbose {
                println!(
                    "ping data: {}",
                    String::from_utf8_lossy(&back[..back.len() - 1])
                );
            }
        }
        self.connection.disconnect()?;
        println!("client DISCONNECT EVENT...");
        Ok(())
    }

    fn post_receive(&self) -> Result<()> {
        let receive = RecvWr::new(RECEIVE, Sge::new(&self.incoming, ..));
        Ok(self.connection.qp.post_recv(&[receive])?)
    }

    fn post(&mut self, request: SendWr<'_>) -> Result<()> {
        // Wait for the previous request, because the peer may reply before that request completes.
        self.until(|side| !side.busy)?;
        self.busy = true;
        Ok(self.connection.qp.post_send(&[request])?)
    }

    fn send(&mut self, claim: Claim) -> Result<()> {
        self.until(|side| !side.busy)?;
        self.outgoing.copy_in(0, &claim.to_bytes());
        let outgoing = self.outgoing.clone();
        self.post(SendWr::send(REQUEST, Sge::new(&outgoing, ..)))
    }

    /// Returns the next message from the peer, or `None` if the peer has disconnected.
    fn receive(&mut self) -> Result<Option<Claim>> {
        self.until(|side| side.received.is_some())?;
        Ok(self.received.take())
    }

    /// Returns the local buffer. Fails if the peer's memory is empty or larger than this buffer.
    fn room_for(&self, claim: Claim) -> Result<MemoryRegion> {
        let (size, room) = (claim.size(), self.data.len());
        if (1..=room).contains(&claim.size()) {
            return Ok(self.data.clone());
        }
        Err(format!("the peer offers {size} bytes, not 1 to {room}: -S must be the same").into())
    }

    /// Waits until `condition` returns true. Returns `false` if the peer disconnects first.
    fn until(&mut self, condition: impl Fn(&Self) -> bool) -> Result<bool> {
        while !condition(self) {
            let Some(done) = self.connection.completion()? else {
                return Ok(false);
            };
            if done.wr_id == REQUEST {
                self.busy = false;
                continue;
            }
            let len = done.byte_len as usize;
            if len != Claim::LEN {
                return Err(format!(
                    "received a message of {len} bytes, not 16: the peer is not rping"
                )
                .into());
            }
            let mut bytes = [0; Claim::LEN];
            self.incoming.copy_out(0, &mut bytes);
            self.received = Some(Claim::from_bytes(bytes));
            // Post the receive before any reply: the peer may send as soon as it gets the reply.
            self.post_receive()?;
        }
        Ok(true)
    }
}

/// Returns parameters that allow one READ at a time in each direction.
fn one_at_a_time() -> ConnParam {
    ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        ..ConnParam::default()
    }
}
