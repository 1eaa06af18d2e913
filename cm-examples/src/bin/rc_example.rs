//! The three operations of a reliable connection, one after the other: SEND, READ and WRITE. It
//! works with the classic program `RDMA_RC_example`.
//!
//! Run `rc_example` on one host and `rc_example HOST` on another. Without a connection manager,
//! both sides exchange the addresses of their queue pairs and buffers over TCP.
//!
//! 1. SEND: the server sends a text, and the client has posted a receive for it. Both sides take
//!    part.
//! 2. READ: the server puts another text into its buffer, and the client reads it from there. The
//!    server's processor takes no part.
//! 3. WRITE: the client writes a text into the server's buffer. The server finds it there later.
//!
//! The server takes no part in 2 and 3, so it does not know when it may read or change its buffer.
//! Before and after each step both sides send a byte over TCP and wait for the other's byte.
//!
//! Neither side sends the length of its buffer. Copies of the classic program differ in it: 16, 18
//! and 21 bytes, the length of their first text. The texts here fit the shortest, and the buffer
//! here is larger. The client assumes that the server's buffer is as long as its message. With
//! `--len` this program behaves like those copies.

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
use rdmsg::{
    status::WcStatus,
    verbs::{
        AccessFlags, CompletionQueue, Gid, MemoryRegion, Mtu, ProtectionDomain, QpCap, QpInitAttr,
        QueuePair, RecvWr, RemoteAddr, SendWr, Sge, Success, WorkCompletion,
    },
};

/// SEND, READ and WRITE on a reliable connection without the connection manager
#[derive(Parser)]
struct Options {
    /// The server. Without it this is the server
    host: Option<String>,
    /// TCP port for the exchange of addresses
    #[arg(short, long, default_value_t = 19875)]
    port: u16,
    /// Device [default: the first one]
    #[arg(short = 'd', long, value_name = "NAME")]
    ib_dev: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Index of the port's GID [default on Ethernet: the first one of RoCE version 2, of IPv4 if
    /// there is one]
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Send, read and write all of a buffer of this many bytes, as copies of the classic program do
    #[arg(short, long, value_name = "BYTES")]
    len: Option<usize>,
}

/// The texts for SEND, READ and WRITE.
const TEXTS: [&str; 3] = ["SEND operation ", "READ operation ", "WRITE operation"];
const CLASSIC: [&str; 3] = [
    "SEND operation ",
    "RDMA read operation ",
    "RDMA write operation",
];
/// The length of each text of `TEXTS` in bytes, with a zero at its end.
const LEN: usize = 16;
/// The buffer's length in bytes.
const ROOM: usize = 4096;

