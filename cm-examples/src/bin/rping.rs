//! The ping of RDMA: one side sends the address of its memory. The other reads that memory and
//! writes to it, without the processor of the first side. It works with the C program of the same
//! name.
//!
//! Run `rping -s` on one host and `rping -c -a ADDR -C 10 -v` on another. For each ping
//!
//! 1. the client fills its first buffer and sends its *address*, *remote key* and size, 16 bytes;
//! 2. the server READs the buffer and confirms that with a message;
//! 3. the client sends the same of its second buffer;
//! 4. the server WRITEs the text there and confirms it, and the client compares the two.
//!
//! A message is only a claim, so its size is checked against the local buffer before any READ.

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
    /// Be the server
    #[arg(short)]
    server: bool,
    /// Be the client
    #[arg(short, requires = "address")]
    client: bool,
    /// Server: address to listen on [default: any]; client: the server's address
    #[arg(short, value_name = "ADDRESS")]
    address: Option<String>,
    /// Client: address to connect from
    #[arg(short = 'I', value_name = "ADDRESS")]
    source: Option<String>,
    /// Port
    #[arg(short, default_value_t = 7174)]
    port: u16,
    /// Number of pings; 0 means no end. The server serves any number
    #[arg(short = 'C', default_value_t = 0)]
    count: u32,
    /// Bytes of a ping
    #[arg(short = 'S', default_value_t = 64, value_parser = clap::value_parser!(u32).range(23..=65535))]
    size: u32,
    /// Print the text of each ping
    #[arg(short)]
    verbose: bool,
    /// Compare the bytes that come back with the original
    #[arg(short = 'V')]
    verify: bool,
    /// Show the connection's steps
    #[arg(short)]
    debug: bool,
    /// Server: continue after a client, and serve several at a time
    #[arg(short = 'P')]
    persistent: bool,
    /// Let the program create the queue pair and move it from state to state
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
    // 0 is the kernel's maximum. The kernel drops requests beyond it, which are repeated late.
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
        // All of them concurrently. A failure of one does not affect the others.
        let serving = thread::Builder::new().spawn(move || end("rping", answer()));
        if let Err(error) = serving {
            eprintln!("rping: no thread for another client: {error}");
        }
    }
}

fn answer(mut id: CmId, options: &Options) -> Result<()> {
    // Each connection has its own events, so that its thread sees no others.
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

/// Which work request a completion is of.
const RECEIVE: u64 = 0;
const REQUEST: u64 = 1;

/// One end of a connection, and its memory.
struct Side {
    connection: Connection,
    /// The last message from the peer, and the message to it.
    heard: MemoryRegion,
    said: MemoryRegion,
    /// The client's first buffer, which the server reads; and the buffer for writes and reads.
    start: MemoryRegion,
    data: MemoryRegion,
    /// Whether a request has not completed yet.
    busy: bool,
    received: Option<Claim>,
}

impl Side {
    /// Makes the objects that an id needs before it connects or accepts, with a receive posted.
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
            heard: memory(Claim::LEN, AccessFlags::LOCAL_WRITE)?,
            said: memory(Claim::LEN, AccessFlags::LOCAL_WRITE)?,
            start: memory(options.size as usize, open)?,
            data: memory(options.size as usize, open)?,
            connection,
            busy: false,
            received: None,
        };
        side.post_receive()?;
        Ok(side)
    }

    /// The server: answers pings until the client disconnects.
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
            self.tell(Claim::default())?;
            let Some(sink) = self.receive()? else { break };
            // The text with its final zero must fit the client's buffer.
            let len = sink.size().min(text.len() + 1);
            self.post(SendWr::write(REQUEST, Sge::new(&data, ..len), sink.into()))?;
            self.tell(Claim::default())?;
        }
        println!("server DISCONNECT EVENT...");
        self.connection.disconnect()
    }

    /// The client: pings, and disconnects.
    fn ask(mut self, options: &Options) -> Result<()> {
        self.connection.connect(one_at_a_time())?;
        let (start, data) = (Claim::of(&self.start), Claim::of(&self.data));
        let wanted = |number: &u32| options.count == 0 || *number < options.count;
        for number in (0..).take_while(wanted) {
            let text = text(number, options.size as usize);
            self.start.copy_in(0, &text);
            for claim in [start, data] {
                self.tell(claim)?;
                self.receive()?.ok_or("the server disconnected")?;
            }
            let mut back = vec![0; text.len()];
            self.data.copy_out(0, &mut back);
            if options.verify && back != text {
                return Err(format!("data mismatch: ping {number} came back changed").into());
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
        let receive = RecvWr::new(RECEIVE, Sge::new(&self.heard, ..));
        Ok(self.connection.qp.post_recv(&[receive])?)
    }

    fn post(&mut self, request: SendWr<'_>) -> Result<()> {
        // The peer may have answered a message before the device completes it.
        self.until(|side| !side.busy)?;
        self.busy = true;
        Ok(self.connection.qp.post_send(&[request])?)
    }

    fn tell(&mut self, claim: Claim) -> Result<()> {
        self.until(|side| !side.busy)?;
        self.said.copy_in(0, &claim.to_bytes());
        let said = self.said.clone();
        self.post(SendWr::send(REQUEST, Sge::new(&said, ..)))
    }

    /// Returns the next message of the peer; `None` when it has disconnected.
    fn receive(&mut self) -> Result<Option<Claim>> {
        self.until(|side| side.received.is_some())?;
        Ok(self.received.take())
    }

    /// Returns the buffer, if the peer's memory fits it.
    fn room_for(&self, claim: Claim) -> Result<MemoryRegion> {
        let (size, room) = (claim.size(), self.data.len());
        if (1..=room).contains(&claim.size()) {
            return Ok(self.data.clone());
        }
        Err(format!("the peer offers {size} bytes, here is room for 1 to {room}: -S must be the same on both sides").into())
    }

    /// Waits until the condition is met. Returns false if the peer disconnects first.
    fn until(&mut self, so: impl Fn(&Self) -> bool) -> Result<bool> {
        while !so(self) {
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
                    "a message of {len} bytes, where 16 are expected: the peer is no rping"
                )
                .into());
            }
            let mut bytes = [0; Claim::LEN];
            self.heard.copy_out(0, &mut bytes);
            self.received = Some(Claim::from_bytes(bytes));
            // The receive is posted before any answer, because the peer may send after the answer.
            self.post_receive()?;
        }
        Ok(true)
    }
}

/// Returns parameters with one READ at a time in each direction.
fn one_at_a_time() -> ConnParam {
    ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        ..ConnParam::default()
    }
}
