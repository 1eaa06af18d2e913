//! The receiving side of a queue pair: it executes requests of the peer, and handles answers to
//! this side's requests.
#![allow(unsafe_code)]

mod fragments;
mod staged;

use std::{
    cell::Cell,
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

pub(super) use self::fragments::Placement;
use self::{fragments::Fragments, staged::Staged};
use super::{
    incoming_payload::{IncomingPayload, Place, copy_shared},
    keys::{ExposedPart, Keys, Right},
    receive_queue::{Receive, ReceiveQueue},
    scratch::{Scratch, Spare},
    send_queue::SendQueue,
    socket::{Moved, Socket, Span, Wait, count_bytes},
    write_parts::WriteParts,
};
use crate::{
    os::lock,
    proto::{
        DrainSide, HEADER_LEN, Violation,
        tcp::{Cause, Change, PREFIX, Pdu, RemoteSpan},
    },
    status::{OsError, WcStatus},
    transport::queues::{Done, WorkId},
};

/// The maximum number of bytes that one call receives into the staging buffer.
const STAGED: usize = 16 << 10;

/// The maximum number of bytes that a call stages if it also receives payload directly into the
/// payload's destination. 512 bytes suffice for the headers of the next PDUs, and contain little of
/// these PDUs' payload, which would have to be copied.
const LOOKAHEAD: usize = 512;

/// The minimum length in bytes of a long payload: it does not fit into the staging buffer together
/// with its header. From the start of a long payload until a shorter payload begins, each call
/// stages at most [`LOOKAHEAD`] bytes.
const LONG: usize = STAGED - PREFIX + 1;

/// If at least [`MIN_AWAITED`] bytes of a payload are missing, a thread sleeps until all of them
/// have arrived, or until [`MAX_AWAITED`] bytes have arrived. A wake-up for each TCP segment would
/// cost more than receiving the segment's bytes.
const MIN_AWAITED: usize = 128 << 10;
const MAX_AWAITED: usize = 256 << 10;
/// The maximum duration of a thread's sleep until the missing bytes of a payload arrive. After the
/// sleep, the thread receives the bytes that have arrived, so that they count as a sign of life of
/// the peer.
const LONGEST_AWAIT: Duration = Duration::from_millis(50);

/// The maximum number of receive calls in a row, so that a peer that sends continuously does not
/// delay other connections.
const MAX_CALLS: usize = 16;

thread_local! {
    static SPARE: Spare = const { Cell::new(None) };
}

/// The receiving side of a stream.
#[derive(Debug)]
pub(super) struct Receiver {
    /// The staging buffer. The bytes in the range `unread` are received and not yet processed. The
    /// receiver has the buffer only during a call, or while `unread` is not empty.
    staged: Scratch,
    unread: Range<usize>,
    /// The payload that is being received.
    incoming: Option<IncomingPayload>,
    /// The number of executed requests of the peer. Only the receiver changes it.
    executed: Arc<AtomicU32>,
    writes: WriteParts,
    fragments: Fragments,
    /// Whether the stream has ended, so that only staged bytes remain.
    over: bool,
    /// Whether the end of the stream has been reported.
    reported: bool,
    /// Whether all further bytes are ignored.
    ended: bool,
    /// Whether the most recent call ended before it had processed all bytes, so that the socket or
    /// the staging buffer may contain more bytes.
    stopped: bool,
    /// Whether the most recent payload is long. This payload may be incomplete.
    long: bool,
    /// The number of bytes at which the socket becomes readable (SO_RCVLOWAT).
    awaited: usize,
}

/// The maximum numbers of bytes that a receive call can place at the destination of the payload
/// (`straight`) and in the staging buffer (`stage`).
struct Room {
    straight: usize,
    stage: usize,
}

/// The parts of the stream that the receiver uses to execute incoming requests.
pub(super) struct Parts<'a> {
    pub(super) socket: &'a Socket,
    pub(super) send: &'a Mutex<SendQueue>,
    pub(super) receives: &'a ReceiveQueue,
    pub(super) keys: &'a Keys,
    pub(super) placement: &'a Placement,
    /// The number of received bytes of answers to this side's READs.
    pub(super) read: &'a AtomicU64,
    pub(super) done: &'a mut VecDeque<Done>,
}

