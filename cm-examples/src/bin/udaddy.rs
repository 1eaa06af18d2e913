//! Sends datagrams between two hosts that find each other through the connection manager. The
//! program interoperates with the C program of the same name.
//!
//! Run `udaddy` on one host and `udaddy -s ADDR` on another. The programs establish no connection.
//! The connection manager only returns the path to the server, the server's queue pair number, and
//! the queue key that each datagram must contain. The client needs all three to send. The server
//! learns the path to the client from received datagrams: each datagram begins with a header that
//! contains the sender's address, and the immediate data is the sender's queue pair number.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use cm_examples::{
    Result,
    cm::{lookup_as, port_space, resolved_on, step},
    datagrams::Datagrams,
    end, init_debug,
};
use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    status::CmEventType,
};

/// Exchange datagrams between two hosts
#[derive(Parser)]
struct Options {
    /// The host name or address of the server; without it, this program is the server
    #[arg(short, value_name = "ADDRESS")]
    server: Option<String>,
    /// The address to listen on, or to send from [default: any]
    #[arg(short, value_name = "ADDRESS")]
    bind: Option<String>,
    /// The format of addresses
    #[arg(short, default_value = "name", value_parser = ["name", "ip", "ipv6", "gid"])]
    format: String,
    /// The port space
    #[arg(short = 'P', default_value = "udp", value_parser = ["udp", "ipoib"])]
    space: String,
    /// The number of queue pairs; must be the same on both sides
    #[arg(short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// The number of datagrams in each direction per queue pair; must be the same on both sides
    #[arg(short = 'C', default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10000))]
    count: u32,
    /// The size of a datagram in bytes, at most one packet; must be the same on both sides. With 0,
    /// no datagrams are sent, as in the C program
    #[arg(short = 'S', default_value_t = 100)]
    size: u32,
    /// The type of service
    #[arg(short, value_name = "TOS")]
    tos: Option<u8>,
    /// The number of the port space: 0x111 for UDP (default), 0x2 for IPoIB
    #[arg(short, value_name = "NUMBER", value_parser = port_space)]
    port_space: Option<PortSpace>,
}

/// The port of the server. No option changes this port.
const PORT: u16 = 7174;
/// The time limit of each connection manager operation, and of the wait for the first datagram.
const TIME_LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    let result = match &options.server {
        Some(server) => ask(&options, server),
        None => serve(&options),
    };
    println!("test complete");
    println!("return status {}", if result.is_ok() { 0 } else { -1 });
    end("udaddy", result)
}

fn serve(options: &Options) -> Result<()> {
    println!("udaddy: starting server");
    let address = options.address(options.bind.as_deref().unwrap_or("0.0.0.0"), PORT)?;
    let events = EventChannel::new()?;
    let mut listener = CmId::new(&events, options.space(), 0)?;
    listener.bind_addr(address)?;
    listener.listen(0)?;
    let mut all = Vec::new();
    while all.len() < usize::from(options.connections) {
        // The server waits for its clients without a time limit.
        let Some(mut event) = events.wait_event(Duration::MAX)? else {
            continue;
        };
        let Some(id) = event.take_request() else {
            return Err(format!("{}: {}", event.event(), event.cm_status()).into());
        };
        let mut datagrams = Datagrams::new(id, options.count(), options.size)?;
        // The client learns the queue pair number from the server's answer. Here, librdmacm ignores
        // `qp_num`, because the id created the queue pair and knows the number.
        let param = ConnParam {
            qp_num: datagrams.qp_num(),
            ..ConnParam::default()
        };
        datagrams.id.accept(&param)?;
        all.push(datagrams);
    }
    if options.count() > 0 {
        println!("receiving data transfers");
        for datagrams in &mut all {
            datagrams.wait_received(TIME_LIMIT)?;
        }
        println!("sending replies");
        for datagrams in &mut all {
            datagrams.send()?;
            datagrams.wait_sent()?;
        }
        println!("data transfers complete");
    }
    Ok(())
}

fn ask(options: &Options, server: &str) -> Result<()> {
    println!("udaddy: starting client");
    let server = options.address(server, PORT)?;
    let source = match &options.bind {
        Some(host) => Some(options.address(host, 0)?),
        None => None,
    };
    println!("udaddy: connecting");
    let mut all = Vec::new();
    for _ in 0..options.connections {
        let events = EventChannel::new()?;
        let id = resolved_on(&events, options.space(), source, server, options.tos)?;
        let mut datagrams = Datagrams::new(id, options.count(), options.size)?;
        datagrams.id.connect(&ConnParam::default())?;
        let event = step(&events, CmEventType::ESTABLISHED, TIME_LIMIT)?;
        let peer = event
            .ud()
            .ok_or("the ESTABLISHED event has no queue pair of the server")?;
        datagrams.set_peer(&peer.ah_attr, peer.qp_num, peer.qkey)?;
        all.push(datagrams);
    }
    if options.count() > 0 {
        println!("initiating data transfers");
        all.iter().try_for_each(Datagrams::send)?;
        println!("receiving data transfers");
        for datagrams in &mut all {
            datagrams.wait_received(TIME_LIMIT)?;
        }
        println!("data transfers complete");
    }
    Ok(())
}

impl Options {
    /// Returns the number of datagrams in each direction, which is 0 if the size of a datagram is
    /// 0.
    fn count(&self) -> u32 {
        if self.size > 0 { self.count } else { 0 }
    }

    fn space(&self) -> PortSpace {
        let named = if self.space == "ipoib" {
            PortSpace::IPOIB
        } else {
            PortSpace::UDP
        };
        self.port_space.unwrap_or(named)
    }

    fn address(&self, host: &str, port: u16) -> Result<SocketAddr> {
        lookup_as(&self.format, host, port)
    }
}
