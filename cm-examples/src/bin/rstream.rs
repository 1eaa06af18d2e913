//! The speed of a byte stream over RDMA or over TCP, with the same code. It works with the C
//! program of the same name, whose stream is librdmacm's `rsocket`. With `-T s` it works with any
//! `rstream` over TCP, also under `librspreload.so`.
//!
//! Run `rstream` on one host and `rstream -s ADDR` on another. A program uses the stream like a TCP
//! stream: connect or accept, then read and write. But a write goes directly into the peer's
//! memory, and waits while that is full.
//!
//! Each test repeats a transfer from the client to the server, and one back. By default one
//! connection has the tests of latency, with one transfer at a time, and another the tests of
//! bandwidth, with many in a row.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use cm_examples::{
    Result,
    cm::lookup_as,
    end, init_debug,
    socket::{Acceptor, Socket},
    stream_test::{HEADER, Plan, StreamTest, Way},
};
use rdmsg::{
    cm::{AddrInfo, AddrInfoHints},
    rsocket::Config,
};

/// Measure streams of bytes over RDMA or TCP
#[derive(Parser, Clone)]
struct Options {
    /// The server's address. Without it this is the server
    #[arg(short, value_name = "ADDRESS")]
    server: Option<String>,
    /// Address to listen on [default: any]
    #[arg(short, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Form of addresses
    #[arg(short, default_value = "name", value_parser = ["name", "ip", "gid"])]
    format: String,
    /// Bytes of the buffers for sending and for receiving
    #[arg(short = 'B', default_value_t = 512 << 10, value_parser = clap::value_parser!(u32).range(1..=512 << 20))]
    buffer: u32,
    /// Bytes that are sent inline [default: 64 for latency, 0 for bandwidth]
    #[arg(short, value_name = "BYTES")]
    inline: Option<u32>,
    /// One test, with this number of transfers to and fro; the same on both sides
    #[arg(short = 'I', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// One test, with this number of transfers in a row; the same on both sides
    #[arg(short = 'C', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// One test, with transfers of this size, or `all` for more tests; the same on both sides
    #[arg(short = 'S', value_name = "BYTES|all")]
    size: Option<String>,
    /// Port
    #[arg(short, default_value_t = 7471)]
    port: u16,
    /// Probe the peer at this interval in seconds
    #[arg(short, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    keepalive: Option<u64>,
    /// How to run the test; may be given several times, and each by its first letter
    #[arg(short = 'T', value_name = "OPTION")]
    test: Vec<Test>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Test {
    /// Over TCP
    #[value(alias = "s")]
    Socket,
    /// Wait before each call
    #[value(alias = "a")]
    Async,
    /// Use blocking calls
    #[value(alias = "b")]
    Block,
    /// Over TCP, and the server starts a thread for it
    #[value(alias = "f")]
    Fork,
    /// Wait when a call would block: the default
    #[value(alias = "n")]
    Nonblock,
    /// librdmacm looks up the server's address
    #[value(alias = "r")]
    Resolve,
    /// Check every byte; the same on both sides
    #[value(alias = "v")]
    Verify,
}

/// The longest silence of the peer.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The number of bytes that the sides exchange before each test.
const SYNC: usize = 16;

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    end("rstream", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let plans = Plan::all(options.size.as_deref(), options.count, options.iterations)?;
    println!("{HEADER}");
    let Some(server) = &options.server else {
        let address = options.address(options.bind.as_deref().unwrap_or("0.0.0.0"))?;
        let config = options.config(&plans[0]);
        let acceptor = Acceptor::bind(address, config.as_ref())?;
        for plan in plans {
            let socket = acceptor.accept()?;
            if options.has(Test::Fork) {
                let own = options.clone();
                let serving = thread::spawn(move || Side::new(socket, &own)?.run(&plan));
                serving.join().map_err(|_| "a server's thread panicked")??;
            } else {
                Side::new(socket, options)?.run(&plan)?;
            }
        }
        return Ok(());
    };
    let address = if options.has(Test::Resolve) {
        let port = options.port.to_string();
        let found = AddrInfo::new(Some(server), &port, AddrInfoHints::default())?;
        found.dst_addr().ok_or("it has no address")?
    } else {
        options.address(server)?
    };
    for plan in plans {
        let socket = Socket::connect(address, options.config(&plan).as_ref())
            .map_err(|error| format!("cannot connect to {address}: {error}"))?;
        Side::new(socket, options)?.run(&plan)?;
    }
    Ok(())
}

impl Options {
    fn address(&self, host: &str) -> Result<SocketAddr> {
        lookup_as(&self.format, host, self.port)
    }

