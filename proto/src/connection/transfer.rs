//! The exchange of frames: sequence numbers, credits and slots of the send ring.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    control::ControlQueue,
    keepalive::{Keepalive, MovedBytes, PeerActivity, Probe},
    timers::{DelayedGrant, GRANT_TIMER_INTERVAL, Timers, Tracked},
};
use crate::{
    BatchRoom, Clock, Fragmentation, Negotiated, Output, PART_HEADER_LEN, Params, SendRefused,
    SessionOffer, Statistics, Transmit,
    control_messages::{ControlMessages, MAX_CONTROL_MESSAGE},
    credit::{RecvCredit, SendCredit},
    frame::{Control, DESCRIPTOR_LEN, Header, Kind, Sequence},
    hello::{BATCHES, CONTROL_MESSAGES, FRAGMENTS, Hello, SESSION},
    inbound::Inbound,
    outbound::Outbound,
    read_watchdog::{Progress, ReadWatchdog},
    reason::Violation,
    send_ring::SendRing,
};

/// The exchange of frames with a peer whose hello is known.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Transfer {
    /// The hello of the peer.
    pub(super) hello: Hello,
    negotiated: Negotiated,
    /// Whether the peer accepts several messages in one frame.
    pub(super) takes_batches: bool,
    /// How a message above the eager size is sent in several frames.
    fragmentation: Fragmentation,
    pub(super) sequence: Sequence,
    pub(super) send_credit: SendCredit,
    pub(super) recv_credit: RecvCredit,
    pub(super) ring: SendRing,
    pub(super) outbound: Outbound,
    pub(super) inbound: Inbound,
    pub(super) timers: Tracked<Timers>,
    /// The counters. [`statistics`](Self::statistics) adds the current memory usage.
    pub(super) counters: Statistics,
    pub(super) probe: Probe,
    keepalive_timeout: Duration,
    /// The number of the connection within its process.
    number: u64,
    pub(super) activity: PeerActivity,
    /// The byte counters, as of the last call of [`set_moved`](super::Connection::set_moved).
    pub(super) moved: MovedBytes,
    /// Whether `moved` was set after the last time that
    /// [`passes_check`](super::Connection::passes_check) returned true. If so, the next increase of
    /// these counters is a sign of life. If not, the bytes might have moved before that check.
    pub(super) moved_since_check: bool,
    /// Whether other connections wait for the memory that this connection's large messages use, as
    /// of the last call of [`set_memory_contended`](super::Connection::set_memory_contended).
    pub(super) memory_is_contended: bool,
    /// The kinds of frames that this side still accepts from the peer.
    pub(super) accepts: Accepts,
    /// Whether the application has half-closed the connection.
    pub(super) finished: bool,
    /// The progress of this side's Leave frame.
    leave: Leave,
    /// Whether the peer's Leave has arrived.
    pub(super) peer_leaves: bool,
    /// The number of received Fragment frames that were not the final fragment of their message.
    pub(super) incomplete_frames: u32,
    /// The resources that a refused send needs. If several sends were refused, each value is the
    /// smallest that any of them needs. `None` if no send has been refused with
    /// [`SendRefused::Blocked`] since the last [`Event::Writable`](crate::Event::Writable).
    blocked: Option<RequiredResources>,
    pub(super) control: ControlQueue,
    /// A Request or an Answer that must be sent before everything else: its kind, argument and
    /// private data.
    greeting: Option<(Kind, u32, Arc<[u8]>)>,
    pub(super) peer_close: PeerClose,
}

/// How a message of a certain length is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMethod {
    /// The message is sent in a single frame.
    Frame,
    /// The message is sent in this number of frames.
    Fragments(u32),
    /// The message is announced, and the peer reads it from this side's memory.
    Announcement,
}

/// The resources that a send needs in addition to a credit.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
struct RequiredResources {
    /// The number of free slots of the send ring.
    slots: u32,
    /// The number of additional bytes to expose to the peer.
    exposed: u64,
}

impl RequiredResources {
    const SLOT: Self = Self {
        slots: 1,
        exposed: 0,
    };
}

/// The progress of the Leave frame, which reports that this side wants to end the connection soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum Leave {
    No,
    /// The next Ping must be sent as a Leave.
    Due,
    Sent,
}

