//! The server of a minimal RDMA program, which exchanges one message in each direction. Each
//! connection manager call blocks until its operation is complete, so the program handles no
//! events. It interoperates with the C program `rdma_client`.
//!
//! Run `rdma_server` on one host and `rdma_client -s ADDR` on another. The server receives 16 bytes
//! from one client, and sends 16 bytes back.

use std::process::ExitCode;

use clap::Parser;
use cm_examples::{Result, end, exchange::Exchange};
use rdmsg::cm::{AddrInfo, AddrInfoHints, CmId, ConnParam, PortSpace};

/// Receive one message from rdma_client, and send one back
#[derive(Parser)]
struct Options {
    /// The address to listen on
    #[arg(short, value_name = "ADDRESS", default_value = "0.0.0.0")]
    server: String,
    /// The port to listen on
    #[arg(short, default_value = "7471")]
    port: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    println!("rdma_server: start");
    let result = run(&options);
    println!("rdma_server: end {}", if result.is_ok() { 0 } else { -1 });
    end("rdma_server", result)
}

fn run(options: &Options) -> Result<()> {
    let mut hints = AddrInfoHints::default();
    hints.passive = true;
    hints.port_space = Some(PortSpace::TCP);
    let info = AddrInfo::new(Some(&options.server), &options.port, hints)?;
    // `create_ep` binds the id to the address.
    let mut listener = CmId::create_ep(&info)?;
    listener.listen(0)?;
    let mut id = listener.get_request()?;
    let mut exchange = Exchange::new(&mut id)?;
    // Post the receive first, because the client sends as soon as the connection is established.
    exchange.post_receive()?;
    id.accept(&ConnParam::default())?;
    exchange.wait_received()?;
    exchange.send()?;
    exchange.wait_sent()?;
    Ok(id.disconnect()?)
}
