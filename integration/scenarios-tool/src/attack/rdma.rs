//! An attacker's side of a connection over RDMA. It calls the verbs and the connection manager
//! directly, without the library's endpoints and streams.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use rdmsg::{
    cm::{CmEvent, CmId, ConnParam, EventChannel, PortSpace, PrivateData},
    status::CmEventType,
    verbs::{
        AccessFlags, CompletionQueue, MemoryRegion, ProtectionDomain, QpCap, QpInitAttr, QueuePair,
        RecvWr, RemoteAddr, SendWr, Sge, WorkCompletion,
    },
};
use toolbox::Lab;

use super::{
    arena::Arena,
    connection::{Leave, Pace, State, Wire},
    mutation,
    wire::Descriptor,
};

/// The depth of the send queue and of the receive queue, in work requests.
const DEPTH: u32 = 64;
/// The size of a slot, in bytes. A slot is the buffer of one work request, and is longer than the
/// victim's longest frame.
const SLOT: usize = 1 << 16;
/// The work request id of all sends. The id of a receive is its slot's index, which is lower than
/// `SEND`.
const SEND: u64 = 1 << 32;

/// The time limit for each step of the setup.
const STEP: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Rdma {
    // Fields are dropped in order of declaration, and the queue pair must be dropped before the
    // objects that it uses.
    qp: QueuePair,
    cq: CompletionQueue,
    /// `DEPTH` slots for sending, followed by `DEPTH` slots for receiving.
    region: MemoryRegion,
    announced: Option<MemoryRegion>,
    id: CmId,
    channel: EventChannel,
    /// The number of posted sends.
    posted: u32,
    /// The number of posted sends that `flush` has counted against the rate limit for writes.
    flushed: u32,
    state: State,
}

impl Rdma {
    /// Connects with `hello` as private data. Returns the connection and the victim's hello.
    pub(super) fn connect(
        addr: SocketAddr,
        hello: &[u8],
        arena: &Arena<'_>,
    ) -> Result<(Self, Vec<u8>)> {
        let channel = EventChannel::new()?;
        let mut id = CmId::new(&channel, PortSpace::TCP, 1)?;
        id.resolve_addr(Lab::find()?.source(), addr, STEP)?;
        expect(&channel, CmEventType::ADDR_RESOLVED, arena)?;
        id.resolve_route(STEP)?;
        expect(&channel, CmEventType::ROUTE_RESOLVED, arena)?;
        let context = id.verbs().context("the id has no device")?;
        let pd = ProtectionDomain::new(&context)?;
        let cq = CompletionQueue::new(&context, 4 * DEPTH, None)?;
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = id.create_qp(&pd, &attr)?;
        let region = MemoryRegion::new(&pd, 2 * DEPTH as usize * SLOT, AccessFlags::LOCAL_WRITE)?;
        let mut peer = Self {
            qp,
            cq,
            region,
            announced: None,
            id,
            channel,
            posted: 0,
            flushed: 0,
            state: State::default(),
        };
        for slot in 0..DEPTH {
            peer.post_recv(slot)?;
        }
        let param = ConnParam {
            private_data: PrivateData::try_from(hello)?,
            responder_resources: u8::MAX,
            initiator_depth: u8::MAX,
            ..ConnParam::default()
        };
        peer.id.connect(&param)?;
        let established = expect(&peer.channel, CmEventType::ESTABLISHED, arena)?;
        Ok((peer, established.private_data().to_vec()))
    }

    fn post_recv(&self, slot: u32) -> Result<()> {
        let at = (DEPTH + slot) as usize * SLOT;
        let wr = RecvWr::new(slot.into(), Sge::new(&self.region, at..at + SLOT));
        self.qp.post_recv(&[wr])?;
        Ok(())
    }

    /// Copies the bytes to the next slot, and posts a work request that uses this slot. If more
    /// than `DEPTH` work requests are in flight, the copy can overwrite a slot that is still in
    /// use, or the post can fail. Both are harmless in an attack.
    fn post<'a>(&'a mut self, bytes: &[u8], make: impl FnOnce(Sge<'a>) -> SendWr<'a>) {
        let at = (self.posted % DEPTH) as usize * SLOT;
        self.posted = self.posted.wrapping_add(1);
        let len = bytes.len().min(SLOT);
        self.region.copy_in(at, &bytes[..len]);
        let this: &'a Self = self;
        let wr = make(Sge::new(&this.region, at..at + len));
        // Ignore the error. Posting fails if the send queue is full, which is harmless, or if the
        // connection has ended, which an event reports.
        let _ = this.qp.post_send(&[wr]);
    }
}

