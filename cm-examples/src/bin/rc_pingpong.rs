//! Two queue pairs that are connected by hand, without the connection manager, and play ping-pong. It speaks to the C program
//! `ibv_rc_pingpong`.
//!
//! Run `rc_pingpong` on one host and `rc_pingpong HOST` on another.
//!
//! 1. Each side makes a queue pair, in state INIT, and posts receives. That far it needs to know nothing of the other.
//! 2. Over TCP they tell each other where they are: local address, queue pair number, the number of the first packet, global address.
//! 3. Now each moves its queue pair to RTR, ready to receive, and RTS, ready to send. The server does so before it answers, so that it
//!    is ready when the client is.
//! 4. The client sends, and each side sends again when it has received and its own last message is through.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use cm_examples::{
    Result,
    bare::{Peer, Port, Terms, first_psn, hear, meet, mtu, tell},
    end, init_debug,
};
use rdmsg::verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, MemoryRegion, Mtu, ProtectionDomain, QpCap,
    QpInitAttr, QpType, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
};

/// Ping-pong between two hosts on a reliable connection made by hand
#[derive(Parser)]
struct Options {
    /// The server. Without it this is the server
    host: Option<String>,
    /// TCP port on which the two meet
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
    /// Index of the port's GID [default on Ethernet: the first one of RoCE version 2, of IPv4 if there is one]
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Check every byte of the last message
    #[arg(short, long)]
    chk: bool,
}

/// How long nothing may come. A peer that is gone is not told of: there is no connection manager.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a message is made of where nobody checks.
const FILLING: u8 = 0x7b;
/// The C program looks at the first byte of each page, which must be zero.
const PAGE: usize = 4096;
/// Which work request a completion is of.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    end("rc_pingpong", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let port = Port::open(options.ib_dev.as_deref(), options.ib_port, options.gid_idx)?;
    let mut game = Game::new(&port, options)?;
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
    let them;
    if options.host.is_some() {
        tell(&stream, &us.to_text())?;
        them = Peer::from_text(&hear(&stream, "its address")?)?;
        tell(&stream, b"done\0")?;
        port.connect(&game.qp, &them, &terms)?;
    } else {
        them = Peer::from_text(&hear(&stream, "its address")?)?;
        port.connect(&game.qp, &them, &terms)?;
        tell(&stream, &us.to_text())?;
        hear::<5>(&stream, "that it is done")?;
    }
    println!("  remote address: {them}");
    drop(stream);

    let start = Instant::now();
    game.play(options)?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = u64::from(options.size) * u64::from(options.iters) * 2;
    let rate = bytes as f64 * 8.0 / 1e6 / seconds;
    println!("{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec");
    let each = seconds * 1e6 / f64::from(options.iters);
    println!(
        "{} iters in {seconds:.2} seconds = {each:.2} usec/iter",
        options.iters
    );
    if options.chk {
        game.check(options.host.is_some())
    } else {
        Ok(())
    }
}

/// A queue pair, and one place in memory for what is sent and what is received.
struct Game {
    qp: QueuePair,
    cq: CompletionQueue,
    done: CompletionChannel,
    memory: MemoryRegion,
}

impl Game {
    fn new(port: &Port, options: &Options) -> Result<Self> {
        let pd = ProtectionDomain::new(&port.context)?;
        let done = CompletionChannel::new(&port.context)?;
        let cq = CompletionQueue::new(&port.context, options.rx_depth + 1, Some((&done, 0)))?;
        let cap = QpCap {
            max_recv_wr: options.rx_depth,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            qp_type: QpType::RC,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap,
            sq_sig_all: true,
        };
        let qp = QueuePair::new(&pd, &attr)?;
        let memory = MemoryRegion::new(&pd, options.size as usize, AccessFlags::LOCAL_WRITE)?;
        let filling = if options.chk {
            content(options.size as usize)
        } else {
            vec![FILLING; options.size as usize]
        };
        memory.copy_in(0, &filling);
        port.init(&qp, AccessFlags::empty())?;
        let game = Self {
            qp,
            cq,
            done,
            memory,
        };
        game.post_receives(options.rx_depth)?;
        Ok(game)
    }

    fn post_receives(&self, count: u32) -> Result<()> {
        for _ in 0..count {
            self.qp
                .post_recv(&[RecvWr::new(RECEIVE, Sge::new(&self.memory, ..))])?;
        }
        Ok(())
    }

    fn send(&self) -> Result<()> {
        Ok(self
            .qp
            .post_send(&[SendWr::send(SEND, Sge::new(&self.memory, ..))])?)
    }

    fn play(&mut self, options: &Options) -> Result<()> {
        let (mut posted, mut sent, mut received) = (options.rx_depth, 0, 0);
        // What this side waits for before it sends: to have received, and that the device is done with its last message.
        let mut sending = options.host.is_some();
        let mut answered = false;
        if sending {
            self.send()?;
        }
        while sent < options.iters || received < options.iters {
            for id in self.completions(options)? {
                if id == SEND {
                    sent += 1;
                    sending = false;
                    continue;
                }
                received += 1;
                answered = true;
                posted -= 1;
                if posted <= 1 {
                    self.post_receives(options.rx_depth - posted)?;
                    posted = options.rx_depth;
                }
            }
            if answered && !sending && sent < options.iters {
                self.send()?;
                (sending, answered) = (true, false);
            }
        }
        Ok(())
    }

    /// Waits for the next completions.
    fn completions(&mut self, options: &Options) -> Result<Vec<u64>> {
        let start = Instant::now();
        loop {
            if options.events {
                // To miss nothing: first ask for a sign, then look, then sleep.
                self.cq.req_notify(false)?;
            }
            let mut completions = [WorkCompletion::default(); 2];
            let count = self.cq.poll(&mut completions)?;
            if count > 0 {
                let ids = completions[..count]
                    .iter()
                    .map(|done| Ok(done.result()?.wr_id));
                return ids.collect();
            }
            let late = if options.events {
                self.done.wait_event(PATIENCE)?.is_none()
            } else {
                start.elapsed() > PATIENCE
            };
            if late {
                return Err(format!(
                    "no message for {PATIENCE:?}: -s, -n and -m must be the same on both sides"
                )
                .into());
            }
        }
    }

    /// Checks every byte of what came last: what the client sends comes back to it.
    fn check(&self, is_client: bool) -> Result<()> {
        let mut came = vec![0; self.memory.len()];
        self.memory.copy_out(0, &mut came);
        let ours = content(came.len());
        // The C program has other content, but for the first bytes of pages.
        let theirs = |at: usize| if at.is_multiple_of(PAGE) { 0 } else { FILLING };
        let wrong = |at: &usize| came[*at] != ours[*at] && (is_client || came[*at] != theirs(*at));
        match (0..came.len()).find(wrong) {
            Some(at) => Err(format!("invalid data in page {}, at byte {at}", at / PAGE).into()),
            None => Ok(()),
        }
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| {
            if at.is_multiple_of(PAGE) {
                0
            } else {
                ((at * 31) >> 3) as u8
            }
        })
        .collect()
}