/// The reason why further bytes cannot be received.
#[derive(Debug)]
pub(super) enum Fault {
    /// The peer violated the protocol of the stream.
    Violation(Violation),
    /// A request of the peer failed, and this side answers it with a Nak. Or the peer answered a
    /// request of this side with a Nak.
    Refused,
    /// The operating system has no memory for the receive buffer of the next frame.
    OutOfMemory(OsError),
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl Receiver {
    /// Creates a receiver that counts the executed requests in `executed`.
    pub(super) fn new(executed: Arc<AtomicU32>) -> Self {
        Self {
            staged: Scratch::new(&SPARE, STAGED),
            unread: 0..0,
            incoming: None,
            executed,
            writes: WriteParts::default(),
            fragments: Fragments::default(),
            over: false,
            reported: false,
            ended: false,
            stopped: false,
            long: false,
            awaited: 1,
        }
    }

    /// Returns true if all further bytes are ignored, or the stream has ended and all received
    /// bytes were processed.
    pub(super) fn has_ended(&self) -> bool {
        self.ended || (self.over && !self.stopped)
    }

    /// Returns true if the peer has ended the stream, all received bytes were processed, this side
    /// has not ended the stream, and the end has not been reported before. The end then counts as
    /// reported, so this method returns true only once.
    pub(super) fn has_new_end(&mut self) -> bool {
        self.over && !self.stopped && !self.ended && self.report_end()
    }

    /// Records that the end of the stream is reported. Returns true if it was not reported before.
    pub(super) fn report_end(&mut self) -> bool {
        !std::mem::replace(&mut self.reported, true)
    }

    /// Receives bytes until the socket is empty, `done` contains `enough` completions, a fragment
    /// may be placed (see [`take_staged`](Self::take_staged)), or [`MAX_CALLS`] is reached.
    pub(super) fn receive(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        if self.ended {
            return Ok(());
        }
        self.staged.take();
        let result = self.receive_some(parts, enough);
        self.put_staged_back();
        // All bytes after a fault are ignored.
        self.ended |= result.is_err();
        result
    }

    fn receive_some(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        self.stopped = true;
        for _ in 0..MAX_CALLS {
            if self.take_staged(parts, enough)? == Staged::Stopped {
                return Ok(());
            }
            if self.over || !self.receive_once(parts, Wait::No)? {
                self.stopped = false;
                break;
            }
        }
        // Processes the bytes that are still staged, because only bytes in the socket's receive
        // buffer make the socket readable.
        self.stopped |= self.take_staged(parts, enough)? == Staged::Stopped;
        Ok(())
    }

    /// Waits until bytes arrive, and receives them. If only a part of a long payload has arrived,
    /// waits again while `may_continue` returns `true`.
    pub(super) fn wait(
        &mut self,
        parts: &mut Parts<'_>,
        enough: usize,
        may_continue: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        self.staged.take();
        let result = self.wait_for_some(parts, enough, may_continue);
        self.put_staged_back();
        self.ended |= result.is_err();
        // The next wait may need fewer bytes than this one. So from now on, the socket becomes
        // readable at the first byte again.
        self.await_bytes(1, parts.socket);
        result
    }

    /// Does the work of [`wait`](Self::wait). If only a part of a long payload has arrived, waits
    /// for the missing bytes, because only a complete payload can be processed.
    fn wait_for_some(
        &mut self,
        parts: &mut Parts<'_>,
        enough: usize,
        may_continue: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        let executed = self.executed();
        let mut flows = true;
        for _ in 0..MAX_CALLS {
            let left = self.left();
            let wait = if left >= MIN_AWAITED && flows {
                self.await_bytes(left.min(MAX_AWAITED), parts.socket);
                // The thread waits before recv(2) and not inside it. After a blocking recv(2) has
                // taken some bytes, fewer bytes are missing. But the kernel would wake the thread
                // only when SO_RCVLOWAT more bytes have arrived.
                parts.socket.await_readable(LONGEST_AWAIT);
                Wait::No
            } else {
                self.await_bytes(1, parts.socket);
                Wait::ForSome
            };
            self.stopped = self.receive_once(parts, wait)?;
            self.stopped |= self.take_staged(parts, enough)? == Staged::Stopped;
            let to_do = !parts.done.is_empty() || self.executed() != executed;
            flows = self.left() != left;
            let is_over = wait == Wait::ForSome && !flows;
            if to_do || is_over || self.is_exposed() || self.left() < LONG || !may_continue() {
                break;
            }
        }
        Ok(())
    }

    fn put_staged_back(&mut self) {
        if self.unread.is_empty() {
            self.unread = 0..0;
            self.staged.put_back();
        }
    }

    /// Returns the number of missing bytes of the current payload.
    fn left(&self) -> usize {
        self.incoming.as_ref().map_or(0, |payload| payload.left)
    }

    /// Returns true if a thread may wait: the stream has not ended, no received bytes are pending,
    /// and no bytes are being received directly into exposed memory. During such a receive call the
    /// thread holds a lock, which another thread needs to end the key of the memory.
    pub(super) fn may_wait(&self) -> bool {
        !(self.ended || self.over || self.stopped || self.is_exposed())
    }

    /// Returns whether the current payload is received directly into exposed memory.
    fn is_exposed(&self) -> bool {
        let to = self.incoming.as_ref().map(|payload| &payload.to);
        matches!(to, Some(Place::Exposed { .. }))
    }

    /// Returns true if the most recent call reached a limit, so that received bytes may be
    /// unprocessed.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped && !self.ended
    }

    fn await_bytes(&mut self, count: usize, socket: &Socket) {
        if self.awaited != count {
            self.awaited = count;
            socket.await_bytes(count);
        }
    }