/// The kinds of frames that this side still accepts from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum Accepts {
    Everything,
    /// The peer's Finish has arrived: only control frames follow.
    NoMessages,
    /// No frame is accepted. The peer has sent an Abort, a Failure or a rejection, has violated the
    /// protocol, or has sent an Answer while the connection was already ending. Messages behind an
    /// invalid frame are discarded, because the invalid frame might have contained a message that
    /// precedes them.
    Nothing,
}

/// The peer's progress in the close handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum PeerClose {
    None,
    /// The peer's Close has arrived: only control frames follow.
    Received,
    /// The peer's CloseAck has also arrived: the peer has received everything that this side sent.
    Acknowledged,
}

impl Transfer {
    pub(super) fn new(params: &Params, hello: &Hello) -> Self {
        Self::starting_at(params, hello, 0)
    }

    /// Creates the state of a connection whose frame counters begin at `start`. `start` is 0 except
    /// in tests.
    pub(super) fn starting_at(params: &Params, hello: &Hello, start: u32) -> Self {
        let granted = match hello.credits {
            0 => hello.window,
            credits => credits,
        };
        // With a session, no messages are sent in fragments, because the session would have to keep
        // a copy of each fragment until the peer has acknowledged it.
        let has_session = params.session != SessionOffer::None && hello.features & SESSION != 0;
        let mut recv_credit = RecvCredit::new(params.window, params.credits(), start);
        if !params.delays_grants {
            recv_credit.never_delay_grants();
        }
        Self {
            hello: *hello,
            negotiated: Negotiated::new(params, hello),
            takes_batches: hello.features & BATCHES != 0,
            fragmentation: if hello.features & FRAGMENTS == 0 || has_session {
                params.fragmentation.at_most(1)
            } else {
                params.fragmentation.at_most(params.send_slots)
            },
            sequence: Sequence::new(start as u16),
            send_credit: SendCredit::new(hello.window, granted, start),
            recv_credit,
            ring: SendRing::new(
                params.send_slots,
                params.completes_unsignalled,
                params.max_unsignalled,
            ),
            outbound: Outbound::new(params.outbound_limit()),
            inbound: Inbound::new(params.window, params.inbound_limit(), params.longest_chunk),
            timers: Tracked::new(Timers {
                keepalive: None,
                read_watchdog: ReadWatchdog::new(params.read_timeout),
                grant: None,
                nudge: None,
            }),
            counters: Statistics::default(),
            probe: Probe::default(),
            keepalive_timeout: params.keepalive_timeout,
            number: params.number,
            activity: PeerActivity::default(),
            moved: MovedBytes::default(),
            moved_since_check: false,
            memory_is_contended: false,
            accepts: Accepts::Everything,
            finished: false,
            leave: Leave::No,
            peer_leaves: false,
            incomplete_frames: 0,
            blocked: None,
            control: ControlQueue::default(),
            greeting: None,
            peer_close: PeerClose::None,
        }
    }

    pub(super) fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    pub(super) fn statistics(&self) -> Statistics {
        Statistics {
            buffers_held: self.recv_credit.held().into(),
            large_bytes_held: self.inbound.held_bytes(),
            large_bytes_exposed: self.outbound.bytes(),
            ..self.counters
        }
    }

    pub(super) fn start_keepalive(&mut self, now: Instant) {
        let (timeout, activity, number) = (self.keepalive_timeout, self.activity, self.number);
        self.timers.keepalive = self
            .negotiated
            .keepalive_interval
            .map(|interval| Keepalive::new(interval, timeout, activity, number, now));
    }

    /// Returns the progress of the large messages that this side receives.
    ///
    /// Reads on a slow path can wait behind the reads of other connections. The number of chunks
    /// therefore includes the chunks on all connections to the peer's engine. On a transport that
    /// counts bytes, the number of bytes that this side has read from the peer's memory is added to
    /// the number of chunks. Only an increase of the sum matters.
    pub(super) fn progress(&self) -> Progress {
        let inbound = &self.inbound;
        Progress {
            chunks: inbound.chunks() + self.moved.read + self.activity.of_engine.chunks,
            bytes: inbound.bytes(),
            contended_bytes: if self.memory_is_contended {
                inbound.incomplete_bytes()
            } else {
                0
            },
        }
    }

