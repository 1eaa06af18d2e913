//! The sending side of a queue pair: its work requests, and the answers to requests of the peer.
#![allow(unsafe_code)]

mod frames;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{
    keys::ExposedPart,
    request::Request,
    socket::{Moved, Socket, Span},
    writing::{Payload, Then, Writing},
};
use crate::{
    proto::{Violation, tcp},
    status::WcStatus,
    transport::queues::{Done, RemoteAddr, SendOp, WorkId},
};

/// The maximum number of READs and atomic operations that a side serves at a time. This is also the
/// maximum number that a side has outstanding.
pub(super) const READS: u8 = 16;

/// The maximum number of writes to the socket in a row. The engine's thread sends the remaining
/// bytes later, so that a peer that receives fast does not delay other connections.
const MAX_CALLS: usize = 16;

/// The minimum number of executed, unacknowledged requests of the peer for which an Ack is sent
/// together with the next PDU, even if no signalled request waits for an Ack. So slots of the peer
/// become free without a separate send call.
const UNACKNOWLEDGED: u32 = 8;

/// The requests and answers that this side has to send, and the requests whose answer or
/// acknowledgement is outstanding.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// Work requests that have not completed, oldest first.
    requests: VecDeque<Request>,
    /// The number of entries of `requests` that were sent completely.
    sent: usize,
    /// The number of requests that have completed. They are no longer in `requests`.
    completed: u32,
    /// The number of requests that the peer has acknowledged.
    acknowledged: u32,
    /// The number of READs and atomic operations that were sent and are not answered yet.
    unanswered: u8,
    /// The maximum number of READs and atomic operations that the peer serves at a time.
    most_reads: u8,
    /// The answers that this side has to send, oldest first.
    answers: VecDeque<Answer>,
    /// The number of executed requests of the peer. The receiver counts these requests.
    executed: Arc<AtomicU32>,
    /// The value of `executed` in the most recent Ack.
    reported: u32,
    /// Whether a signalled request of the peer waits for an Ack.
    owes_ack: bool,
    refusal: Option<(u32, tcp::Cause)>,
    /// The bytes that are written to the socket next.
    writing: Writing,
    /// Whether an answer is written next, even if there are requests to send.
    answers_turn: bool,
    /// Whether the socket is full, or [`MAX_CALLS`] was reached.
    blocked: bool,
    /// The value of `blocked` at the most recent call of [`room_wanted`](Self::room_wanted).
    reported_blocked: bool,
}

#[derive(Debug)]
enum Answer {
    /// The memory that a READ requested, and the number of its bytes that were sent.
    Read {
        part: Option<ExposedPart>,
        sent: usize,
    },
    Old(u64),
}

/// Whether an acknowledgement may be sent alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// An acknowledgement is sent immediately, even if there is no other PDU to send.
    Alone,
    /// An acknowledgement is sent together with the next PDU.
    WaitForCompany,
}

/// The error if the answer to a READ cannot be completed. The key of the memory has ended before
/// all bytes of the answer were sent, so the stream cannot continue.
#[derive(Debug)]
pub(super) struct AnswerAborted;

impl SendQueue {
    /// Creates an empty queue. `executed` is the number of executed requests of the peer, which the
    /// receiver counts.
    pub(super) fn new(executed: Arc<AtomicU32>) -> Self {
        Self {
            requests: VecDeque::new(),
            sent: 0,
            completed: 0,
            acknowledged: 0,
            unanswered: 0,
            most_reads: READS,
            answers: VecDeque::new(),
            executed,
            reported: 0,
            owes_ack: false,
            refusal: None,
            writing: Writing::new(),
            answers_turn: false,
            blocked: false,
            reported_blocked: false,
        }
    }

    /// Sets the maximum number of READs and atomic operations that the peer serves at a time.
    pub(super) fn limit_reads(&mut self, reads: u8) {
        self.most_reads = reads.min(READS);
    }

    // This side's work requests.

    pub(super) fn post(&mut self, id: WorkId, op: SendOp, memory: Span, signalled: bool) {
        self.requests
            .push_back(Request::new(id, op, memory, signalled));
    }

