//! The client of `cm_server`. It connects, sends messages of several sizes, checks each byte of the
//! replies, and prints the round-trip times.
//!
//! It also prints the connection manager events of the active side: ADDR_RESOLVED, ROUTE_RESOLVED,
//! ESTABLISHED, DISCONNECTED.

use std::{
    error::Error,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use cm_examples::{Latencies, check, fill, init_trace};
use rdmsg::{Config, Connector, Endpoint, Engine, Polling};

#[derive(Parser)]
#[command(
    version,
    about = "Sends messages over RDMA to cm_server, and checks the replies."
)]
struct Options {
    /// The host name or address, and the port of the server
    #[arg(default_value = "127.0.0.1:7471")]
    address: String,
    /// The message sizes in bytes; the client sends --count messages of each size, in this order
    #[arg(short, long, value_delimiter = ',', default_value = "64,4096,65536")]
    size: Vec<usize>,
    /// The number of messages of each size
    #[arg(short = 'c', long, default_value_t = 1000)]
    count: u64,
    /// The method of waiting for a reply
    #[arg(long, value_enum, default_value_t = Wait::Adaptive)]
    polling: Wait,
    /// The time limit for connecting, in seconds; if the server does not listen yet, the client
    /// retries until this time has passed
    #[arg(long, default_value_t = 10)]
    timeout: u64,
    /// The size in bytes of each receive buffer; if client and server differ, the smaller size
    /// applies. Over RDMA, the receiver reads a message that needs more than three buffers from the
    /// sender's memory
    #[arg(long)]
    eager_size: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Wait {
    /// Poll for a short time, then sleep until an event
    Adaptive,
    /// Poll continuously
    Busy,
    /// Sleep until an event
    Event,
}

fn main() -> ExitCode {
    let options = Options::parse();
    init_trace("client");
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cm_client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut config = Config::default();
    config.connect_timeout = Duration::from_secs(options.timeout);
    config.eager_size = options.eager_size;
    config.polling = match options.polling {
        Wait::Adaptive => Polling::default(),
        Wait::Busy => Polling::Busy,
        Wait::Event => Polling::Event,
    };
    let engine = Engine::new()?;
    let endpoint = Connector::new()
        .config(&config)
        .engine(&engine)
        .retry_refused(true)
        .connect(&options.address)?;
    if let Some(negotiated) = endpoint.info().negotiated {
        println!("{}: {negotiated}", endpoint.peer_addr());
    }

    let mut number = 0;
    for &size in &options.size {
        let latencies = round_trips(&endpoint, size, options.count, &mut number)?;
        println!(
            "{size} bytes: {} messages each way, every byte as expected; round trip {latencies}",
            options.count
        );
    }
    endpoint.close()?;
    println!("closed: everything was delivered");
    drop(endpoint);
    engine.shutdown();
    Ok(())
}

/// Sends `count` messages, and waits for the reply to each message before it sends the next
/// message. Returns the round-trip times.
fn round_trips(
    endpoint: &Endpoint,
    size: usize,
    count: u64,
    number: &mut u64,
) -> Result<Latencies, Box<dyn Error>> {
    let mut latencies = Latencies::new();
    let mut message = vec![0; size];
    for _ in 0..count {
        fill(*number, &mut message);
        let start = Instant::now();
        endpoint.send(&message)?;
        let answer = endpoint.recv()?;
        latencies.record(start.elapsed());
        if answer.len() != size {
            return Err(format!("sent {size} bytes, received {}", answer.len()).into());
        }
        check(*number, &answer)?;
        *number += 1;
    }
    Ok(latencies)
}
