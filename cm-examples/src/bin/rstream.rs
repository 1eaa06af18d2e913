//! Measures byte streams over RDMA or TCP, with the same code for both. The program interoperates
//! with the C program of the same name, whose stream is librdmacm's `rsocket`. With `-T s` on
//! both sides, the programs use TCP. If the C program runs with `-T s` under `librspreload.so`, its
//! TCP sockets become rsockets. In this case, run this program without `-T s`.
//!
//! Run `rstream` on one host and `rstream -s ADDR` on another. The program uses an RDMA stream like
//! a TCP stream: it connects or accepts, and then reads and writes. But over RDMA, a write goes
//! directly into the peer's memory, and waits while that memory is full.
//!
//! Each test repeats transfers from the client to the server and back. By default, the program
//! opens two connections: one for the latency tests, with one transfer at a time, and one for the
//! bandwidth tests, with many consecutive transfers.

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
    stream_test::{Direction, HEADER, Plan, StreamTest},
};
use rdmsg::{
    cm::{AddrInfo, AddrInfoHints},
    rsocket::Config,
};

/// Measure byte streams over RDMA or TCP
#[derive(Parser, Clone)]
struct Options {
    /// The host name or address of the server; without it, this program is the server
    #[arg(short, value_name = "ADDRESS")]
    server: Option<String>,
    /// The address to listen on [default: any]
    #[arg(short, value_name = "ADDRESS")]
    bind: Option<String>,
    /// The format of addresses
    #[arg(short, default_value = "name", value_parser = ["name", "ip", "gid"])]
    format: String,
    /// The size of the send buffer and of the receive buffer in bytes
    #[arg(short = 'B', default_value_t = 512 << 10, value_parser = clap::value_parser!(u32).range(1..=512 << 20))]
    buffer: u32,
    /// The maximum size of an inline send in bytes [default: 64 for latency, 0 for bandwidth]
    #[arg(short, value_name = "BYTES")]
    inline: Option<u32>,
    /// Run one test with this number of iterations; must be the same on both sides
    #[arg(short = 'I', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// Run one test with this number of transfers per iteration; must be the same on both sides
    #[arg(short = 'C', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Run one test with transfers of this size, or the full set of tests with `all`; must be the
    /// same on both sides
    #[arg(short = 'S', value_name = "BYTES|all")]
    size: Option<String>,
    /// The port of the server
    #[arg(short, default_value_t = 7471)]
    port: u16,
    /// The keepalive interval in seconds
    #[arg(short, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    keepalive: Option<u64>,
    /// How to run the test; can be repeated; the first letter of an option is enough
    #[arg(short = 'T', value_name = "OPTION")]
    test: Vec<Test>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Test {
    /// Use TCP
    #[value(alias = "s")]
    Socket,
    /// Wait until the socket is ready before each call
    #[value(alias = "a")]
    Async,
    /// Use blocking calls
    #[value(alias = "b")]
    Block,
    /// Use TCP, and run each test of the server in a new thread
    #[value(alias = "f")]
    Fork,
    /// Wait until the socket is ready only if a call would block (the default)
    #[value(alias = "n")]
    Nonblock,
    /// Look up the server's address with librdmacm
    #[value(alias = "r")]
    Resolve,
    /// Check each byte; must be the same on both sides
    #[value(alias = "v")]
    Verify,
}

/// The time limit for each wait for the peer.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The number of bytes that each side sends before each test.
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
                serving
                    .join()
                    .map_err(|_| "the thread of a test panicked")??;
            } else {
                Side::new(socket, options)?.run(&plan)?;
            }
        }
        return Ok(());
    };
    let address = if options.has(Test::Resolve) {
        let port = options.port.to_string();
        let found = AddrInfo::new(Some(server), &port, AddrInfoHints::default())?;
        found.dst_addr().ok_or("librdmacm returned no address")?
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

    /// Returns the configuration of the RDMA stream, or `None` if the test uses TCP.
    fn config(&self, plan: &Plan) -> Option<Config> {
        if self.has(Test::Socket) || self.has(Test::Fork) {
            return None;
        }
        let mut config = Config::default();
        // librdmacm doubles the requested buffer sizes of an rsocket, as the kernel does for a TCP
        // socket. So double the sizes here, too.
        config.send_buffer = 2 * self.buffer as usize;
        config.receive_buffer = 2 * self.buffer as usize;
        config.inline = self.inline.unwrap_or(plan.inline);
        Some(config)
    }
}

/// One side of a connection.
struct Side {
    socket: Socket,
    is_client: bool,
    /// Whether to wait until the socket is ready before each call. If false, the program waits
    /// only if a call would block.
    wait_first: bool,
    verify: bool,
    buffer: Vec<u8>,
    /// The value of the next byte to send, if the test checks each byte.
    sent: u8,
    /// The expected value of the next received byte, if the test checks each byte.
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
            // Wait until the client closes the connection. Ignore an error, because the read fails
            // if a client closes the connection before it has read all bytes.
            let _ = self.socket.read(&mut self.buffer);
        }
        // Ignore an error, because the peer may already have closed the connection.
        let _ = self.socket.shutdown();
        Ok(())
    }

    fn test(&mut self, test: &StreamTest) -> Result<()> {
        self.buffer.resize(test.size.max(SYNC), 0);
        for direction in Direction::BOTH {
            self.transfer(direction, SYNC)?;
        }
        let start = Instant::now();
        for _ in 0..test.iterations {
            for direction in Direction::BOTH {
                for _ in 0..test.count {
                    self.transfer(direction, test.size)?;
                }
            }
        }
        println!("{}", test.line(start.elapsed()));
        Ok(())
    }

    fn transfer(&mut self, direction: Direction, len: usize) -> Result<()> {
        if (direction == Direction::ToServer) == self.is_client {
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
                    return Err(format!("the stream ended {} bytes early", len - at).into());
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