    /// Starts the timer that limits the delay of a grant. Has no effect if no grant is delayed, or
    /// if the timer is already running.
    pub(super) fn watch_grant(&mut self, now: impl Clock) {
        if self.recv_credit.delays_grant() && self.timers.grant.is_none() {
            self.timers.grant = Some(DelayedGrant {
                deadline: now.now() + GRANT_TIMER_INTERVAL,
                announced: self.recv_credit.announced(),
            });
        }
    }

    // Methods for closing:

    /// Returns whether this side knows that the peer's library has received everything that this
    /// side sent.
    ///
    /// An acknowledgement from the peer's device does not prove that the library has received a
    /// frame: the peer's process might have ended before it polled the completion. A missing
    /// acknowledgement does not prove that the frame is lost: a device sends no acknowledgement if
    /// its queue pair fails right after the frame has arrived.
    #[inline]
    pub(super) fn delivered(&self) -> bool {
        //= PROTOCOL.md#closing
        //# A side knows that the peer's library has received everything when the peer's CloseAck
        //# has arrived and all large messages of this side are taken.
        self.peer_close == PeerClose::Acknowledged && self.outbound.is_empty()
    }

    /// Returns whether the driver should copy a message of a byte stream: see
    /// [`may_copy`](super::Connection::may_copy).
    pub(super) fn may_copy(&self, len: u32, buffered: u64, reader_is_waiting: bool) -> bool {
        let (held, receives) = (self.recv_credit.held(), self.recv_credit.promised());
        let enough = if reader_is_waiting {
            receives - receives / 4
        } else {
            receives / 2
        };
        // An empty message is never copied, because the receives that empty messages occupy are the
        // only limit on the number of empty messages.
        len > 0 && held > enough && self.inbound.has_room_for(len.into(), buffered)
    }

    /// Sets the limits on large messages to those of `params`.
    pub(super) fn set_limits(&mut self, params: &Params) {
        self.outbound.set_limit(params.outbound_limit());
        self.inbound.set_limit(params.inbound_limit());
    }

    /// Returns whether the peer's Close has arrived. After its Close, the peer must not send data.
    #[inline]
    pub(super) fn has_peer_closed(&self) -> bool {
        self.peer_close != PeerClose::None
    }

    /// Returns whether all large messages that the peer announced have been read completely.
    pub(super) fn has_read_all(&self) -> bool {
        self.inbound.is_idle()
    }

    /// Returns true if the large messages of both sides have been read, this side has reported the
    /// peer's large messages as taken, and all posted work requests have completed.
    pub(super) fn is_quiescent(&self) -> bool {
        self.inbound.is_idle()
            && !self.inbound.report_due()
            && self.outbound.is_empty()
            && self.ring.is_empty()
    }

    /// Queues an Abort or a Failure. Drops all other queued control frames and stops the keepalive.
    pub(super) fn queue_notice(&mut self, control: Control, code: u32) {
        self.cancel_pending();
        self.control.queue_notice(control, code);
    }

    /// Queues a Request or an Answer: its kind, argument and private data.
    pub(super) fn greet(&mut self, kind: Kind, arg: u32, data: Arc<[u8]>) {
        self.greeting = Some((kind, arg, data));
    }

    /// Drops queued control frames, including a Ping that is due, and stops the keepalive.
    pub(super) fn cancel_pending(&mut self) {
        self.control.cancel();
        self.probe = Probe::default();
        self.timers.keepalive = None;
    }

    // Methods for sending:

    #[inline]
    pub(super) fn is_eager(&self, len: usize) -> bool {
        len as u64 <= self.negotiated.send_eager.into()
    }

    /// Returns how a message of `len` bytes would be sent now.
    #[inline]
    pub(super) fn send_method(&self, len: usize) -> SendMethod {
        //= PROTOCOL.md#hello
        //# A message of at most the receiver's eager size may be sent in a Data or Batch frame. A
        //# longer message must be sent in Fragments or announced (see [Large
        //# messages](#large-messages)).
        if self.is_eager(len) {
            return SendMethod::Frame;
        }
        let count = (len as u64).div_ceil(self.negotiated.send_eager.into());
        //= PROTOCOL.md#frames
        //# The first Fragment must not be sent before there are credits for all Fragments of the
        //# message.
        if count <= u64::from(self.fragmentation.max.min(self.send_credit.available())) {
            SendMethod::Fragments(count as u32)
        } else {
            SendMethod::Announcement
        }
    }