    /// Handles an Ack: the peer has processed the first `requests` requests.
    pub(super) fn acknowledge(&mut self, requests: u32) -> Result<(), Violation> {
        let on_the_wire = self.completed.wrapping_add(self.sent as u32);
        let more = requests.wrapping_sub(self.acknowledged);
        if more > on_the_wire.wrapping_sub(self.acknowledged) {
            return Err(Violation::new(
                "ack",
                requests.into(),
                "no less than in the previous Ack, and no more than were sent",
            ));
        }
        self.acknowledged = requests;
        Ok(())
    }

    /// Returns the memory for the next `len` bytes of the answer to the oldest unanswered READ.
    /// `last` marks the last part of the answer.
    pub(super) fn read_target(&mut self, len: u32, last: bool) -> Result<Span, Violation> {
        let request = self.oldest_unanswered("read response")?;
        let left = request.memory.len - request.moved;
        let is_read = matches!(request.op, SendOp::Read(_));
        let fits = if last {
            len as usize == left
        } else {
            (len as usize) < left
        };
        if !is_read || !fits {
            return Err(Violation::new(
                "read response",
                len.into(),
                "the requested length, in the order of the requests",
            ));
        }
        Ok(Span {
            start: request.memory.start.wrapping_add(request.moved),
            len: len as usize,
        })
    }

    /// Records that the bytes for the memory from [`read_target`](Self::read_target) have arrived.
    pub(super) fn read_moved(&mut self, len: u32, last: bool) {
        if let Ok(request) = self.oldest_unanswered("read response") {
            request.moved += len as usize;
            if last {
                self.answer_oldest();
            }
        }
    }

    /// Returns the memory for the answer to the oldest unanswered atomic operation.
    pub(super) fn atomic_target(&mut self) -> Result<Span, Violation> {
        let request = self.oldest_unanswered("atomic response")?;
        match request.op {
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => Ok(request.memory),
            SendOp::Send | SendOp::Read(_) | SendOp::Write(_) | SendOp::WriteWithImm(..) => {
                Err(Violation::new("atomic response", 0, "the answer to a READ"))
            }
        }
    }

    /// Records the complete answer to the oldest unanswered request. The answer proves that the
    /// peer has processed all earlier requests.
    pub(super) fn answer_oldest(&mut self) {
        let oldest = self
            .requests
            .iter()
            .take(self.sent)
            .position(Request::is_unanswered);
        if let Some(at) = oldest {
            self.requests[at].answered = true;
            self.unanswered -= 1;
            let processed = self.completed.wrapping_add(at as u32 + 1);
            if processed.wrapping_sub(self.acknowledged) <= self.sent as u32 {
                self.acknowledged = processed;
            }
        }
    }

    fn oldest_unanswered(&mut self, what: &'static str) -> Result<&mut Request, Violation> {
        let sent = self.sent;
        self.requests
            .iter_mut()
            .take(sent)
            .find(|request| request.is_unanswered())
            .ok_or_else(|| Violation::new(what, 0, "none, because none was requested"))
    }

    /// Removes the completed requests, in order. Adds the completions of the signalled requests to
    /// `done`. If the newest completed request is unsignalled, also adds its completion. Without
    /// this completion, slots might not be freed: if an Ack is sent together with another PDU, it
    /// is possible that all requests that it covers are unsignalled.
    pub(super) fn complete(&mut self, done: &mut VecDeque<Done>) {
        let mut uncovered = None;
        while self.sent > 0 {
            let Some(oldest) = self.requests.front() else {
                break;
            };
            let complete = if oldest.wants_value() {
                oldest.answered
            } else {
                self.acknowledged != self.completed
            };
            if !complete {
                break;
            }
            if let WorkId::Send(slot) = oldest.id {
                let sent = Done::Sent { slot };
                if oldest.signalled {
                    done.push_back(sent);
                    uncovered = None;
                } else {
                    uncovered = Some(sent);
                }
            }
            self.requests.pop_front();
            self.sent -= 1;
            self.completed = self.completed.wrapping_add(1);
        }
        done.extend(uncovered);
    }

    /// Handles a Nak: the peer has processed `requests` requests and refused the next one. The
    /// processed requests complete, and the next one fails. The caller [flushes](Self::flush) the
    /// later ones.
    pub(super) fn refused(
        &mut self,
        requests: u32,
        cause: tcp::Cause,
        done: &mut VecDeque<Done>,
    ) -> Result<(), Violation> {
        let before = requests.wrapping_sub(self.completed) as usize;
        if before >= self.begun() {
            return Err(Violation::new("nak", requests.into(), "a sent request"));
        }
        self.acknowledge(requests)?;
        self.complete(done);
        let status = match cause {
            tcp::Cause::Access => WcStatus::REM_ACCESS_ERR,
            tcp::Cause::TooLong => WcStatus::REM_INV_REQ_ERR,
            tcp::Cause::NoReceive => WcStatus::RNR_RETRY_EXC_ERR,
        };
        if let Some(failed) = self.requests.pop_front() {
            done.extend(failed.failure(status));
        }
        Ok(())
    }

