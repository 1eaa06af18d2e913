//! A copy of the classic `RDMA_RC_example`, of which Debian has none, for `rc_example` to meet:
//! with a text, and so a buffer, of any length. Like those in C it posts, registers, reads and
//! writes exactly so many bytes, and says nowhere how many they are.

use std::{net::TcpStream, time::Duration};

use cm_examples::{
    Result,
    bare::{Peer, Port, Terms, hear, meet, tell},
};
use rdmsg::verbs::{
    AccessFlags, CompletionQueue, Gid, MemoryRegion, Mtu, ProtectionDomain, QpCap, QpInitAttr,
    QueuePair, RecvWr, RemoteAddr, SendWr, Sge, WorkCompletion,
};
use toolbox::Deadline;

const TCP_PORT: u16 = 19875;
const PATIENCE: Duration = Duration::from_secs(60);

/// The client of `server`, or without one the server, with a buffer of so many bytes.
pub(crate) fn play(len: usize, server: Option<&str>) -> Result<()> {
    let port = Port::open(None, 1, None)?;
    let pd = ProtectionDomain::new(&port.context)?;
    let cq = CompletionQueue::new(&port.context, 1, None)?;
    let attr = QpInitAttr {
        sq_sig_all: true,
        ..QpInitAttr::rc(&cq, QpCap::default())
    };
    let qp = QueuePair::new(&pd, &attr)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let memory = MemoryRegion::new(&pd, len, access)?;
    port.init(&qp, access)?;
    let stream = meet(server, TCP_PORT)?;
    tell(&stream, &record(&port, &qp, &memory))?;
    let (peer, theirs) = parse(&hear(&stream, "its record")?);
    if server.is_some() {
        qp.post_recv(&[RecvWr::new(0, Sge::new(&memory, ..))])?;
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
    port.connect(&qp, &peer, &terms)?;
    meet_at(&stream, b'Q')?;
    if server.is_none() {
        put(&memory, "SEND operation ");
        qp.post_send(&[SendWr::send(0, Sge::new(&memory, ..))])?;
        complete(&cq)?;
        put(&memory, "RDMA read operation ");
        meet_at(&stream, b'R')?;
        meet_at(&stream, b'W')?;
        show("Contents of server buffer", &memory);
        return Ok(());
    }
    complete(&cq)?;
    show("Message is", &memory);
    meet_at(&stream, b'R')?;
    qp.post_send(&[SendWr::read(0, Sge::new(&memory, ..), theirs)])?;
    complete(&cq)?;
    show("Contents of server's buffer", &memory);
    put(&memory, "RDMA write operation");
    qp.post_send(&[SendWr::write(0, Sge::new(&memory, ..), theirs)])?;
    complete(&cq)?;
    meet_at(&stream, b'W')
}

fn record(port: &Port, qp: &QueuePair, memory: &MemoryRegion) -> Vec<u8> {
    let mut record = memory.addr().to_be_bytes().to_vec();
    record.extend(memory.rkey().to_be_bytes());
    record.extend(qp.qp_num().to_be_bytes());
    record.extend(port.attr.lid.to_be_bytes());
    record.extend(port.gid.octets());
    record
}

fn parse(record: &[u8; 34]) -> (Peer, RemoteAddr) {
    let number = |at: usize, len: usize| {
        let bytes = record[at..at + len].iter();
        bytes.fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    };
    let gid = number(18, 8) as u128;
    let peer = Peer {
        lid: number(16, 2) as u16,
        qp_num: number(12, 4) as u32,
        psn: 0,
        gid: Gid::new((gid << 64 | u128::from(number(26, 8))).to_be_bytes()),
    };
    let theirs = RemoteAddr {
        addr: number(0, 8),
        rkey: number(8, 4) as u32,
    };
    (peer, theirs)
}

fn meet_at(stream: &TcpStream, point: u8) -> Result<()> {
    tell(stream, &[point])?;
    hear::<1>(stream, "that it has come as far").map(drop)
}

fn complete(cq: &CompletionQueue) -> Result<()> {
    let mut deadline = Deadline::after(PATIENCE);
    while !deadline.is_over() {
        let mut completions = [WorkCompletion::default()];
        if cq.poll(&mut completions)? > 0 {
            completions[0].result()?;
            return Ok(());
        }
    }
    Err("a work request does not complete".into())
}

/// Puts a text and a zero into the buffer, as much of it as fits.
fn put(memory: &MemoryRegion, text: &str) {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(memory.len(), 0);
    memory.copy_in(0, &bytes);
}

fn show(what: &str, memory: &MemoryRegion) {
    let mut bytes = vec![0; memory.len()];
    memory.copy_out(0, &mut bytes);
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    println!("{what}: '{}'", String::from_utf8_lossy(text));
}
