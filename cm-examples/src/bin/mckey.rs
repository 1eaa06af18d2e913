//! Datagrams to a group of hosts. It speaks to the C program of the same name.
//!
//! Run `mckey -m 239.1.2.3 -b ADDR` on some hosts, each with its own address, and `mckey -m
//! 239.1.2.3 -b ADDR -s` on another. A host joins a group by its IP address. The connection manager
//! makes a global address of it, and returns the path, the number for all queue pairs, and the key
//! of the group. A datagram to them arrives at each queue pair whose id has joined.

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

/// Send datagrams to a multicast group, or receive its datagrams
#[derive(Parser)]
#[command(group(clap::ArgGroup::new("group").required(true).args(["multicast", "unmapped"])))]
struct Options {
    /// The group's IP address
    #[arg(short, value_name = "ADDRESS")]
    multicast: Option<String>,
    /// The group's global address, as it is; needs -b
    #[arg(short = 'M', value_name = "MGID", requires = "bind")]
    unmapped: Option<String>,
    /// Send; otherwise receive
    #[arg(short)]
    sender: bool,
    /// Address of the port to use [default: that of the route to the group]
    #[arg(short, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Members, each with a queue pair of its own
    #[arg(short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Datagrams that each sends or receives
    #[arg(short = 'C', default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10000))]
    count: u32,
    /// Bytes of a datagram, which is one packet; the same everywhere. 0 for no datagrams at all, as
    /// in C
    #[arg(short = 'S', default_value_t = 100)]
    size: u32,
    /// Port space by its number: 0x111 for UDP, 0x2 for IPoIB
    #[arg(short, value_name = "NUMBER", default_value = "0x111", value_parser = port_space)]
    port_space: PortSpace,
    /// Join as a sender only
    #[arg(short = 'o')]
    send_only: bool,
    /// Do not receive the datagrams of this queue pair itself
    #[arg(short = 'l')]
    no_loopback: bool,
}

impl Options {
    /// Returns the number of datagrams of each member, which is 0 if they have no bytes.
    fn count(&self) -> u32 {
        if self.size > 0 { self.count } else { 0 }
    }
}

/// The time limit of a step, and of one attempt to resolve an address.
const TIME_LIMIT: Duration = Duration::from_secs(20);
const RESOLVE: Duration = Duration::from_secs(2);
/// A pause in which switches may learn the members of a group, because they do not report it.
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
        let text = "-M: global addresses without IP addresses (AF_IB) are not supported: give -m";
        return Err(text.into());
    }
    if options.no_loopback {
        let missing =
            "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, which soft-RoCE and most RoCE devices do not have";
        return Err(format!("-l: not supported: it needs queue pairs with {missing}").into());
    }
    let group = lookup(options.multicast.as_deref().unwrap_or_default(), 0)?;
    if !group.ip().is_multicast() {
        return Err(format!("-m {}: that is no multicast address", group.ip()).into());
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
        let way = event.ud().ok_or("a group without an address")?;
        let address = way.ah_attr.grh.unwrap_or_default().dgid;
        let (lid, level) = (way.ah_attr.dlid, way.ah_attr.sl);
        println!("mckey: joined dgid: {address} mlid 0x{lid:x} sl {level}");
        datagrams.set_peer(&way.ah_attr, way.qp_num, way.qkey)?;
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
                // Waits without a limit until a host sends.
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