    pub(super) fn may_send(&mut self, len: usize) -> Result<(), SendRefused> {
        self.check_room(len as u64, self.send_method(len))
    }

    #[inline(never)]
    fn check_room(&mut self, len: u64, method: SendMethod) -> Result<(), SendRefused> {
        //= PROTOCOL.md#hello
        //# A message that is longer than the receiver's largest message must not be sent.
        if len > self.negotiated.send_limit {
            return Err(SendRefused::TooLong {
                limit: self.negotiated.send_limit,
            });
        }
        let required = match method {
            SendMethod::Frame => RequiredResources::SLOT,
            SendMethod::Fragments(slots) => RequiredResources { slots, exposed: 0 },
            SendMethod::Announcement => RequiredResources {
                exposed: len,
                ..RequiredResources::SLOT
            },
        };
        //= PROTOCOL.md#credits
        //# A side must not send data frame number *n* before it has received a grant of at least
        //# *n*. The numbers begin at 1; a Rendezvous and a Fragment count once, a Batch once for
        //# each message.
        if self.send_credit.available() == 0 || !self.has(required) {
            self.block(required);
            return Err(SendRefused::Blocked);
        }
        Ok(())
    }

    fn has(&self, required: RequiredResources) -> bool {
        self.ring.room_for_data() >= required.slots
            && (required.exposed == 0 || self.outbound.has_room_for(required.exposed))
    }

    /// Records that a send was refused, and which resources this send needs.
    #[cold]
    fn block(&mut self, required: RequiredResources) {
        self.counters.stalls += 1;
        let least = self.blocked.map_or(required, |other| RequiredResources {
            slots: other.slots.min(required.slots),
            exposed: other.exposed.min(required.exposed),
        });
        self.blocked = Some(least);
    }

    /// Returns whether a refused send can be retried now. If so, clears the record of refused
    /// sends.
    #[inline]
    pub(super) fn take_writable(&mut self) -> bool {
        self.is_blocked() && self.take_room()
    }

    #[inline(never)]
    fn take_room(&mut self) -> bool {
        let writable = self
            .blocked
            .is_some_and(|required| self.send_credit.available() > 0 && self.has(required));
        if writable {
            self.blocked = None;
        }
        writable
    }

    /// Returns whether a refused send waits for slots that no completion will free, because none of
    /// the frames in flight is signalled.
    pub(super) fn lacks_completion(&self) -> bool {
        let lacks_slots = |required: RequiredResources| self.ring.room_for_data() < required.slots;
        self.blocked.is_some_and(lacks_slots) && self.ring.is_unsignalled()
    }

    /// Returns whether a send has been refused since the record of refused sends was last cleared.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Returns whether a send was refused, and clears the record of refused sends.
    #[inline]
    pub(super) fn take_blocked(&mut self) -> bool {
        self.blocked.take().is_some()
    }

    pub(super) fn send(&mut self, len: usize) -> Result<Transmit, SendRefused> {
        debug_assert!(self.is_eager(len), "the message must fit into a frame");
        self.send_at_once(len).ok_or_else(|| {
            self.block(RequiredResources::SLOT);
            SendRefused::Blocked
        })
    }

    /// Sends a message if it fits into a frame, and a credit and a slot are available. Otherwise
    /// returns `None`. A message that fits into a frame never exceeds the maximum message length,
    /// because that maximum is at least the eager size.
    #[inline(always)]
    pub(super) fn send_at_once(&mut self, len: usize) -> Option<Transmit> {
        let fits =
            self.is_eager(len) && self.send_credit.available() > 0 && self.ring.has_room_for_data();
        if !fits {
            return None;
        }
        self.send_credit.take(1);
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += len as u64;
        // The cast loses no bits, because the eager size is a `u32`.
        Some(self.data_frame(Kind::Data, len as u32))
    }

    /// Returns the limits on the batch that can be sent in one frame now.
    pub(super) fn batch_room(&mut self) -> Result<BatchRoom, SendRefused> {
        self.may_send(0)?;
        let credits = self.send_credit.available() as usize;
        Ok(BatchRoom {
            //= PROTOCOL.md#frames
            //# A Batch takes a credit for each message, and must not be sent to a side whose hello
            //# lacks bit 1 of `features`.
            messages: if self.takes_batches { credits } else { 1 },
            bytes: self.negotiated.send_eager as usize,
        })
    }