    fn has(&self, test: Test) -> bool {
        self.test.contains(&test)
    }

    /// Returns the configuration for RDMA, if it is used.
    fn config(&self, plan: &Plan) -> Option<Config> {
        if self.has(Test::Socket) || self.has(Test::Fork) {
            return None;
        }
        let mut config = Config::default();
        // Sockets have twice the requested size.
        config.send_buffer = 2 * self.buffer as usize;
        config.receive_buffer = 2 * self.buffer as usize;
        config.inline = self.inline.unwrap_or(plan.inline);
        Some(config)
    }
}

/// One end of a connection.
struct Side {
    socket: Socket,
    is_client: bool,
    /// Wait before each call, or when a call would block; otherwise the calls block.
    wait_first: bool,
    verify: bool,
    buffer: Vec<u8>,
    /// The next byte to send, and to receive, if they are checked.
    sent: u8,
    received: u8,
}

impl Side {
    fn new(socket: Socket, options: &Options) -> Result<Self> {
        if options.has(Test::Block) {
            socket.set_timeout(TIME_LIMIT)?;
        } else {
            socket.set_nonblocking(true)?;
        }
        if let Some(seconds) = options.keepalive {
            socket.set_keepalive(Duration::from_secs(seconds))?;
        }
        Ok(Self {
            socket,
            is_client: options.server.is_some(),
            wait_first: options.has(Test::Async),
            verify: options.has(Test::Verify),
            buffer: Vec::new(),
            sent: 0,
            received: 0,
        })
    }

    fn run(mut self, plan: &Plan) -> Result<()> {
        let hint = "-I, -C, -S and -T v must be the same on both sides";
        for test in &plan.tests {
            self.test(test)
                .map_err(|error| format!("{}: {error}: {hint}", test.name))?;
        }
        if !self.is_client && self.socket.wait_readable(TIME_LIMIT).is_ok() {
            // The client ends the connection when it has read everything. Some clients stop reading
            // at the end.
            let _ = self.socket.read(&mut self.buffer);
        }
        // The peer may have closed already.
        let _ = self.socket.shutdown();
        Ok(())
    }

    fn test(&mut self, test: &StreamTest) -> Result<()> {
        self.buffer.resize(test.size.max(SYNC), 0);
        for way in Way::BOTH {
            self.transfer(way, SYNC)?;
        }
        let start = Instant::now();
        for _ in 0..test.iterations {
            for way in Way::BOTH {
                for _ in 0..test.count {
                    self.transfer(way, test.size)?;
                }
            }
        }
        println!("{}", test.line(start.elapsed()));
        Ok(())
    }

    fn transfer(&mut self, way: Way, len: usize) -> Result<()> {
        if (way == Way::ToServer) == self.is_client {
            self.send(len)
        } else {
            self.receive(len)
        }
    }

    fn send(&mut self, len: usize) -> Result<()> {
        if self.verify {
            for byte in &mut self.buffer[..len] {
                *byte = self.sent;
                self.sent = self.sent.wrapping_add(1);
            }
        }
        let mut at = 0;
        while at < len {
            if self.wait_first {
                self.socket.wait_writable(TIME_LIMIT)?;
            }
            match self.socket.write(&self.buffer[at..len]) {
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.wait_writable(TIME_LIMIT)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, len: usize) -> Result<()> {
        let mut at = 0;
        while at < len {
            if self.wait_first {
                self.socket.wait_readable(TIME_LIMIT)?;
            }
            match self.socket.read(&mut self.buffer[at..len]) {
                Ok(0) => {
                    return Err(format!("the peer has closed, {} bytes early", len - at).into());
                }
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.wait_readable(TIME_LIMIT)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        for (at, byte) in self.buffer[..len].iter().enumerate() {
            if self.verify && *byte != self.received.wrapping_add(at as u8) {
                return Err(format!("data verification failed at byte {at} of {len}").into());
            }
        }
        self.received = self.received.wrapping_add(len as u8);
        Ok(())
    }
}
