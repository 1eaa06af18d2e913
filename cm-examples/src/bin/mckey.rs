//! Sends datagrams to a multicast group, or receives the group's datagrams. The program
//! interoperates with the C program of the same name.
//!
//! Run `mckey -m 239.1.2.3 -b ADDR` on some hosts, and `mckey -m 239.1.2.3 -b ADDR -s` on another.
//! ADDR is an address of the host itself. To join the group, a host passes the group's IP address
//! to the connection manager, which converts this address to a multicast GID. The connection
//! manager returns the path to the group, the multicast queue pair number, and the queue key of the
//! group. A datagram to the group arrives at each queue pair that has joined the group.

use std::{process::ExitCode, thread, time::Duration};

use clap::Parser;
use cm_examples::{
    Result,
    cm::{lookup, port_space, step},
    datagrams::Datagrams,
    end, init_debug,
};
use rdmsg::{
    cm::{CmId, EventChannel, PortSpace},
    status::CmEventType,
};

/// Send datagrams to a multicast group, or receive the group's datagrams
#[derive(Parser)]
#[command(group(clap::ArgGroup::new("group").required(true).args(["multicast", "unmapped"])))]
struct Options {
    /// The IP address of the multicast group
    #[arg(short, value_name = "ADDRESS")]
    multicast: Option<String>,
    /// The GID of the multicast group; requires -b
    #[arg(short = 'M', value_name = "MGID", requires = "bind")]
    unmapped: Option<String>,
    /// Send datagrams; without this option, receive them
    #[arg(short)]
    sender: bool,
    /// An IP address of the local port [default: the port that the route to the group uses]
    #[arg(short, value_name = "ADDRESS")]
    bind: Option<String>,
    /// The number of queue pairs that join the group
    #[arg(short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// The number of datagrams that each queue pair sends or receives
    #[arg(short = 'C', default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10000))]
    count: u32,
    /// The size of a datagram in bytes, at most one packet; must be the same on all hosts. With 0,
    /// no datagrams are sent, as in the C program
    #[arg(short = 'S', default_value_t = 100)]
    size: u32,
    /// The number of the port space: 0x111 for UDP, 0x2 for IPoIB
    #[arg(short, value_name = "NUMBER", default_value = "0x111", value_parser = port_space)]
    port_space: PortSpace,
    /// Join the group only as a sender
    #[arg(short = 'o')]
    send_only: bool,
    /// Do not receive the queue pair's own datagrams
    #[arg(short = 'l')]
    no_loopback: bool,
}

impl Options {
    /// Returns the number of datagrams per queue pair, which is 0 if the size of a datagram is 0.
    fn count(&self) -> u32 {
        if self.size > 0 { self.count } else { 0 }
    }
}

/// The time limit of each connection manager operation.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The time limit of one attempt to resolve an address.
const RESOLVE: Duration = Duration::from_secs(2);
/// The pause after joining the group. Switches need time to learn the members of the group, and do
/// not report when they are ready.
const SWITCHES: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    let role = if options.sender { "client" } else { "server" };
    println!("mckey: starting {role}");
    let result = run(&options);
    println!("test complete");
    println!("return status {}", if result.is_ok() { 0 } else { -1 });
    end("mckey", result)
}

fn run(options: &Options) -> Result<()> {
    if options.unmapped.is_some() {
        let text = "-M: GIDs without IP addresses (AF_IB) are not supported: use -m";
        return Err(text.into());
    }
    if options.no_loopback {
        let flag =
            "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, which soft-RoCE and most RoCE devices do not have";
        return Err(format!("-l: not supported: it needs queue pairs with {flag}").into());
    }
    let group = lookup(options.multicast.as_deref().unwrap_or_default(), 0)?;
    if !group.ip().is_multicast() {
        return Err(format!("-m {}: this is not a multicast address", group.ip()).into());
    }
    let source = match &options.bind {
        Some(host) => Some(lookup(host, 0)?),
        None => None,
    };
    println!("mckey: joining");
    let mut all = Vec::new();
    for _ in 0..options.connections {
        let events = EventChannel::new()?;
        let mut id = CmId::new(&events, options.port_space, 0)?;
        id.resolve_addr(source, group, RESOLVE)?;
        step(&events, CmEventType::ADDR_RESOLVED, TIME_LIMIT)?;
        let mut datagrams = Datagrams::new(id, options.count(), options.size)?;
        if options.send_only {
            datagrams.id.join_multicast_send_only(group)?;
        } else {
            datagrams.id.join_multicast(group)?;
        }
        let event = step(&events, CmEventType::MULTICAST_JOIN, TIME_LIMIT)?;
        let joined = event
            .ud()
            .ok_or("the join event does not contain the group's address")?;
        let address = joined.ah_attr.grh.unwrap_or_default().dgid;
        let (lid, level) = (joined.ah_attr.dlid, joined.ah_attr.sl);
        println!("mckey: joined dgid: {address} mlid 0x{lid:x} sl {level}");
        datagrams.set_peer(&joined.ah_attr, joined.qp_num, joined.qkey)?;
        all.push(datagrams);
    }
    if options.count() > 0 {
        if options.sender {
            thread::sleep(SWITCHES);
            println!("initiating data transfers");
            for datagrams in &mut all {
                datagrams.send()?;
                datagrams.wait_sent()?;
            }
        } else {
            println!("receiving data transfers");
            for datagrams in &mut all {
                // Wait without a time limit, because the sender can start at any time.
                datagrams.wait_received(Duration::MAX)?;
            }
        }
        println!("data transfers complete");
    }
    for datagrams in &mut all {
        datagrams.id.leave_multicast(group)?;
    }
    Ok(())
}