    /// Sends `count` messages in one frame. The payload has `len` bytes, including the length
    /// prefixes. The caller has checked that credits and a slot are available.
    pub(super) fn send_batch(&mut self, count: u32, len: usize) -> Transmit {
        debug_assert!(len as u64 <= self.negotiated.send_eager.into());
        self.send_credit.take(count);
        self.counters.messages_sent += u64::from(count);
        self.counters.bytes_sent += (len - count as usize * PART_HEADER_LEN) as u64;
        self.data_frame(Kind::Batch, len as u32)
    }

    /// Sends one part of a message. The message has `len` bytes, and the part begins at `offset`.
    /// Returns the frame and the length of the part. The caller has checked with `send_method` and
    /// `may_send` that credits and slots for all parts are available.
    pub(super) fn send_fragment(&mut self, len: u32, offset: u32) -> (Transmit, u32) {
        let rest = len - offset;
        if offset == 0 {
            self.counters.messages_sent += 1;
            self.counters.bytes_sent += u64::from(len);
        }
        let payload = self.fragmentation.next(rest, self.negotiated.send_eager);
        self.send_credit.take(1);
        let arg = self.inbound.report_taken();
        let slot = self.ring.take_data(payload);
        (self.frame(Kind::Fragment, rest, arg, slot), payload)
    }

    pub(super) fn send_large(&mut self, len: u64) -> Result<Transmit, SendRefused> {
        self.check_room(len, SendMethod::Announcement)?;
        self.send_credit.take(1);
        self.outbound.expose(len);
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += len;
        self.counters.large_sent += 1;
        Ok(self.data_frame(Kind::Rendezvous, DESCRIPTOR_LEN as u32))
    }

    pub(super) fn operate(&mut self, takes_receive: bool) -> Result<u32, SendRefused> {
        if !self.ring.has_room_for_data() || (takes_receive && self.send_credit.available() == 0) {
            self.block(RequiredResources::SLOT);
            return Err(SendRefused::Blocked);
        }
        //= PROTOCOL.md#credits
        //# A write with immediate data (see [One-sided operations](#one-sided-operations)) takes a
        //# receive of the peer, so it takes a credit and counts as a data frame.
        if takes_receive {
            self.send_credit.take(1);
        }
        self.counters.operations += 1;
        Ok(self.ring.take_operation())
    }

    /// Returns whether a Grant frame must be sent, to grant credit or to report large messages as
    /// taken.
    #[inline]
    pub(super) fn grant_due(&self) -> bool {
        self.recv_credit.grant_due() || self.inbound.report_due()
    }

    /// Returns the maximum length in bytes of a control message to the peer. Returns `None` if the
    /// peer does not accept control messages.
    pub(super) fn longest_control_message(&self) -> Option<u32> {
        //= PROTOCOL.md#control-messages
        //# Control messages must not be sent to a side whose hello lacks bit 7 of `features`.
        let takes = self.hello.features & CONTROL_MESSAGES != 0;
        takes.then(|| self.negotiated.send_eager.min(MAX_CONTROL_MESSAGE))
    }

    /// Removes and returns the next control message or control frame to post, if a slot is free.
    pub(super) fn next_control(&mut self, messages: &mut ControlMessages) -> Option<Output> {
        if !self.ring.has_room() {
            return None;
        }
        if let Some((kind, arg, data)) = self.greeting.take() {
            let slot = self.ring.take(true);
            self.control.posted_answer(slot.0);
            // The cast loses no bits, because the length is at most 4096.
            let transmit = self.frame(kind, data.len() as u32, arg, slot);
            return Some(Output::PostWithPayload(transmit, data));
        }
        // Control messages are posted before a Close, because they must not follow it.
        if messages.is_due()
            && self.control.permits_messages()
            && let Some((number, message)) = messages.post()
        {
            let slot = self.ring.take(true);
            // The cast loses no bits, because the length is at most 256.
            let len = message.len() as u32;
            let transmit = self.frame(Kind::ControlMessage, len, number, slot);
            return Some(Output::PostWithPayload(transmit, message));
        }
        self.next_control_frame(messages).map(Output::Post)
    }

