//! A message server in a few lines: listens, accepts, checks every byte it gets, and sends it back.
//!
//! It shows the passive side of the connection manager as it happens: CONNECT_REQUEST, ESTABLISHED,
//! DISCONNECTED. Start it, then `cm_client` on another host.

use std::{error::Error, net::SocketAddr, process::ExitCode, thread};

use clap::Parser;
use cm_examples::{check, init_trace};
use rdmsg::{CloseReason, Config, Endpoint, Engine, Listener};

#[derive(Parser)]
#[command(
    version,
    about = "Echoes messages over RDMA. The counterpart of cm_client."
)]
struct Options {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(default_value = "0.0.0.0:7471")]
    address: SocketAddr,
    /// End after this many connections
    #[arg(short = 'n', long)]
    connections: Option<usize>,
    /// The number of messages that a client may have in flight
    #[arg(long, default_value_t = Config::default().receive_window)]
    window: u16,
    /// The largest message in bytes for which buffers are posted; longer ones are read from the
    /// client's memory
    #[arg(long)]
    eager_size: Option<u32>,
    /// The largest message in bytes that is accepted
    #[arg(long, default_value_t = Config::default().max_message)]
    max_message: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    init_trace("server");
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cm_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut config = Config::default();
    config.receive_window = options.window;
    config.eager_size = options.eager_size;
    config.max_message = options.max_message;
    let engine = Engine::new()?;
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(options.address)?;
    println!("listening on {}", listener.local_addr());

    let mut sessions = Vec::new();
    for endpoint in listener
        .incoming()
        .take(options.connections.unwrap_or(usize::MAX))
    {
        let endpoint = endpoint?;
        let session = thread::spawn(move || match echo(&endpoint) {
            Ok(count) => {
                println!(
                    "{}: echoed {count} messages, every byte as expected",
                    endpoint.peer_addr()
                );
                true
            }
            Err(error) => {
                eprintln!("cm_server: {}: {error}", endpoint.peer_addr());
                false
            }
        });
        // A server that runs without end must not keep the handles of ended sessions.
        if options.connections.is_some() {
            sessions.push(session);
        }
    }
    drop(listener);
    let good = sessions
        .into_iter()
        .all(|session| session.join().unwrap_or(false));
    engine.shutdown();
    if good {
        Ok(())
    } else {
        Err("a session failed".into())
    }
}

/// Sends messages back until the client closes.
fn echo(endpoint: &Endpoint) -> Result<u64, Box<dyn Error>> {
    if let Some(negotiated) = endpoint.info().negotiated {
        println!("{}: {negotiated}", endpoint.peer_addr());
    }
    for number in 0.. {
        match endpoint.recv() {
            Ok(message) => {
                check(number, &message)?;
                endpoint.send(&message)?;
            }
            Err(rdmsg::Error::Disconnected(CloseReason::PeerClosed)) => return Ok(number),
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("a message number does not reach 2^64")
}
