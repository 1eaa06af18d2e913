//! The three things that a reliable connection does, one after the other: SEND, READ and WRITE. It speaks to the classic `RDMA_RC_example`.
//!
//! Run `rc_example` on one host and `rc_example HOST` on another. The two meet over TCP, as there is no connection manager here, and tell each
//! other where their queue pairs and their buffers are.
//!
//! 1. SEND: the server sends a text, and the client has posted a receive for it. Both sides take part.
//! 2. READ: the server puts another text into its buffer, and the client reads it from there. The server's processor takes no part.
//! 3. WRITE: the client writes a text into the server's buffer. The server sees it there, when it looks.
//!
//! Because the server takes no part in 2 and 3, it has to be told when it may look, or change its buffer: before and after each step
//! both sides say a byte over TCP and wait for the other's.

use std::{
    net::TcpStream,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use cm_examples::{
    Result,
    bare::{Peer, Port, Terms, hear, meet, tell},
    end, init_debug,
};
use rdmsg::verbs::{
    AccessFlags, CompletionQueue, Gid, MemoryRegion, Mtu, ProtectionDomain, QpCap, QpInitAttr,
    QpType, QueuePair, RecvWr, RemoteAddr, SendWr, Sge, WorkCompletion,
};

/// SEND, READ and WRITE on a reliable connection made by hand
#[derive(Parser)]
struct Options {
    /// The server. Without it this is the server
    host: Option<String>,
    /// TCP port on which the two meet
    #[arg(short, long, default_value_t = 19875)]
    port: u16,
    /// Device [default: the first one]
    #[arg(short = 'd', long, value_name = "NAME")]
    ib_dev: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Index of the port's GID [default on Ethernet: the first one of RoCE version 2, of IPv4 if there is one]
    #[arg(short, long)]
    gid_idx: Option<u8>,
}

/// The texts, each with a zero at its end. They are as long as one another, as in C, where their length is that of the buffer.
const SENT: &[u8; LEN] = b"SEND operation      \0";
const READ: &[u8; LEN] = b"RDMA read operation \0";
const WRITTEN: &[u8; LEN] = b"RDMA write operation\0";
const LEN: usize = 21;

/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    end("rc_example", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let port = Port::open(options.ib_dev.as_deref(), options.ib_port, options.gid_idx)?;
    let side = Side::new(&port)?;
    let stream = meet(options.host.as_deref(), options.port)?;

    tell(&stream, &side.record(&port))?;
    let (peer, theirs) = parse(&hear(&stream, "where its buffer is")?)?;
    println!(
        "remote: {peer}, buffer at {:#x} with rkey {:#x}",
        theirs.addr, theirs.rkey
    );
    if options.host.is_some() {
        // Before the server can send.
        side.qp
            .post_recv(&[RecvWr::new(0, Sge::new(&side.memory, ..))])?;
    }
    let terms = Terms {
        mtu: Mtu::MTU_256,
        sl: 0,
        psn: 0,
        min_rnr_timer: 0x12,
        timeout: 0x12,
        retry_cnt: 6,
        rnr_retry: 0,
    };
    port.connect(&side.qp, &peer, &terms)?;
    // What is sent to a queue pair that is not ready is lost.
    meet_again(&stream, b'Q')?;
    match options.host {
        Some(_) => side.client(&stream, theirs),
        None => side.server(&stream),
    }
}

/// Says to have come to a point, and waits until the other side has.
fn meet_again(stream: &TcpStream, point: u8) -> Result<()> {
    tell(stream, &[point])?;
    hear::<1>(stream, "that it has come as far").map(drop)
}

/// Reads what the peer says of itself: address and key of its buffer, number of its queue pair, addresses of its port, in network order.
fn parse(record: &[u8; 34]) -> Result<(Peer, RemoteAddr)> {
    let number = |at: usize, len: usize| {
        let bytes = record[at..at + len].iter();
        bytes.fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    };
    let mut gid = [0; 16];
    gid.copy_from_slice(&record[18..]);
    let peer = Peer {
        lid: number(16, 2) as u16,
        qp_num: number(12, 4) as u32,
        psn: 0,
        gid: Gid::new(gid),
    };
    let buffer = RemoteAddr {
        addr: number(0, 8),
        rkey: number(8, 4) as u32,
    };
    if buffer.addr == 0 || peer.qp_num >= 1 << 24 {
        return Err("what the peer says of itself cannot be: is it rc_example?".into());
    }
    Ok((peer, buffer))
}

/// A queue pair and its one buffer, which the peer may read and write.
struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Side {
    fn new(port: &Port) -> Result<Self> {
        let pd = ProtectionDomain::new(&port.context)?;
        let cq = CompletionQueue::new(&port.context, 2, None)?;
        let attr = QpInitAttr {
            qp_type: QpType::RC,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: true,
        };
        let qp = QueuePair::new(&pd, &attr)?;
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let memory = MemoryRegion::new(&pd, LEN, access)?;
        port.init(&qp, access)?;
        Ok(Self { qp, cq, memory })
    }

    /// What this side says of itself: see [`parse`].
    fn record(&self, port: &Port) -> [u8; 34] {
        let mut record = [0; 34];
        record[..8].copy_from_slice(&self.memory.addr().to_be_bytes());
        record[8..12].copy_from_slice(&self.memory.rkey().to_be_bytes());
        record[12..16].copy_from_slice(&self.qp.qp_num().to_be_bytes());
        record[16..18].copy_from_slice(&port.attr.lid.to_be_bytes());
        record[18..].copy_from_slice(&port.gid.octets());
        record
    }

    fn server(&self, stream: &TcpStream) -> Result<()> {
        self.memory.copy_in(0, SENT);
        self.qp
            .post_send(&[SendWr::send(0, Sge::new(&self.memory, ..))])?;
        self.complete("SEND")?;
        self.memory.copy_in(0, READ);
        meet_again(stream, b'R')?;
        // The client reads and writes here, of which this side learns nothing but that it has.
        meet_again(stream, b'W')?;
        self.expect("Contents of server buffer", WRITTEN)
    }

    fn client(&self, stream: &TcpStream, theirs: RemoteAddr) -> Result<()> {
        self.complete("the receive")?;
        self.expect("Message is", SENT)?;
        meet_again(stream, b'R')?;
        self.qp
            .post_send(&[SendWr::read(0, Sge::new(&self.memory, ..), theirs)])?;
        self.complete("READ")?;
        self.expect("Contents of server's buffer", READ)?;
        self.memory.copy_in(0, WRITTEN);
        println!("Now replacing it with: {:?}", text(WRITTEN));
        self.qp
            .post_send(&[SendWr::write(0, Sge::new(&self.memory, ..), theirs)])?;
        self.complete("WRITE")?;
        meet_again(stream, b'W')
    }

    /// Waits for the one work request that is not done.
    fn complete(&self, what: &str) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let mut completions = [WorkCompletion::default()];
            if self.cq.poll(&mut completions)? > 0 {
                completions[0]
                    .result()
                    .map_err(|error| format!("{what}: {error}"))?;
                return Ok(());
            }
        }
        Err(format!("{what}: not done after {PATIENCE:?}").into())
    }

    /// Shows what is in the buffer, which must be this.
    fn expect(&self, what: &str, wanted: &[u8; LEN]) -> Result<()> {
        let mut bytes = [0; LEN];
        self.memory.copy_out(0, &mut bytes);
        println!("{what}: {:?}", text(&bytes));
        if bytes != *wanted {
            return Err(format!("expected was {:?}", text(wanted)).into());
        }
        Ok(())
    }
}

/// A text without the zero at its end.
fn text(bytes: &[u8; LEN]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end_matches('\0')
        .to_owned()
}
