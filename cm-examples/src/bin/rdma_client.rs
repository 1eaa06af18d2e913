//! The shortest way to one message over RDMA: the client. Each call of the connection manager
//! returns when its step is done, so there are no events to wait for. It speaks to the C programs
//! of the same names.
//!
//! Run `rdma_server` on one host and `rdma_client -s ADDR` on another. The client sends 16 bytes,
//! and gets 16 bytes back.

use std::process::ExitCode;

use clap::Parser;
use cm_examples::{Result, end, exchange::Exchange};
use rdmsg::cm::{AddrInfo, AddrInfoHints, CmId, ConnParam, PortSpace};

/// Send one message to rdma_server, and get one back
#[derive(Parser)]
struct Options {
    /// The server's address
    #[arg(short, value_name = "ADDRESS", default_value = "127.0.0.1")]
    server: String,
    /// The server's port
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
    // This call resolves the address and the route.
    let mut id = CmId::create_ep(&info)?;
    let mut exchange = Exchange::new(&mut id)?;
    // The server may answer as soon as it is connected, so a receive is posted before.
    exchange.post_receive()?;
    id.connect(&ConnParam::default())?;
    exchange.send()?;
    exchange.wait_sent()?;
    exchange.wait_received()?;
    Ok(id.disconnect()?)
}