    /// Returns true if at least one request has not completed.
    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Returns the number of requests of which the peer may have received at least a part.
    fn begun(&self) -> usize {
        let next = self.requests.get(self.sent);
        let in_parts = next.is_some_and(|request| !request.wants_value() && request.moved > 0);
        let in_the_middle = self.writing.then() == Then::RequestSent;
        self.sent + usize::from(in_parts || in_the_middle)
    }

    /// Drops all bytes and answers that were not sent, and completes all posted requests as
    /// flushed.
    pub(super) fn flush(&mut self, done: &mut VecDeque<Done>) {
        self.writing.clear();
        self.answers.clear();
        let requests = self.requests.drain(..);
        done.extend(requests.filter_map(|request| request.failure(WcStatus::WR_FLUSH_ERR)));
        self.sent = 0;
        self.unanswered = 0;
    }

    // Answers to the peer.

    /// Records that a signalled request of the peer was executed. [`send`](Self::send) then sends
    /// an Ack: together with the next PDU, or alone if the caller passes [`Acks::Alone`].
    pub(super) fn acknowledge_peer(&mut self) {
        self.owes_ack = true;
    }

    /// Adds an Ack for the executed requests to `writing`, if a signalled request waits for an Ack
    /// or at least [`UNACKNOWLEDGED`] requests are not acknowledged. Returns whether it added an
    /// Ack.
    fn gather_ack(&mut self) -> bool {
        let executed = self.executed.load(Ordering::Acquire);
        let unacknowledged = executed.wrapping_sub(self.reported);
        let due = self.owes_ack || unacknowledged >= UNACKNOWLEDGED;
        if due {
            self.owes_ack = false;
            self.reported = executed;
            let pdu = tcp::Pdu::Ack { requests: executed };
            self.writing.push(&pdu.emit());
        }
        due
    }

    /// Queues a Nak for the request that follows the peer's first `requests` requests.
    pub(super) fn refuse_peer(&mut self, requests: u32, cause: tcp::Cause) {
        self.refusal = Some((requests, cause));
    }

    /// Queues the answer to a READ. Without a `part`, the answer is empty.
    pub(super) fn answer_read(&mut self, part: Option<ExposedPart>) -> Result<(), Violation> {
        self.answer(Answer::Read { part, sent: 0 })
    }

    /// Queues the answer to an atomic operation: the `old` value.
    pub(super) fn answer_atomic(&mut self, old: u64) -> Result<(), Violation> {
        self.answer(Answer::Old(old))
    }

    fn answer(&mut self, answer: Answer) -> Result<(), Violation> {
        if self.answers.len() >= READS.into() {
            return Err(Violation::new(
                "read requests",
                self.answers.len() as u64 + 1,
                "no more than this side serves at a time",
            ));
        }
        self.answers.push_back(answer);
        Ok(())
    }

    // The socket.

    /// Returns whether bytes remain to be sent because the socket is full or [`MAX_CALLS`] was
    /// reached.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Makes the next call of [`room_wanted`](Self::room_wanted) return `Some(true)` if the socket
    /// is then full, even if the previous call also returned `Some(true)`. This is necessary after
    /// epoll has reported an event, because the socket's registration with epoll is one-shot.
    pub(super) fn forget_room_wanted(&mut self) {
        self.reported_blocked = false;
    }

    /// Returns `Some(true)` if this side has begun to wait for space in the socket's send buffer
    /// since the previous call, and `Some(false)` if it no longer waits. Returns `None` if neither
    /// is the case.
    pub(super) fn room_wanted(&mut self) -> Option<bool> {
        let changed = self.reported_blocked != self.blocked;
        self.reported_blocked = self.blocked;
        changed.then_some(self.blocked)
    }

