//! A ping-pong between two queue pairs. The program connects the queue pairs itself, without the
//! connection manager. It interoperates with the C program `ibv_rc_pingpong`.
//!
//! Run `rc_pingpong` on one host and `rc_pingpong HOST` on another.
//!
//! 1. Each side creates a queue pair, moves it to the state INIT, and posts receives. This needs no
//!    information from the peer.
//! 2. Over TCP, the sides exchange their addresses: the LID of the port, the queue pair number, the
//!    sequence number of the first packet, and the GID of the port.
//! 3. Each side moves its queue pair to RTR (ready to receive) and RTS (ready to send). The server
//!    does this before it sends its address, so that its queue pair is ready when the client sends.
//! 4. The client sends. Each side sends its next message after it has received a message and its
//!    previous send has completed.

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use cm_examples::{
    Result, end, init_debug,
    ping_pong::{MemoryKind, PingPong, Rules},
    without_cm::{Peer, Port, Terms, connect_or_accept, first_psn, mtu, receive_bytes, send_bytes},
};
use rdmsg::verbs::{AccessFlags, Mtu};

/// Ping-pong between two hosts on a reliable connection without the connection manager
#[derive(Parser)]
struct Options {
    /// The host name or address of the server; without it, this program is the server
    host: Option<String>,
    /// The TCP port for the exchange of addresses
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// The name of the device [default: the first device]
    #[arg(short = 'd', long, value_name = "NAME")]
    ib_dev: Option<String>,
    /// The number of the device's port
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// The size of a message in bytes; must be the same on both sides
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
    /// The number of posted receives
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=16384))]
    rx_depth: u32,
    /// The number of messages in each direction; must be the same on both sides
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// The service level
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: u8,
    /// Sleep until an event reports completions, instead of polling
    #[arg(short, long)]
    events: bool,
    /// The index of the port's GID [default on Ethernet: the first RoCE v2 GID with an IPv4
    /// address; if there is none, the first with an IPv6 address]
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Check each byte of the final message
    #[arg(short, long)]
    chk: bool,
    /// Use on-demand paging: pages are not pinned, and the device loads a page when it is accessed
    #[arg(short, long)]
    odp: bool,
    /// Use on-demand paging with one memory region that covers all memory of the process
    #[arg(short = 'O', long)]
    iodp: bool,
    /// With -o or -O: the device loads the pages before it needs them
    #[arg(short = 'P', long)]
    prefetch: bool,
    /// Store the messages in the memory of the device
    #[arg(short = 'j', long, conflicts_with_all = ["odp", "iodp"])]
    dm: bool,
    /// Read the arrival times of the messages from the clock of the device
    #[arg(short, long)]
    ts: bool,
    /// Post sends with the ibv_wr_* functions, which set each part of a request separately
    #[arg(short = 'N', long)]
    new_send: bool,
    /// In a confidential virtual machine, allow memory that is not encrypted
    #[arg(short = 'U', long)]
    allow_cc_unprotected: bool,
}

/// The message that the client sends after it has received the server's address.
const DONE: &[u8; 5] = b"done\0";

impl Options {
    fn rules(&self) -> Result<Rules> {
        let memory_kind = match self {
            Self { dm: true, .. } => MemoryKind::Device,
            Self { iodp: true, .. } => MemoryKind::Implicit,
            Self { odp: true, .. } => MemoryKind::OnDemand,
            _ => MemoryKind::Pinned,
        };
        if self.prefetch && !matches!(memory_kind, MemoryKind::OnDemand | MemoryKind::Implicit) {
            return Err("-P requires on-demand paging (-o or -O)".into());
        }
        if self.allow_cc_unprotected {
            let regions = "regions that a confidential guest shares with its host";
            return Err(format!("-U: rdmsg does not support {regions}").into());
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
            memory_kind,
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
    let stream = connect_or_accept(options.host.as_deref(), options.port)?;
    let another = |error| format!("{error}. The peer must run ibv_rc_pingpong");
    let receive_address = || Peer::from_text(&receive_bytes(&stream, "its address")?);
    let them;
    if options.host.is_some() {
        send_bytes(&stream, &us.to_text())?;
        them = receive_address().map_err(another)?;
        send_bytes(&stream, DONE)?;
        port.connect(&game.qp, &them, &terms)?;
    } else {
        them = receive_address().map_err(another)?;
        port.connect(&game.qp, &them, &terms)?;
        send_bytes(&stream, &us.to_text())?;
        let done: [u8; DONE.len()] = receive_bytes(&stream, "its confirmation").map_err(another)?;
        if done != *DONE {
            let received = done.escape_ascii();
            return Err(format!(
                "the peer sent \"{received}\" instead of \"done\": it is not ibv_rc_pingpong"
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
