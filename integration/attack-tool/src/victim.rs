//! The process that is attacked: three listeners on one engine, whose connections echo.

use std::{
    io::{self, BufRead, Read, Write},
    panic, process, thread,
    time::Duration,
};

use anyhow::{Context, Result};
use rdmsg::{
    Completion, Config, Endpoint, Engine, EngineLimits, Listener, Polling, RemoteAccess, Stream,
    StreamListener, Transport,
};
use toolbox::{Lab, PATIENCE};

/// The listeners, in the order in which their ports are printed.
pub(crate) const SERVICES: [&str; 3] = ["messages", "shared", "stream"];
/// The service with shared receives.
pub(crate) const SHARED: usize = 1;
/// The service of streams.
pub(crate) const STREAM: usize = 2;

/// The first message of a peer that asks for the token of writable memory.
pub(crate) const LEND: &[u8] = b"lend";

/// The time after which the victim gives a peer up that takes no echo.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// Memory for four of the longest messages, and so for a hundred of the honest clients': less than
/// the attackers announce.
fn limits(transport: Transport) -> EngineLimits {
    let mut limits = EngineLimits::default();
    limits.pinned = 32 << 20;
    limits.held = 4 * longest(transport);
    limits
}

/// The longest message in bytes that the victim takes. Over RDMA the attackers lock memory of this
/// length.
pub(crate) fn longest(transport: Transport) -> u64 {
    match transport {
        Transport::Rdma => 16 << 20,
        _ => 64 << 20,
    }
}

/// The configuration of a service, for both sides. Honest clients have more patience.
pub(crate) fn config(service: usize, transport: Transport) -> Config {
    let mut config = Config::default();
    config.transport = transport;
    // A busy machine is no reason to give an honest client up, or to turn it away.
    config.connect_timeout = PATIENCE / 3;
    config.keepalive_timeout = PATIENCE / 3;
    // A thread that spins takes a processor from the others.
    config.polling = Polling::Event;
    config.max_message = longest(transport);
    if service == SHARED {
        config.shared_receive = Some(2048);
        config.eager_size = Some(4096);
    }
    config
}

/// Serves until stdin ends, or has the line "end".
pub(crate) fn run(over_rdma: bool) -> Result<()> {
    let logger = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(logger).init();
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        before(info);
        process::abort();
    }));
    let (address, transport) = if over_rdma {
        (Lab::find()?.at(0), Transport::Rdma)
    } else {
        ("127.0.0.1:0".parse()?, Transport::Tcp)
    };
    let engine = Engine::with_limits(limits(transport))?;
    let mut ports = Vec::new();
    for service in 0..STREAM {
        let config = config(service, transport);
        let listener = Listener::bind_with(address, &config, &engine)?;
        ports.push(listener.local_addr().port());
        thread::spawn(move || accept(&listener));
    }
    let listener = Listener::builder()
        .config(config(STREAM, transport))
        .engine(&engine)
        .bind_stream(address)?;
    ports.push(listener.local_addr()?.port());
    thread::spawn(move || accept_streams(&listener));
    println!("ports {} {} {}", ports[0], ports[1], ports[2]);
    for line in io::stdin().lock().lines() {
        if line? == "end" {
            break;
        }
        let now = engine.statistics().context("the engine has ended")?;
        println!(
            "state {} {} {} {}",
            now.connections, now.pinned, now.held, now.ended
        );
    }
    engine.shutdown();
    Ok(())
}

fn accept(listener: &Listener) {
    for endpoint in listener.incoming() {
        match endpoint {
            Ok(endpoint) => {
                thread::spawn(move || echo(&endpoint));
            }
            // Honest clients notice, unless it is the end.
            Err(_) => return,
        }
    }
}

/// Sends each message back, until the peer leaves or takes none for a second.
fn echo(endpoint: &Endpoint) -> Option<()> {
    // Memory of its own, which a hostile peer learns of as an honest one would.
    let mut region = None;
    loop {
        match endpoint.next_completion().ok()? {
            Completion::Received(message) if *message == *LEND => {
                let lent = endpoint.region(4096, RemoteAccess::ALL).ok()?;
                let token = lent.remote().to_bytes();
                region = Some(lent);
                endpoint.send_timeout(&token, SEND_LIMIT).ok()?;
            }
            Completion::Received(message) => endpoint.send_timeout(&message, SEND_LIMIT).ok()?,
            Completion::Finished | Completion::Disconnected(_) => break,
            _ => {}
        }
    }
    drop(region);
    Some(())
}

fn accept_streams(listener: &StreamListener) {
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                thread::spawn(move || echo_stream(stream));
            }
            // As above.
            Err(_) => return,
        }
    }
}

fn echo_stream(mut stream: Stream) -> io::Result<()> {
    stream.set_write_timeout(Some(SEND_LIMIT))?;
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => stream.write_all(&bytes[..len])?,
        }
    }
}