    /// Makes one receive call. Returns whether more bytes may have arrived.
    fn receive_once(&mut self, parts: &mut Parts<'_>, wait: Wait) -> Result<bool, Fault> {
        let (moved, room) = self.fill(parts.socket, wait);
        match moved {
            Moved::Some(count) => {
                self.came(count, room.straight, parts)?;
                // If the call received less than the maximum, the socket is empty. The next bytes
                // that arrive make the socket readable, so another call is unnecessary now.
                Ok(count == room.straight + room.stage)
            }
            Moved::Blocked => Ok(false),
            Moved::Ended => {
                self.over = true;
                Ok(false)
            }
        }
    }

    /// Receives into the destination of the current payload, and then into the staging buffer.
    fn fill(&mut self, socket: &Socket, wait: Wait) -> (Moved, Room) {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.start > 0 {
            self.staged.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let end = self.unread.end;
        let stage = Span {
            // The pointer is in bounds or one past the end.
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
            // SAFETY: this object owns the staging buffer, and no reference to it exists during the
            // call. The destination is one of three kinds of memory. Memory of a work request is
            // accessed only by the queue pair until the request completes. The same holds for the
            // memory of a fragment. Exposed memory stays mapped, because its lock is held.
            (unsafe { socket.receive(spans, wait) }, room)
        };
        match &self.incoming {
            None => receive(None),
            // If the key of the destination is no longer valid, the bytes go to the staging buffer,
            // and the peer's request is refused when they are processed.
            Some(incoming) => incoming.with_rest(receive),
        }
    }

    /// Records `count` received bytes. The first `straight` bytes, or all bytes if `count` is
    /// smaller, are at the destination of the payload. Any further bytes are in the staging buffer.
    fn came(&mut self, count: usize, straight: usize, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let placed = count.min(straight);
        self.unread.end += count - placed;
        if placed > 0 {
            self.payload_received(placed, parts)?;
        }
        Ok(())
    }

    /// Handles the header of a PDU.
    fn begin(&mut self, pdu: Pdu, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let left = pdu.payload() as usize;
        let written = self.writes.check(&pdu)?;
        let to = match pdu {
            Pdu::Send { signalled, len } => return self.begin_frame(len, signalled, parts),
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
                self.count_request();
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
                self.count_request();
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
                // SAFETY: the memory belongs to a work request, and therefore to the queue pair
                // until the request completes.
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

    /// Records that `count` more bytes of the payload are at their destination. Executes the PDU
    /// when the last byte of the payload has arrived.
    fn payload_received(&mut self, count: usize, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        if !incoming.is_open() {
            // If a receive was consumed for the payload, the receive stays in `incoming`, and is
            // flushed with the other receives.
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
            Place::Fragment {
                receive,
                to,
                signalled,
            } => {
                if let WorkId::Recv(buffer) = receive.id {
                    // The cast is lossless, because the length of a frame is a `u32`.
                    let len = (HEADER_LEN + to.len) as u32;
                    parts.done.push_back(Done::ReceivedInPlace { buffer, len });
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

    /// Counts an executed request of the peer. If the request is `signalled`, requests its
    /// acknowledgement from the send queue.
    fn request_completed(&mut self, signalled: bool, parts: &mut Parts<'_>) {
        self.count_request();
        if signalled {
            lock(parts.send).acknowledge_peer();
        }
    }

    /// Returns the number of executed requests of the peer.
    fn executed(&self) -> u32 {
        self.executed.load(Ordering::Relaxed)
    }

    fn count_request(&self) {
        // A thread that sends an Ack reads the counter with Acquire, so the request was executed
        // before its Ack is sent.
        let executed = self.executed().wrapping_add(1);
        self.executed.store(executed, Ordering::Release);
    }

    /// Returns the memory that the peer addresses. Returns `None` for a request of 0 bytes, which
    /// needs no access right, as over RDMA.
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

    /// Refuses the peer's current request. The refusal ends the connection.
    fn refuse(&mut self, cause: Cause, parts: &mut Parts<'_>) -> Fault {
        self.ended = true;
        lock(parts.send).refuse_peer(self.executed(), cause);
        Fault::Refused
    }

    /// Completes receives as flushed: the receive that an incomplete frame or WRITE has consumed,
    /// and all receives in `receives`. `receives` is `None` if other connections share the receive
    /// queue.
    pub(super) fn flush(&mut self, receives: Option<&ReceiveQueue>, done: &mut VecDeque<Done>) {
        self.ended = true;
        let began = match self.incoming.take().map(|payload| payload.to) {
            Some(Place::Receive { receive, .. } | Place::Fragment { receive, .. }) => Some(receive),
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

    /// Drops the current payload, whose memory may no longer exist.
    pub(super) fn forget(&mut self) {
        self.ended = true;
        self.incoming = None;
    }
}

/// Changes a word of exposed memory, and returns the old value. Returns `None` if the key has
/// ended.
pub(in crate::transport) fn apply(change: Change, part: &ExposedPart) -> Option<u64> {
    let start = part.start()?;
    let word = start.get().cast::<u64>().as_ptr();
    // SAFETY: the pointer refers to eight mapped bytes, and `find` has checked their alignment.
    // Other threads of this program also access them as atomic words (`SharedBytes`).
    let word = unsafe { AtomicU64::from_ptr(word) };
    Some(match change {
        Change::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
        Change::CompareSwap { compare, swap } => word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|old| old),
    })
}
