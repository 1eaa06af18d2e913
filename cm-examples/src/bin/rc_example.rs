//! Performs three operations on a reliable connection, one after another: SEND, READ and WRITE. The
//! program interoperates with the classic C program `RDMA_RC_example`.
//!
//! Run `rc_example` on one host and `rc_example HOST` on another. The program uses no connection
//! manager: both sides exchange the addresses of their queue pairs and buffers over TCP.
//!
//! 1. SEND: the server sends a text, and the client has posted a receive for it. Both programs are
//!    involved.
//! 2. READ: the server writes another text to its buffer, and the client reads that buffer. The
//!    server's processor is not involved.
//! 3. WRITE: the client writes a text to the server's buffer. The server reads its buffer later.
//!
//! The server is not involved in the READ and the WRITE, so it does not know when it can read or
//! change its buffer. Therefore both sides wait for each other before step 1, between steps 1
//! and 2, and after step 3: each side sends a byte over TCP, and waits for the byte from its peer.
//!
//! Neither side sends the length of its buffer, so the client assumes that the server's message
//! fills the server's buffer. In copies of the classic program, the buffer has the length of the
//! first text: 16, 18 or 21 bytes. The texts of this program fit into the shortest of these
//! buffers, and this program's own buffer is larger than all of them. With `--len`, this program
//! behaves like those copies.

use std::{
    net::TcpStream,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use cm_examples::{
    Result, end, init_debug,
    without_cm::{Peer, Port, Terms, connect_or_accept, receive_bytes, send_bytes},
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
    /// The host name or address of the server; without it, this program is the server
    host: Option<String>,
    /// The TCP port for the exchange of addresses
    #[arg(short, long, default_value_t = 19875)]
    port: u16,
    /// The name of the device [default: the first device]
    #[arg(short = 'd', long, value_name = "NAME")]
    ib_dev: Option<String>,
    /// The number of the device's port
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// The index of the port's GID [default on Ethernet: the first RoCE v2 GID with an IPv4
    /// address; if there is none, the first with an IPv6 address]
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Use a buffer of this number of bytes, and transfer the whole buffer, as some versions of the
    /// classic program do
    #[arg(short, long, value_name = "BYTES")]
    len: Option<usize>,
}

/// The texts for SEND, READ and WRITE: `TEXTS` without `--len`, and `CLASSIC` with `--len`.
const TEXTS: [&str; 3] = ["SEND operation ", "READ operation ", "WRITE operation"];
const CLASSIC: [&str; 3] = [
    "SEND operation ",
    "RDMA read operation ",
    "RDMA write operation",
];
/// The length in bytes of each text in `TEXTS`, including a terminating zero byte.
const LEN: usize = 16;
/// The length of the buffer in bytes if `--len` is not given.
const ROOM: usize = 4096;

/// The time limit for the completion of a work request.
const TIME_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    end("rc_example", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let port = Port::open(options.ib_dev.as_deref(), options.ib_port, options.gid_idx)?;
    let side = Side::new(&port, options.len)?;
    let stream = connect_or_accept(options.host.as_deref(), options.port)?;

    send_bytes(&stream, &side.record(&port))?;
    let (peer, theirs) = parse(&receive_bytes(&stream, "the address of its buffer")?)?;
    println!(
        "remote: {peer}, buffer at {:#x} with rkey {:#x}",
        theirs.addr, theirs.rkey
    );
    if options.host.is_some() {
        // Post the receive now, before the server is able to send.
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
    // A queue pair that is not ready yet drops messages. So wait until both queue pairs are ready.
    synchronise(&stream, b'Q')?;
    match options.host {
        Some(_) => side.client(&stream, theirs),
        None => side.server(&stream),
    }
}

/// Reports to the peer that this side has reached a point, and waits until the peer has reached the
/// same point.
fn synchronise(stream: &TcpStream, point: u8) -> Result<()> {
    send_bytes(stream, &[point])?;
    receive_bytes::<1>(stream, "the byte that ends the step").map(drop)
}

/// Parses the peer's record: the address and the key of its buffer, its queue pair number, and the
/// LID and the GID of its port. All values are in network byte order.
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
        return Err("the peer's record is invalid: the peer must run rc_example".into());
    }
    Ok((peer, buffer))
}

/// A queue pair and its buffer, which the peer can read and write.
struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    /// The length of each transfer in bytes, if `--len` is given.
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

    /// Returns this side's record in the format described at [`parse`].
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
        // If the client's buffer is too short, the status depends on the device. Soft-RoCE reports
        // REM_OP_ERR.
        self.complete("SEND", |status| match status {
            WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => {
                format!("the client's buffer is shorter than this message of {len} bytes")
            }
            other => other.to_string(),
        })?;
        self.put(self.texts[1], len);
        let read = self.text();
        synchronise(stream, b'R')?;
        // Between these two calls, the client reads and writes this buffer. The second call returns
        // when the client has finished.
        synchronise(stream, b'W')?;
        if self.show("Contents of server buffer") == read {
            return Err("the client has not written to the buffer".into());
        }
        Ok(())
    }

    fn client(&self, stream: &TcpStream, theirs: RemoteAddr) -> Result<()> {
        let completion = self.complete("the receive", |status| match status {
            WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR => format!(
                "the server's message is longer than the buffer of {} bytes",
                self.memory.len()
            ),
            other => other.to_string(),
        })?;
        let len = self.len.unwrap_or(completion.byte_len as usize);
        if len == 0 {
            return Err("the server's message has 0 bytes, so the server's buffer is empty".into());
        }
        self.show("Message is");
        synchronise(stream, b'R')?;
        self.put("", len);
        let access = |status| match status {
            WcStatus::REM_ACCESS_ERR => {
                format!("the server's buffer is shorter than its message of {len} bytes")
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
        Err(format!("{what}: not completed within {TIME_LIMIT:?}").into())
    }

    /// Writes a text to the first `len` bytes of the buffer, and fills the rest of the buffer with
    /// zeros.
    fn put(&self, text: &str, len: usize) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(self.memory.len(), 0);
        // Without `--len`, a zero byte ends the text. With `--len`, a text can fill the buffer and
        // then has no terminating zero byte, as in the classic program.
        if self.len.is_none() {
            bytes[len - 1..].fill(0);
        }
        self.memory.copy_in(0, &bytes);
    }

    /// Returns the text in the buffer, up to the first zero byte.
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