    fn next_control_frame(&mut self, messages: &mut ControlMessages) -> Option<Transmit> {
        let grant_due = self.grant_due();
        let (control, code) = match self.control.pop(grant_due) {
            Some(queued) => queued,
            None if self.probe.take() => (self.ping(), None),
            None if self.control.permits_messages() && !self.has_peer_closed() => {
                (Control::Permit, Some(messages.take_grant()?))
            }
            None => return None,
        };
        match control {
            Control::Grant => self.counters.grants_sent += 1,
            Control::Ping | Control::Leave => self.counters.pings_sent += 1,
            Control::Pong
            | Control::Close
            | Control::CloseAck
            | Control::Abort
            | Control::Failure
            | Control::Finish
            | Control::Permit => {}
        }
        let arg = code.unwrap_or_else(|| self.inbound.report_taken());
        let slot = self.ring.take(true);
        self.control.posted(control, slot.0);
        Some(self.frame(Kind::Control(control), 0, arg, slot))
    }

    /// Chooses the kind of the next Ping: a Leave if one is due, otherwise a plain Ping. Records a
    /// chosen Leave as sent.
    fn ping(&mut self) -> Control {
        match self.leave {
            Leave::Due => {
                self.leave = Leave::Sent;
                Control::Leave
            }
            Leave::No | Leave::Sent => Control::Ping,
        }
    }

    /// Requests a Leave if none was requested before. Returns false if the peer does not support
    /// Leave.
    pub(super) fn leave(&mut self) -> bool {
        //= PROTOCOL.md#leaving
        //# It must not be sent to a side whose hello lacks bit 7 of `features`, and is sent once at
        //# most.
        let supported = self.longest_control_message().is_some();
        if supported && self.leave == Leave::No {
            self.leave = Leave::Due;
            self.probe.request_pong();
        }
        supported
    }

    #[inline(always)]
    fn data_frame(&mut self, kind: Kind, len: u32) -> Transmit {
        let arg = self.inbound.report_taken();
        let slot = self.ring.take_data(len);
        self.frame(kind, len, arg, slot)
    }

    /// Creates a frame for a slot of the send ring. The flag in `slot` states whether the send must
    /// be signalled.
    #[inline(always)]
    fn frame(&mut self, kind: Kind, len: u32, arg: u32, slot: (u32, bool)) -> Transmit {
        let header = Header {
            kind,
            sequence: self.sequence.send(),
            grant: self.recv_credit.announce(),
            len,
            arg,
        };
        Transmit {
            slot: slot.0,
            header: header.emit(),
            signalled: slot.1,
        }
    }

    /// Handles the completion of a signalled send, which implies the completion of all sends that
    /// were posted earlier. `acknowledges` states whether the completion proves that the peer's
    /// device has received these sends.
    pub(super) fn sent(&mut self, slot: u32, acknowledges: bool) {
        // The acknowledgement of the application's data is a sign of life, because this side sends
        // data frames only while the peer's library grants credit. The acknowledgement of a control
        // frame is no sign of life, because the peer's device receives control frames even after
        // the library has stopped. After a Ping, the sign of life is the peer's Pong, not the
        // acknowledgement, even if it also completes older data frames.
        if self.ring.complete(slot) && acknowledges {
            self.activity.on_connection += 1;
        }
        self.control.acknowledged(slot);
    }

    // Methods for receiving:

    /// Consumes the peer's credits for `count` messages in a frame, or one credit for a write with
    /// immediate data. Returns a violation if the peer was not allowed to send this frame or this
    /// write.
    #[inline]
    pub(super) fn take_credits(&mut self, kind: Kind, count: u32) -> Result<(), Violation> {
        if self.has_peer_closed() {
            return Err(kind.unexpected("no data after a close"));
        }
        if self.accepts == Accepts::NoMessages {
            return Err(kind.unexpected("no data after a finish"));
        }
        if !self.recv_credit.allows(count) {
            return Err(kind.unexpected("no data frame without credit"));
        }
        self.check_order(kind)?;
        self.recv_credit.receive(count);
        Ok(())
    }

    /// Returns a violation if fragments of a message are still missing, and a frame of this kind
    /// must not arrive between them.
    #[inline]
    pub(super) fn check_order(&self, kind: Kind) -> Result<(), Violation> {
        //= PROTOCOL.md#frames
        //# No other data frame, no Finish and no Close comes between the Fragments of a message.
        if kind != Kind::Fragment && self.inbound.missing().is_some() {
            return Err(kind.unexpected("the rest of a message"));
        }
        Ok(())
    }
}
