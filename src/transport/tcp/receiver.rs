//! The receiving end of a queue pair: it executes requests of the peer, and handles answers to this
//! side's requests.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    incoming_payload::{IncomingPayload, Place, copy_shared},
    keys::{ExposedPart, Keys, Right},
    receive_queue::{Receive, ReceiveQueue},
    send_queue::SendQueue,
    socket::{Moved, Socket, Span, Wait, count_bytes},
    write_parts::WriteParts,
};
use crate::{
    os::lock,
    proto::{
        DrainSide, Violation,
        tcp::{Cause, Change, Pdu, RemoteSpan},
    },
    status::{OsError, WcStatus},
    transport::queues::{Done, WorkId},
};

/// The greatest number of bytes that one call receives into the staging buffer.
const STAGED: usize = 16 << 10;

/// The greatest number of bytes that one call stages after payload that is received in place: the
/// headers of the next PDUs, and little of their payload, which would have to be copied.
const LOOKAHEAD: usize = 512;

/// The length of a long payload. After a long payload no bytes are staged in the same call.
const LONG: usize = 32 << 10;

/// If at least [`MIN_AWAITED`] bytes of a payload are missing, a thread sleeps until the rest, but
/// at most [`MAX_AWAITED`] bytes, has arrived. A wake-up for each segment would cost more than
/// receiving its bytes.
const MIN_AWAITED: usize = 128 << 10;
const MAX_AWAITED: usize = 256 << 10;
/// The longest sleep of a thread that waits for the rest of a payload. Afterwards it receives the
/// bytes that have arrived, so that they count as a sign of life.
const LONGEST_AWAIT: Duration = Duration::from_millis(50);

/// The number of calls in a row, so that a peer which keeps sending does not delay others.
const MAX_CALLS: usize = 16;

/// The receiving end of a stream.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Received bytes; those at `unread` have not been processed.
    staged: Box<[u8]>,
    unread: Range<usize>,
    /// The payload that is being received.
    incoming: Option<IncomingPayload>,
    /// The number of executed requests of the peer.
    requests: u32,
    writes: WriteParts,
    /// Whether the stream has ended, and only staged bytes remain.
    over: bool,
    /// Whether later bytes are ignored.
    ended: bool,
    /// Whether the socket may hold more bytes.
    stopped: bool,
    /// Whether the last payload was long.
    long: bool,
    /// The number of bytes at which the socket becomes readable.
    awaited: usize,
}

/// The number of bytes that a call had room for: at their destination, and in the staging buffer.
struct Room {
    straight: usize,
    stage: usize,
}

/// The parts of the stream that execute incoming requests.
pub(super) struct Parts<'a> {
    pub(super) socket: &'a Socket,
    pub(super) send: &'a Mutex<SendQueue>,
    pub(super) receives: &'a ReceiveQueue,
    pub(super) keys: &'a Keys,
    /// Counts the bytes of answers to this side's READs.
    pub(super) read: &'a AtomicU64,
    pub(super) done: &'a mut VecDeque<Done>,
}