    /// Sends until all bytes are sent, the socket is full, or [`MAX_CALLS`] is reached.
    pub(super) fn send(&mut self, socket: &Socket, alone: Acks) -> Result<(), AnswerAborted> {
        self.blocked = false;
        for _ in 0..MAX_CALLS {
            if self.writing.has_room() {
                while self.writing.has_room() && self.gather_next(alone) {}
                if self.writing.is_empty() {
                    return Ok(());
                }
            }
            if !self.write(socket)? || !self.is_waiting() {
                return Ok(());
            }
        }
        // The engine's thread sends the remaining bytes later, so that other connections are served
        // first.
        self.blocked = true;
        Ok(())
    }

    /// Returns whether there is nothing to send except possibly an acknowledgement.
    pub(super) fn is_idle(&self) -> bool {
        !self.blocked && self.writing.is_empty() && !self.has_more()
    }

    /// Writes the gathered bytes and the payload to the socket. Returns whether the socket took all
    /// of them.
    fn write(&mut self, socket: &Socket) -> Result<bool, AnswerAborted> {
        let more = self.follows();
        let moved = match self.writing.payload() {
            // SAFETY: there is no payload.
            Payload::None => unsafe { self.writing.send(socket, None, more) },
            // SAFETY: the payload belongs to a request, and therefore to the queue until the
            // request completes.
            Payload::Request { at } => unsafe { self.writing.send(socket, Some(at), more) },
            Payload::Answer { offset, len } => {
                let Some(Answer::Read {
                    part: Some(part), ..
                }) = self.answers.front()
                else {
                    return Err(AnswerAborted);
                };
                let start = part.start().ok_or(AnswerAborted)?;
                let at = Span {
                    start: start.get().as_ptr().wrapping_add(offset),
                    len,
                };
                // SAFETY: the payload is exposed memory, whose lock is held.
                unsafe { self.writing.send(socket, Some(at), more) }
            }
        };
        if !self.writing.is_taken() {
            // The receiver reports the end of the stream, so the end does not count as a full
            // socket.
            self.blocked = moved != Moved::Ended;
            return Ok(false);
        }
        let then = self.writing.then();
        self.writing.clear();
        match then {
            Then::Nothing => {}
            Then::RequestSent => self.request_sent(),
            Then::AnswerPartSent => self.answer_part_sent(),
        }
        Ok(true)
    }

    /// Writes the gathered bytes to the socket. There is no payload.
    fn write_gathered(&mut self, socket: &Socket) {
        // SAFETY: there is no payload.
        let moved = unsafe { self.writing.send(socket, None, false) };
        if self.writing.is_taken() {
            self.writing.clear();
        } else {
            // The receiver reports the end of the stream, so the end does not count as a full
            // socket.
            self.blocked = moved != Moved::Ended;
        }
    }

    /// Returns true if further bytes will certainly be sent immediately after the bytes in
    /// `writing`.
    fn follows(&self) -> bool {
        match self.writing.payload() {
            Payload::None => false,
            // Only another part of the same request certainly follows. The next request may have to
            // wait.
            Payload::Request { .. } => self.writing.then() == Then::Nothing,
            Payload::Answer { offset, len } => {
                let all = match self.answers.front() {
                    Some(Answer::Read { part, .. }) => part.as_ref().map_or(0, ExposedPart::len),
                    Some(Answer::Old(_)) | None => 0,
                };
                self.answers.len() > 1 || offset + len < all
            }
        }
    }

    /// Counts the next request as sent, after its bytes were sent or copied. If the request were
    /// counted earlier, an Ack of the peer could complete it before its bytes are sent. But the
    /// memory of a completed request must not be read.
    fn request_sent(&mut self) {
        let request = self.requests.get(self.sent);
        if request.is_some_and(Request::is_unanswered) {
            self.unanswered += 1;
        }
        self.sent += 1;
    }

    /// Adds the next PDUs to `writing`. Returns false if no PDU was added.
    fn gather_next(&mut self, alone: Acks) -> bool {
        let may_be_alone = self.owes_ack && alone == Acks::Alone;
        if !may_be_alone && !self.has_more() {
            return false;
        }
        let acknowledged = self.gather_ack();
        // The Nak is sent after all answers, because the peer treats its oldest unanswered request
        // as the refused request.
        if let Some((requests, cause)) = self.refusal.take_if(|_| self.answers.is_empty()) {
            self.writing.push(&tcp::Pdu::Nak { requests, cause }.emit());
            return true;
        }
        let first_answers = self.answers_turn;
        self.answers_turn = !first_answers;
        first_answers && self.gather_answer()
            || self.gather_request()
            || self.gather_answer()
            || acknowledged
    }

