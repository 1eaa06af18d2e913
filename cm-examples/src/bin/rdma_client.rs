//! The client of a minimal RDMA program, which exchanges one message in each direction. Each
//! connection manager call blocks until its operation is complete, so the program handles no
//! events. It interoperates with the C program `rdma_server`.
//!
//! Run `rdma_server` on one host and `rdma_client -s ADDR` on another. The client sends 16 bytes,
//! and receives 16 bytes.

use std::process::ExitCode;

use clap::Parser;
use cm_examples::{Result, end, exchange::Exchange};
use rdmsg::cm::{AddrInfo, AddrInfoHints, CmId, ConnParam, PortSpace};

/// Send one message to rdma_server, and receive one
#[derive(Parser)]
struct Options {
    /// The host name or address of the server
    #[arg(short, value_name = "ADDRESS", default_value = "127.0.0.1")]
    server: String,
    /// The port of the server
    #[arg(short, default_value = "7471")]
    port: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    println!("rdma_client: start");
    let result = run(&options);
    println!("rdma_client: end {}", if result.is_ok() { 0 } else { -1 });
    end("rdma_client", result)
}

fn run(options: &Options) -> Result<()> {
    let mut hints = AddrInfoHints::default();
    hints.port_space = Some(PortSpace::TCP);
    let info = AddrInfo::new(Some(&options.server), &options.port, hints)?;
    // `create_ep` resolves the address and the route.
    let mut id = CmId::create_ep(&info)?;
    let mut exchange = Exchange::new(&mut id)?;
    // Post the receive first, because the server replies as soon as it has the client's message.
    exchange.post_receive()?;
    id.connect(&ConnParam::default())?;
    exchange.send()?;
    exchange.wait_sent()?;
    exchange.wait_received()?;
    Ok(id.disconnect()?)
}