impl Wire for Rdma {
    fn state(&mut self) -> &mut State {
        &mut self.state
    }

    fn send_frame(&mut self, frame: &[u8]) {
        self.post(frame, |sge| SendWr::send(SEND, sge));
    }

    fn send_broken(&mut self, frame: &[u8], rng: &mut Rng) {
        let imm_data = rng.u32(..);
        self.post(frame, |sge| SendWr::send_with_imm(SEND, sge, imm_data));
    }

    fn operate(&mut self, mut token: [u8; 24], rng: &mut Rng) {
        if rng.u8(0..3) == 0 {
            mutation::token(&mut token, rng);
        }
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| token[at + byte]));
        let remote = RemoteAddr {
            addr: u64::from(word(0)) << 32 | u64::from(word(4)),
            rkey: word(16),
        };
        let (operation, imm_data) = (rng.u8(0..4), rng.u32(..));
        self.post(&vec![7; rng.usize(0..4096)], |sge| match operation {
            0 | 1 => SendWr::read(SEND, sge, remote),
            2 => SendWr::write(SEND, sge, remote),
            _ => SendWr::write_with_imm(SEND, sge, remote, imm_data),
        });
    }

    fn memory(&mut self, len: u64) -> Descriptor {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        let announced = MemoryRegion::new(self.qp.pd(), len as usize, access).ok();
        let descriptor = Descriptor {
            addr: announced.as_ref().map_or(0, |announced| announced.addr()),
            len,
            rkey: announced.as_ref().map_or(0, MemoryRegion::rkey),
            reserved: 0,
        };
        self.announced = announced;
        descriptor
    }

    fn flush(&mut self, arena: &Arena<'_>) {
        while self.flushed != self.posted && arena.may_write() {
            self.flushed = self.flushed.wrapping_add(1);
        }
        if matches!(self.state.pace, Pace::Stuck) {
            // In the error state, the device answers no READs and acknowledges no packets.
            let _ = self.qp.to_err();
            self.state.has_ended = true;
        }
    }

    fn poll(&mut self) {
        let mut some = [WorkCompletion::default(); 8];
        let Ok(count) = self.cq.poll(&mut some) else {
            self.state.has_ended = true;
            return;
        };
        for wc in &some[..count] {
            match wc.result() {
                Ok(success) if success.wr_id == SEND => {}
                Ok(success) => {
                    let slot = success.wr_id as u32;
                    let mut frame = vec![0; success.byte_len as usize];
                    let at = (DEPTH + slot) as usize * SLOT;
                    self.region.copy_out(at, &mut frame);
                    self.state.received.push_back(frame);
                    self.state.has_ended |= self.post_recv(slot).is_err();
                }
                Err(_) => self.state.has_ended = true,
            }
        }
        match self.channel.poll_event() {
            Ok(Some(event)) => self.state.has_ended |= event.event() == CmEventType::DISCONNECTED,
            Ok(None) => {}
            Err(_) => self.state.has_ended = true,
        }
    }

    fn leave(&mut self, leave: Leave) {
        match leave {
            Leave::Close | Leave::Half => drop(self.id.disconnect()),
            // The error state stops the queue pair immediately, and this step sends no disconnect.
            // The connection manager id is destroyed when `self` is dropped.
            Leave::Reset => drop(self.qp.to_err()),
        }
    }
}

/// Waits for the next event of the connection manager, which must have type `event`.
fn expect(channel: &EventChannel, event: CmEventType, arena: &Arena<'_>) -> Result<CmEvent> {
    let left = arena.end.saturating_duration_since(Instant::now());
    let received = channel.wait_event(left.clamp(Duration::from_millis(1), STEP))?;
    let received = received.context("no event of the connection manager arrived")?;
    let found = received.event();
    ensure!(found == event, "the event is {found} instead of {event}");
    Ok(received)
}