    /// Returns whether there may be bytes to send.
    pub(super) fn is_waiting(&self) -> bool {
        self.owes_ack || !self.writing.is_empty() || self.has_more()
    }

    /// Returns whether there may be bytes to send, not counting an acknowledgement.
    fn has_more(&self) -> bool {
        self.refusal.is_some() || !self.answers.is_empty() || self.sent < self.requests.len()
    }

    fn gather_answer(&mut self) -> bool {
        let Some(answer) = self.answers.front() else {
            return false;
        };
        match answer {
            Answer::Old(value) => {
                self.writing.push(&tcp::Pdu::Old { value: *value }.emit());
                self.answers.pop_front();
            }
            Answer::Read { part, sent } => {
                let all = part.as_ref().map_or(0, ExposedPart::len);
                let (offset, len) = (*sent, (all - sent).min(tcp::LONGEST_PART as usize));
                let pdu = tcp::Pdu::ReadPart {
                    last: offset + len == all,
                    len: len as u32,
                };
                self.writing.push(&pdu.emit());
                if all == 0 {
                    self.answers.pop_front();
                } else {
                    self.writing
                        .put(Payload::Answer { offset, len }, Then::AnswerPartSent);
                }
            }
        }
        true
    }

    fn answer_part_sent(&mut self) {
        if let Some(Answer::Read { part, sent }) = self.answers.front_mut() {
            let all = part.as_ref().map_or(0, ExposedPart::len);
            *sent = (*sent + tcp::LONGEST_PART as usize).min(all);
            if *sent == all {
                self.answers.pop_front();
            }
        }
    }

    fn gather_request(&mut self) -> bool {
        let Some(request) = self.requests.get_mut(self.sent) else {
            return false;
        };
        if request.wants_value() && self.unanswered >= self.most_reads {
            return false;
        }
        let (memory, signalled) = (request.memory, request.signalled);
        let span = |remote: RemoteAddr, offset: usize, len: usize| tcp::RemoteSpan {
            addr: remote.addr.wrapping_add(offset as u64),
            rkey: remote.rkey,
            len: len as u32,
        };
        let pdu = match request.op {
            SendOp::Send => {
                if matches!(request.id, WorkId::DrainSend) {
                    // A drain marker is not sent. It completes after the queue pair has entered the
                    // error state.
                    return false;
                }
                let len = memory.len as u32;
                self.writing.push(&tcp::Pdu::Send { signalled, len }.emit());
                // SAFETY: only the queue accesses the memory of a frame until its request
                // completes.
                if unsafe { self.writing.push_short(memory) } {
                    self.request_sent();
                } else {
                    self.writing
                        .put(Payload::Request { at: memory }, Then::RequestSent);
                }
                return true;
            }
            SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) => {
                let offset = request.moved;
                let len = (memory.len - offset).min(tcp::LONGEST_PART as usize);
                let last = offset + len == memory.len;
                request.moved += len;
                let payload = Payload::Request {
                    at: Span {
                        start: memory.start.wrapping_add(offset),
                        len,
                    },
                };
                let at = span(remote, offset, len);
                let pdu = match request.op {
                    SendOp::WriteWithImm(_, imm_data) if last => tcp::Pdu::WriteWithImm {
                        signalled,
                        at,
                        imm_data,
                    },
                    _ => tcp::Pdu::Write {
                        signalled,
                        last,
                        at,
                    },
                };
                let then = if last {
                    Then::RequestSent
                } else {
                    Then::Nothing
                };
                self.writing.push(&pdu.emit());
                self.writing.put(payload, then);
                return true;
            }
            SendOp::Read(remote) => tcp::Pdu::Read {
                at: span(remote, 0, memory.len),
            },
            SendOp::FetchAdd { remote, add } => tcp::Pdu::Atomic {
                addr: remote.addr,
                rkey: remote.rkey,
                change: tcp::Change::FetchAdd { add },
            },
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => tcp::Pdu::Atomic {
                addr: remote.addr,
                rkey: remote.rkey,
                change: tcp::Change::CompareSwap { compare, swap },
            },
        };
        self.writing.push(&pdu.emit());
        self.request_sent();
        true
    }
}
