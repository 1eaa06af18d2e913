//! Two queue pairs that play ping-pong. The program connects them itself, without the connection
//! manager. It works with the C program `ibv_rc_pingpong`.
//!
//! Run `rc_pingpong` on one host and `rc_pingpong HOST` on another.
//!
//! 1. Each side makes a queue pair, in state INIT, and posts receives. That far it needs to know
//!    nothing of the other.
//! 2. Over TCP they exchange their addresses: local address, queue pair number, the number of the
//!    first packet, global address.
//! 3. Now each moves its queue pair to RTR, ready to receive, and RTS, ready to send. The server
//!    does so before it answers, so that it is ready when the client is.
//! 4. The client sends, and each side sends again when it has received and its own last message is
//!    through.

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use cm_examples::{
    Result,
    bare::{Peer, Port, Terms, first_psn, hear, meet, mtu, tell},
    end, init_debug,
    ping_pong::{PingPong, Place, Rules},
};
use rdmsg::verbs::{AccessFlags, Mtu};

/// Ping-pong between two hosts on a reliable connection without the connection manager
#[derive(Parser)]
struct Options {
    /// The server. Without it this is the server
    host: Option<String>,
    /// TCP port for the exchange of addresses
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Device [default: the first one]
    #[arg(short = 'd', long, value_name = "NAME")]
    ib_dev: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Bytes of a message, the same on both sides
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
    /// Receives that are posted at a time
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=16384))]
    rx_depth: u32,
    /// Messages each way, the same on both sides
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: u8,
    /// Sleep until there are completions, instead of polling
    #[arg(short, long)]
    events: bool,
    /// Index of the port's GID [default on Ethernet: the first one of RoCE version 2, of IPv4 if
    /// there is one]
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Check every byte of the last message
    #[arg(short, long)]
    chk: bool,
    /// Take pages when the device needs them (on-demand paging), instead of pinning them
    #[arg(short, long)]
    odp: bool,
    /// The same, with a region that covers all memory
    #[arg(short = 'O', long)]
    iodp: bool,
    /// With -o or -O: have the device fetch the pages first
    #[arg(short = 'P', long)]
    prefetch: bool,
    /// Put messages into the device's own memory
    #[arg(short = 'j', long, conflicts_with_all = ["odp", "iodp"])]
    dm: bool,
    /// Read the arrival times of messages, by the device's clock
    #[arg(short, long)]
    ts: bool,
    /// Post with the functions of ibv_wr_post, one for each part of a request
    #[arg(short = 'N', long)]
    new_send: bool,
    /// Allow memory that is not protected, in a confidential guest
    #[arg(short = 'U', long)]
    allow_cc_unprotected: bool,
}

/// The client's message when it knows the server's address.
const DONE: &[u8; 5] = b"done\0";

impl Options {
    fn rules(&self) -> Result<Rules> {
        let place = match self {
            Self { dm: true, .. } => Place::Device,
            Self { iodp: true, .. } => Place::Implicit,
            Self { odp: true, .. } => Place::OnDemand,
            _ => Place::Pinned,
        };
        if self.prefetch && !matches!(place, Place::OnDemand | Place::Implicit) {
            return Err("-P: only what is taken on demand (-o, -O) can be fetched first".into());
        }
        if self.allow_cc_unprotected {
            let lacks = "regions that a confidential guest shares with its host";
            return Err(format!("-U: rdmsg does not support {lacks}").into());
        }
        Ok(Rules {
            size: self.size,
            iters: self.iters,
            rx_depth: self.rx_depth,
            begins: self.host.is_some(),
            events: self.events,
            check: self.chk,
            timestamps: self.ts,
            new_send: self.new_send,
            prefetch: self.prefetch,
            place,
        })
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    end("rc_pingpong", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let port = Port::open(options.ib_dev.as_deref(), options.ib_port, options.gid_idx)?;
    let mut game = PingPong::new(&port.context, options.rules()?)?;
    port.init(&game.qp, AccessFlags::empty())?;
    game.post_receives(options.rx_depth)?;
    let psn = first_psn();
    let us = Peer {
        lid: port.attr.lid,
        qp_num: game.qp.qp_num(),
        psn,
        gid: port.gid,
    };
    println!("  local address:  {us}");
    let terms = Terms {
        mtu: options.mtu,
        sl: options.sl,
        psn,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
    };
    let stream = meet(options.host.as_deref(), options.port)?;
    let another = |error| format!("{error}. Is it ibv_rc_pingpong, and neither of its siblings?");
    let hear_address = || Peer::from_text(&hear(&stream, "its address")?);
    let them;
    if options.host.is_some() {
        tell(&stream, &us.to_text())?;
        them = hear_address().map_err(another)?;
        tell(&stream, DONE)?;
        port.connect(&game.qp, &them, &terms)?;
    } else {
        them = hear_address().map_err(another)?;
        port.connect(&game.qp, &them, &terms)?;
        tell(&stream, &us.to_text())?;
        let done: [u8; DONE.len()] = hear(&stream, "that it is done").map_err(another)?;
        if done != *DONE {
            let came = done.escape_ascii();
            return Err(format!(
                "the peer sent \"{came}\", where \"done\" is expected: it is no ibv_rc_pingpong (ibv_srq_pingpong sends many addresses)"
            )
            .into());
        }
    }
    println!("  remote address: {them}");
    drop(stream);

    let start = Instant::now();
    game.play()?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = u64::from(options.size) * u64::from(options.iters) * 2;
    let rate = bytes as f64 * 8.0 / 1e6 / seconds;
    println!("{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec");
    let each = seconds * 1e6 / f64::from(options.iters);
    println!(
        "{} iters in {seconds:.2} seconds = {each:.2} usec/iter",
        options.iters
    );
    if let Some([least, mean, most]) = game.between_receives() {
        println!("Max receive completion clock cycles = {most}");
        println!("Min receive completion clock cycles = {least}");
        println!("Average receive completion clock cycles = {mean}");
    }
    if options.chk { game.check() } else { Ok(()) }
}