/// The reason that no more bytes can be received.
#[derive(Debug)]
pub(super) enum Fault {
    /// The peer violated the rules of the stream.
    Violation(Violation),
    /// A request of the peer failed, which gets a Nak.
    Refused,
    /// The system has no memory for the frame that begins.
    OutOfMemory(OsError),
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            staged: vec![0; STAGED].into(),
            unread: 0..0,
            incoming: None,
            requests: 0,
            writes: WriteParts::default(),
            over: false,
            ended: false,
            stopped: false,
            long: false,
            awaited: 1,
        }
    }

    /// Whether no further bytes can arrive, and all received bytes were processed.
    pub(super) fn has_ended(&self) -> bool {
        self.ended || (self.over && !self.stopped)
    }

    /// Receives bytes until the socket is empty or `enough` completions wait to be taken.
    pub(super) fn receive(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        if self.ended {
            return Ok(());
        }
        let result = self.receive_some(parts, enough);
        // Bytes after a fault are ignored.
        self.ended |= result.is_err();
        result
    }

    fn receive_some(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        self.stopped = true;
        for _ in 0..MAX_CALLS {
            self.take_staged(parts, enough)?;
            if parts.done.len() >= enough {
                return Ok(());
            }
            if self.over || !self.receive_once(parts, Wait::No)? {
                self.stopped = false;
                break;
            }
        }
        // Bytes in the socket make it readable; staged bytes would not.
        self.take_staged(parts, enough)?;
        self.stopped |= parts.done.len() >= enough;
        Ok(())
    }

    /// Waits until bytes arrive, unless some may have arrived already, and receives them. A wait
    /// for more of a long payload continues only while `may_continue` returns `true`.
    pub(super) fn wait(
        &mut self,
        parts: &mut Parts<'_>,
        enough: usize,
        may_continue: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        let result = self.wait_for_some(parts, enough, may_continue);
        self.ended |= result.is_err();
        // Less may be left.
        self.await_bytes(1, parts.socket);
        result
    }

    /// As [`wait`](Self::wait). If only the first bytes of a long payload have arrived, it waits
    /// for the rest, because there is nothing to process before.
    fn wait_for_some(
        &mut self,
        parts: &mut Parts<'_>,
        enough: usize,
        may_continue: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        let requests = self.requests;
        let mut flows = true;
        for _ in 0..MAX_CALLS {
            let left = self.left();
            let wait = if left >= MIN_AWAITED && flows {
                self.await_bytes(left.min(MAX_AWAITED), parts.socket);
                // The thread waits before the receive and not in it, because a receive would take
                // some bytes, and then wait for the same number again although fewer are missing.
                parts.socket.await_readable(LONGEST_AWAIT);
                Wait::No
            } else {
                self.await_bytes(1, parts.socket);
                Wait::ForSome
            };
            self.stopped = self.receive_once(parts, wait)?;
            self.take_staged(parts, enough)?;
            let to_do = !parts.done.is_empty() || self.requests != requests;
            flows = self.left() != left;
            let is_over = wait == Wait::ForSome && !flows;
            if to_do || is_over || self.is_exposed() || self.left() < LONG || !may_continue() {
                break;
            }
        }
        self.stopped |= parts.done.len() >= enough;
        Ok(())
    }

    /// Returns the number of missing bytes of the present payload.
    fn left(&self) -> usize {
        self.incoming.as_ref().map_or(0, |payload| payload.left)
    }

    /// Whether a thread may wait: no bytes are pending, and the wait delays no other thread. A
    /// thread must not wait while bytes are received directly into exposed memory, because the key
    /// of that memory cannot end meanwhile.
    pub(super) fn may_wait(&self) -> bool {
        !(self.ended || self.over || self.stopped || self.is_exposed())
    }

    /// Whether bytes are received directly into exposed memory.
    fn is_exposed(&self) -> bool {
        let to = self.incoming.as_ref().map(|payload| &payload.to);
        matches!(to, Some(Place::Exposed { .. }))
    }

    /// Whether the last call reached its limits, so that received bytes may still have to be
    /// processed.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped && !self.ended
    }

    fn await_bytes(&mut self, count: usize, socket: &Socket) {
        if self.awaited != count {
            self.awaited = count;
            socket.await_bytes(count);
        }
    }

    /// Receives once. Returns whether more bytes may have arrived.
    fn receive_once(&mut self, parts: &mut Parts<'_>, wait: Wait) -> Result<bool, Fault> {
        let (moved, room) = self.fill(parts.socket, wait);
        match moved {
            Moved::Some(count) => {
                self.came(count, room.straight, parts)?;
                // Later bytes make the socket readable.
                Ok(count == room.straight + room.stage)
            }
            Moved::Blocked => Ok(false),
            Moved::Ended => {
                self.over = true;
                Ok(false)
            }
        }
    }

    /// Processes staged bytes until a PDU is incomplete.
    fn take_staged(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        while parts.done.len() < enough {
            if let Some(incoming) = &mut self.incoming {
                let staged = &self.staged[self.unread.clone()];
                let count = staged.len().min(incoming.left);
                if count > 0 {
                    incoming.copy(&staged[..count]);
                    self.unread.start += count;
                    self.payload_received(count, parts)?;
                    continue;
                }
                if incoming.left > 0 {
                    return Ok(());
                }
                self.payload_received(0, parts)?;
                continue;
            }
            match Pdu::parse(&self.staged[self.unread.clone()])? {
                Some((pdu, len)) => {
                    self.unread.start += len;
                    self.begin(pdu, parts)?;
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Receives into the destination of the present payload, and then into the staging buffer.
    fn fill(&mut self, socket: &Socket, wait: Wait) -> (Moved, Room) {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.start > 0 {
            self.staged.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let end = self.unread.end;
        let stage = Span {
            // The pointer is in bounds, or one past the end.
            start: self.staged.as_mut_ptr().wrapping_add(end),
            len: self.staged.len() - end,
        };
        let receive = |rest: Option<Span>| {
            let mut ahead = stage;
            if rest.is_some() || self.long {
                ahead.len = stage.len.min(LOOKAHEAD);
            }
            let (spans, straight) = match rest {
                Some(rest) => ([rest, ahead], rest.len),
                None => ([ahead, ahead], 0),
            };
            let spans = if rest.is_some() {
                &spans[..]
            } else {
                &spans[1..]
            };
            let room = Room {
                straight,
                stage: spans[spans.len() - 1].len,
            };
            // SAFETY: this object owns the staging buffer, and there is no reference to it during
            // the call. The destination is memory of a work request, which belongs to the queue
            // pair until it completes, or exposed memory, whose lock is held.
            (unsafe { socket.receive(spans, wait) }, room)
        };
        match &self.incoming {
            None => receive(None),
            // If the key has ended, the bytes are refused when they are processed.
            Some(incoming) => incoming.with_rest(receive),
        }
    }

    /// Records `count` received bytes. Up to `straight` of them, from the first on, are at their
    /// destination.
    fn came(&mut self, count: usize, straight: usize, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let placed = count.min(straight);
        self.unread.end += count - placed;
        if placed > 0 {
            self.payload_received(placed, parts)?;
        }
        Ok(())
    }

    /// A PDU begins.
    fn begin(&mut self, pdu: Pdu, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let left = pdu.payload() as usize;
        let written = self.writes.check(&pdu)?;
        let to = match pdu {
            Pdu::Send { signalled, len } => {
                let receive = self.take_receive(parts)?;
                if left > receive.to.len {
                    if let WorkId::Recv(buffer) = receive.id {
                        parts.done.push_back(Done::ReceiveFailed {
                            buffer,
                            status: WcStatus::LOC_LEN_ERR,
                            vendor_err: 0,
                        });
                    }
                    return Err(self.refuse(Cause::TooLong, parts));
                }
                Place::Receive {
                    receive,
                    len,
                    signalled,
                }
            }
            Pdu::Write {
                signalled,
                last,
                at,
            } => Place::Exposed {
                part: self.exposed(at, Right::Write, parts)?,
                written,
                last,
                signalled,
                imm: None,
            },
            Pdu::WriteWithImm {
                signalled,
                at,
                imm_data,
            } => {
                let part = self.exposed(at, Right::Write, parts)?;
                let receive = self.take_receive(parts)?;
                Place::Exposed {
                    part,
                    written,
                    last: true,
                    signalled,
                    imm: Some((receive, imm_data)),
                }
            }
            Pdu::Read { at } => {
                let part = self.exposed(at, Right::Read, parts)?;
                lock(parts.send).answer_read(part)?;
                self.requests = self.requests.wrapping_add(1);
                return Ok(());
            }
            Pdu::Atomic { addr, rkey, change } => {
                let at = RemoteSpan { addr, rkey, len: 8 };
                let old = match self.exposed(at, Right::Atomic, parts)? {
                    Some(part) => apply(change, &part),
                    None => None,
                };
                let Some(old) = old else {
                    return Err(self.refuse(Cause::Access, parts));
                };
                lock(parts.send).answer_atomic(old)?;
                self.requests = self.requests.wrapping_add(1);
                return Ok(());
            }
            Pdu::Ack { requests } => {
                let mut send = lock(parts.send);
                send.acknowledge(requests)?;
                send.complete(parts.done);
                return Ok(());
            }
            Pdu::ReadPart { last, len } => Place::Answer {
                to: lock(parts.send).read_target(len, last)?,
                len,
                last,
            },
            Pdu::Old { value } => {
                let mut send = lock(parts.send);
                let to = send.atomic_target()?;
                let value = value.to_ne_bytes();
                let len = value.len().min(to.len);
                // SAFETY: the memory belongs to a work request, and so to the queue pair until the
                // request completes.
                unsafe { copy_shared(&value[..len], to.start) };
                send.answer_oldest();
                send.complete(parts.done);
                return Ok(());
            }
            Pdu::Nak { requests, cause } => {
                lock(parts.send).refused(requests, cause, parts.done)?;
                self.ended = true;
                return Err(Fault::Refused);
            }
        };
        self.long = left >= LONG;
        self.incoming = Some(IncomingPayload { left, to });
        Ok(())
    }

    #[inline]
    fn take_receive(&mut self, parts: &mut Parts<'_>) -> Result<Receive, Fault> {
        match parts.receives.take() {
            Some(receive) => Ok(receive),
            None => self.take_another(parts),
        }
    }

    #[cold]
    fn take_another(&mut self, parts: &mut Parts<'_>) -> Result<Receive, Fault> {
        match parts.receives.take_another() {
            Ok(Some(receive)) => Ok(receive),
            Ok(None) => Err(self.refuse(Cause::NoReceive, parts)),
            Err(error) => Err(Fault::OutOfMemory(error)),
        }
    }

    /// Records that `count` further bytes of the payload are at their destination. Executes the PDU
    /// after the last one.
    fn payload_received(&mut self, count: usize, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        if !incoming.is_open() {
            // The receive that the payload may have taken stays in `incoming`, and is flushed with
            // the others.
            return Err(self.refuse(Cause::Access, parts));
        }
        incoming.left -= count;
        if let Place::Answer { .. } = incoming.to {
            count_bytes(parts.read, count);
        }
        if incoming.left > 0 {
            return Ok(());
        }
        let Some(IncomingPayload { to, .. }) = self.incoming.take() else {
            return Ok(());
        };
        match to {
            Place::Receive {
                receive,
                len,
                signalled,
            } => {
                if let WorkId::Recv(buffer) = receive.id {
                    parts.done.push_back(Done::Received { buffer, len });
                }
                self.request_completed(signalled, parts);
            }
            Place::Exposed {
                written: len,
                last,
                signalled,
                imm,
                ..
            } => {
                if let Some((
                    Receive {
                        id: WorkId::Recv(buffer),
                        ..
                    },
                    imm_data,
                )) = imm
                {
                    parts.done.push_back(Done::Immediate {
                        buffer,
                        imm_data,
                        len,
                    });
                }
                if last {
                    self.request_completed(signalled, parts);
                }
            }
            Place::Answer { len, last, .. } => {
                let mut send = lock(parts.send);
                send.read_moved(len, last);
                send.complete(parts.done);
            }
        }
        Ok(())
    }

    /// Counts an executed request of the peer.
    fn request_completed(&mut self, signalled: bool, parts: &mut Parts<'_>) {
        self.requests = self.requests.wrapping_add(1);
        if signalled {
            lock(parts.send).acknowledge_peer(self.requests);
        }
    }

    /// Returns the memory that the peer addresses. An access to no bytes needs no right, as over
    /// RDMA.
    fn exposed(
        &mut self,
        at: RemoteSpan,
        right: Right,
        parts: &mut Parts<'_>,
    ) -> Result<Option<ExposedPart>, Fault> {
        if at.len == 0 {
            return Ok(None);
        }
        match parts.keys.find(at.rkey, at.addr, at.len, right) {
            Some(part) => Ok(Some(part)),
            None => Err(self.refuse(Cause::Access, parts)),
        }
    }

    /// Refuses the peer's next request, which ends the connection.
    fn refuse(&mut self, cause: Cause, parts: &mut Parts<'_>) -> Fault {
        self.ended = true;
        lock(parts.send).refuse_peer(self.requests, cause);
        Fault::Refused
    }

    /// Returns all posted receives as failed: those of `receives`, if this connection owns them,
    /// and the one that a frame has begun to fill.
    pub(super) fn flush(&mut self, receives: Option<&ReceiveQueue>, done: &mut VecDeque<Done>) {
        self.ended = true;
        let began = match self.incoming.take().map(|payload| payload.to) {
            Some(Place::Receive { receive, .. }) => Some(receive),
            Some(Place::Exposed {
                imm: Some((receive, _)),
                ..
            }) => Some(receive),
            Some(Place::Exposed { imm: None, .. } | Place::Answer { .. }) | None => None,
        };
        let posted = std::iter::from_fn(|| receives.and_then(ReceiveQueue::take_back));
        for receive in began.into_iter().chain(posted) {
            match receive.id {
                WorkId::Recv(buffer) => done.push_back(Done::ReceiveFailed {
                    buffer,
                    status: WcStatus::WR_FLUSH_ERR,
                    vendor_err: 0,
                }),
                WorkId::DrainRecv => done.push_back(Done::Drained(DrainSide::Recv)),
                WorkId::Send(_) | WorkId::DrainSend | WorkId::Invalidation => {}
            }
        }
    }

    /// Forgets the present payload, whose memory may no longer exist.
    pub(super) fn forget(&mut self) {
        self.ended = true;
        self.incoming = None;
    }
}

/// Changes a word of exposed memory, and returns its old value.
pub(in crate::transport) fn apply(change: Change, part: &ExposedPart) -> Option<u64> {
    let start = part.start()?;
    let word = start.get().cast::<u64>().as_ptr();
    // SAFETY: eight bytes of mapped memory, aligned as `find` checked. Other threads of this
    // program access it as atomic words, too (`SharedBytes`).
    let word = unsafe { AtomicU64::from_ptr(word) };
    Some(match change {
        Change::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
        Change::CompareSwap { compare, swap } => word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|old| old),
    })
}
