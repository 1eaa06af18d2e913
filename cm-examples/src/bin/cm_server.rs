//! A minimal message server: it listens, accepts connections, checks each byte of the messages, and
//! sends the messages back.
//!
//! It also prints the connection manager events of the passive side: CONNECT_REQUEST, ESTABLISHED,
//! DISCONNECTED. Start `cm_server` first, and then `cm_client` on another host.

use std::{error::Error, net::SocketAddr, process::ExitCode, thread};

use clap::Parser;
use cm_examples::{check, init_trace};
use rdmsg::{CloseReason, Config, Endpoint, Engine, Listener};

#[derive(Parser)]
#[command(version, about = "Echoes messages of cm_client over RDMA.")]
struct Options {
    /// The address and port to listen on; with port 0, the system chooses a free port
    #[arg(default_value = "0.0.0.0:7471")]
    address: SocketAddr,
    /// Exit after this number of connections [default: never]
    #[arg(short = 'n', long)]
    connections: Option<usize>,
    /// The maximum number of messages that a client can have in flight
    #[arg(long)]
    window: Option<u16>,
    /// The size in bytes of each receive buffer; if client and server differ, the smaller size
    /// applies. Over RDMA, the receiver reads a message that needs more than three buffers from the
    /// sender's memory
    #[arg(long)]
    eager_size: Option<u32>,
    /// The maximum length in bytes of a message that the server accepts
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
        // Keep the thread handles only with the option `--connections`. Without this option, the
        // server runs forever, and the number of handles would grow without limit.
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
        Err("at least one connection failed".into())
    }
}

/// Checks messages and sends them back until the client closes the connection. Returns the number
/// of messages.
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