/// The time limit of a step.
const TIME_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    end("rc_example", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let port = Port::open(options.ib_dev.as_deref(), options.ib_port, options.gid_idx)?;
    let side = Side::new(&port, options.len)?;
    let stream = meet(options.host.as_deref(), options.port)?;

    tell(&stream, &side.record(&port))?;
    let (peer, theirs) = parse(&hear(&stream, "where its buffer is")?)?;
    println!(
        "remote: {peer}, buffer at {:#x} with rkey {:#x}",
        theirs.addr, theirs.rkey
    );
    if options.host.is_some() {
        // The receive is posted before the server can send.
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
    // A message to a queue pair that is not ready is lost.
    synchronise(&stream, b'Q')?;
    match options.host {
        Some(_) => side.client(&stream, theirs),
        None => side.server(&stream),
    }
}

/// Reports that this side has reached a point, and waits until the other side has.
fn synchronise(stream: &TcpStream, point: u8) -> Result<()> {
    tell(stream, &[point])?;
    hear::<1>(stream, "that it has come as far").map(drop)
}

/// Parses the peer's record: address and key of its buffer, number of its queue pair, addresses of
/// its port, in network byte order.
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
    /// The length of each transfer, with `--len`.
    len: Option<usize>,
    texts: [&'static str; 3],
}

impl Side {
    fn new(port: &Port, len: Option<usize>) -> Result<Self> {
        let pd = ProtectionDomain::new(&port.context)?;
        let cq = CompletionQueue::new(&port.context, 2, None)?;
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, QpCap::default())
        };
        let qp = QueuePair::new(&pd, &attr)?;
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let memory = MemoryRegion::new(&pd, len.unwrap_or(ROOM), access)?;
        port.init(&qp, access)?;
        Ok(Self {
            qp,
            cq,
            memory,
            len,
            texts: if len.is_some() { CLASSIC } else { TEXTS },
        })
    }

    /// Returns the record of this side: see [`parse`].
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
        let len = self.len.unwrap_or(LEN);
        self.put(self.texts[0], len);
        let message = Sge::new(&self.memory, ..len);
        self.qp.post_send(&[SendWr::send(0, message)])?;
        // Devices report different statuses; the second of each pair is that of soft-RoCE.
        self.complete("SEND", |status| match status {
            WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => {
                format!("the client has less room than the {len} bytes of this message")
            }
            other => other.to_string(),
        })?;
        self.put(self.texts[1], len);
        let read = self.text();
        synchronise(stream, b'R')?;
        // The client reads and writes here, and this side learns only that it has finished.
        synchronise(stream, b'W')?;
        if self.show("Contents of server buffer") == read {
            return Err("the client has not written anything".into());
        }
        Ok(())
    }

    fn client(&self, stream: &TcpStream, theirs: RemoteAddr) -> Result<()> {
        let came = self.complete("the receive", |status| match status {
            WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR => format!(
                "the server's message is longer than the {} bytes that there is room for",
                self.memory.len()
            ),
            other => other.to_string(),
        })?;
        let len = self.len.unwrap_or(came.byte_len as usize);
        if len == 0 {
            return Err(
                "the server's message has 0 bytes: there is nothing to read and write".into(),
            );
        }
        self.show("Message is");
        synchronise(stream, b'R')?;
        self.put("", len);
        let access = |status| match status {
            WcStatus::REM_ACCESS_ERR => {
                format!("the server's buffer is not as long as its message of {len} bytes")
            }
            other => other.to_string(),
        };
        let buffer = Sge::new(&self.memory, ..len);
        self.qp.post_send(&[SendWr::read(0, buffer, theirs)])?;
        self.complete("READ", access)?;
        self.show("Contents of server's buffer");
        let len = self.len.unwrap_or_else(|| LEN.min(len));
        self.put(self.texts[2], len);
        self.show("Now replacing it with");
        let buffer = Sge::new(&self.memory, ..len);
        self.qp.post_send(&[SendWr::write(0, buffer, theirs)])?;
        self.complete("WRITE", access)?;
        synchronise(stream, b'W')
    }

    /// Waits for the completion of the pending work request.
    fn complete(&self, what: &str, problem: impl Fn(WcStatus) -> String) -> Result<Success> {
        let start = Instant::now();
        while start.elapsed() < TIME_LIMIT {
            let mut completions = [WorkCompletion::default()];
            if self.cq.poll(&mut completions)? > 0 {
                let done = completions[0].result();
                let failed = |_| format!("{what}: {}", problem(completions[0].status()));
                return Ok(done.map_err(failed)?);
            }
        }
        Err(format!("{what}: not done after {TIME_LIMIT:?}").into())
    }

    /// Copies a text into the buffer, up to `len` bytes, and fills the rest with zeros.
    fn put(&self, text: &str, len: usize) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(self.memory.len(), 0);
        // The buffer of a classic program may end without a zero.
        if self.len.is_none() {
            bytes[len - 1..].fill(0);
        }
        self.memory.copy_in(0, &bytes);
    }

    /// Returns the text in the buffer, up to the first zero.
    fn text(&self) -> String {
        let mut bytes = vec![0; self.memory.len()];
        self.memory.copy_out(0, &mut bytes);
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    fn show(&self, what: &str) -> String {
        let text = self.text();
        println!("{what}: {text:?}");
        text
    }
}
