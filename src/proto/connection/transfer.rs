//! Frames, credits and slots, from the hellos to the end.

use std::time::{Duration, Instant};

use super::{
    Connection, State,
    keepalive::{Hearing, Keepalive, Probe},
};
use crate::proto::{
    Clock, Event, Negotiated, Output, Params, SendRefused, Statistics, Transmit,
    credit::{RecvCredit, SendCredit},
    frame::{Control, DESCRIPTOR_LEN, Header, Kind},
    hello::Hello,
    inbound::Inbound,
    lending::Lending,
    patience::Patience,
    reason::Violation,
    send_ring::SendRing,
};

/// The peer's hello brings this side's keepalive interval no lower than this: it costs this side its timer.
const LEAST_KEEPALIVE: Duration = Duration::from_millis(100);

/// What two sides that know each other keep.
#[derive(Debug)]
pub(super) struct Transfer {
    negotiated: Negotiated,
    pub(super) send_credit: SendCredit,
    pub(super) recv_credit: RecvCredit,
    pub(super) ring: SendRing,
    pub(super) lending: Lending,
    pub(super) inbound: Inbound,
    /// With the peer, or the system, that keeps large messages from being read.
    pub(super) patience: Patience,
    /// What is counted as it happens; what is held now is looked up.
    pub(super) counted: Statistics,
    pub(super) probe: Probe,
    pub(super) keepalive: Option<Keepalive>,
    keepalive_timeout: Duration,
    /// The peer's signs of life.
    pub(super) heard: Hearing,
    /// The identity of the peer's engine.
    pub(super) peer_engine: u64,
    /// Whether nothing more that the peer sends counts: it aborted, or broke the protocol. What follows a frame that could not be
    /// taken is a stream of messages with a hole in it.
    pub(super) deaf: bool,
    /// Whether a send was refused as blocked, and nobody was told since that it may work now: with the length of the large message that
    /// it was, or 0.
    blocked: Option<u64>,
    /// Control frames that are to be sent.
    pub(super) pending: Pending,
    /// How far the peer has come in closing.
    pub(super) farewell: Farewell,
    /// Whether this side's close has been posted.
    closed: bool,
    last_word: LastWord,
}

/// Control frames that are to be sent as soon as there is a slot. Of each kind there is at most one.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// An abort, or a failure.
    abort: Option<(Control, u32)>,
    pub(super) pong: bool,
    close: bool,
    close_ack: bool,
    grant: bool,
}

/// What the peer has said of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    None,
    /// It sends no more data.
    Closed,
    /// It has our close as well, and has read what came before that.
    Acknowledged,
}

/// How far our last word, CloseAck, Abort or Failure, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastWord {
    Unsaid,
    /// To be sent as soon as there is a slot.
    Wanted,
    /// In this slot, on its way.
    Sent(u32),
    /// At the peer's device.
    Arrived,
}

impl Transfer {
    pub(super) fn new(params: &Params, hello: &Hello) -> Self {
        Self::starting_at(params, hello, 0)
    }

    /// With the count of frames that the books start at: 0 but in tests.
    pub(super) fn starting_at(params: &Params, hello: &Hello, start: u32) -> Self {
        let theirs =
            (hello.keepalive_ms > 0).then(|| Duration::from_millis(hello.keepalive_ms.into()));
        let keepalive_interval = match (params.keepalive_interval, theirs) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs.max(LEAST_KEEPALIVE))),
            (ours, _) => ours,
        };
        let granted = match hello.credits {
            0 => hello.window,
            credits => credits,
        };
        Self {
            negotiated: Negotiated {
                version: hello.version,
                send_window: hello.window,
                recv_window: params.window,
                send_eager: u64::from(hello.eager_size.min(params.eager_size))
                    .min(hello.max_message) as u32,
                send_limit: hello.max_message,
                recv_limit: params.max_message,
                keepalive_interval,
            },
            send_credit: SendCredit::new(hello.window, granted, start),
            recv_credit: RecvCredit::new(params.window, params.credits(), start),
            ring: SendRing::new(params.send_slots),
            lending: Lending::new(params.large_memory),
            inbound: Inbound::new(params.window, params.large_memory, params.longest_chunk),
            patience: Patience::new(params.read_timeout),
            counted: Statistics::default(),
            probe: Probe::default(),
            keepalive: None,
            keepalive_timeout: params.keepalive_timeout,
            heard: Hearing::default(),
            peer_engine: hello.engine,
            deaf: false,
            blocked: None,
            pending: Pending::default(),
            farewell: Farewell::None,
            closed: false,
            last_word: LastWord::Unsaid,
        }
    }

    pub(super) fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    pub(super) fn start_keepalive(&mut self, now: Instant) {
        self.keepalive = self
            .negotiated
            .keepalive_interval
            .map(|interval| Keepalive::new(interval, self.keepalive_timeout, self.heard, now));
    }

    pub(super) fn keepalive_mut(&mut self) -> Option<&mut Keepalive> {
        self.keepalive.as_mut()
    }

    /// Pieces of large messages that were read, here and on any connection with the peer's engine:
    /// reads wait behind those of others where the path is slow.
    pub(super) fn pieces(&self) -> u64 {
        self.inbound.pieces() + self.heard.of_engine.chunks
    }

    pub(super) fn keepalive_deadline(&self) -> Option<Instant> {
        self.keepalive.as_ref().map(Keepalive::deadline)
    }

    /// Whether everything that was sent is known to be with the peer's library. That its device acknowledged it is no proof: who reads
    /// the queue in which it lies may be gone. Nor is it one against it that the device did not: one whose queue pair fails first never does.
    pub(super) fn delivered(&self) -> bool {
        self.farewell == Farewell::Acknowledged && self.lending.is_empty()
    }

    /// Whether the peer may send no more data.
    pub(super) fn has_peer_closed(&self) -> bool {
        self.farewell != Farewell::None
    }

    /// Whether all large messages that the peer announced have been read.
    pub(super) fn has_read_all(&self) -> bool {
        self.inbound.is_idle()
    }

    /// How many messages the peer sent that the application has not been given.
    pub(super) fn undelivered(&self) -> u64 {
        self.inbound.undelivered()
    }

    /// Whether this side has said that it sends no more data.
    pub(super) fn has_closed(&self) -> bool {
        self.closed
    }

    /// Whether this side has said its last word, or is about to.
    pub(super) fn has_last_word(&self) -> bool {
        self.last_word != LastWord::Unsaid
    }

    /// Whether the large messages of both sides have been read, and everything that was posted, telling it so included, has arrived.
    pub(super) fn is_settled(&self) -> bool {
        self.inbound.is_idle()
            && !self.inbound.telling_due()
            && self.lending.is_empty()
            && self.ring.is_empty()
    }

    /// Whether our last word is known to have arrived.
    pub(super) fn said_goodbye(&self) -> bool {
        self.last_word == LastWord::Arrived
    }

    pub(super) fn want_close(&mut self) {
        self.pending.close = true;
    }

    pub(super) fn want_close_ack(&mut self) {
        self.pending.close_ack = true;
        self.last_word = LastWord::Wanted;
    }

    /// Nothing but this is said from now on: an abort, or a failure.
    pub(super) fn want_abort(&mut self, control: Control, code: u32) {
        self.silence();
        self.pending.abort = Some((control, code));
        self.last_word = LastWord::Wanted;
    }

    /// Nothing more will be posted.
    pub(super) fn silence(&mut self) {
        self.pending = Pending::default();
        self.probe = Probe::default();
        self.keepalive = None;
    }

    pub(super) fn is_eager(&self, len: usize) -> bool {
        len as u64 <= self.negotiated.send_eager.into()
    }

    pub(super) fn may_send(&mut self, len: usize) -> Result<(), SendRefused> {
        let len = len as u64;
        if len > self.negotiated.send_limit {
            return Err(SendRefused::TooLong {
                limit: self.negotiated.send_limit,
            });
        }
        let large = len > self.negotiated.send_eager.into();
        if self.send_credit.available() == 0
            || !self.ring.has_room_for_data()
            || (large && !self.lending.has_room_for(len))
        {
            self.block(if large { len } else { 0 });
            return Err(SendRefused::Blocked);
        }
        Ok(())
    }

    pub(super) fn statistics(&self) -> Statistics {
        Statistics {
            buffers_held: self.recv_credit.held().into(),
            large_bytes_held: self.inbound.held_bytes(),
            large_bytes_exposed: self.lending.bytes(),
            ..self.counted
        }
    }

    /// The caller is to be told when there is room, for a large message of `large` bytes if that is what it has.
    fn block(&mut self, large: u64) {
        self.counted.stalls += 1;
        self.blocked = Some(self.blocked.map_or(large, |other| other.min(large)));
    }

    pub(super) fn send(&mut self, len: usize) -> Result<Transmit, SendRefused> {
        self.may_send(len)?;
        debug_assert!(len as u64 <= self.negotiated.send_eager.into());
        self.send_credit.take();
        self.counted.messages_sent += 1;
        self.counted.bytes_sent += len as u64;
        // The limit is a `u32`, so the length fits.
        Ok(self.data_frame(Kind::Data, len as u32))
    }

    pub(super) fn send_large(&mut self, len: u64) -> Result<Transmit, SendRefused> {
        // No address space is so large that the length would not fit.
        self.may_send(usize::try_from(len).unwrap_or(usize::MAX))?;
        self.send_credit.take();
        self.lending.lend(len);
        self.counted.messages_sent += 1;
        self.counted.bytes_sent += len;
        self.counted.large_sent += 1;
        Ok(self.data_frame(Kind::Rendezvous, DESCRIPTOR_LEN as u32))
    }

    /// Counts a data frame of the peer's, or what takes a credit as one does.
    pub(super) fn take_credit(&mut self, kind: Kind) -> Result<(), Violation> {
        if self.has_peer_closed() {
            return Err(kind.unexpected("no data after a close"));
        }
        self.recv_credit.receive()
    }

    pub(super) fn operate(&mut self, takes_receive: bool) -> Result<u32, SendRefused> {
        if !self.ring.has_room_for_data() || (takes_receive && self.send_credit.available() == 0) {
            self.block(0);
            return Err(SendRefused::Blocked);
        }
        if takes_receive {
            self.send_credit.take();
        }
        self.counted.operations += 1;
        Ok(self.ring.take_operation())
    }

    fn data_frame(&mut self, kind: Kind, len: u32) -> Transmit {
        let slot = self.ring.take_data(len);
        let arg = self.inbound.tell();
        self.frame(kind, len, arg, slot)
    }

    fn control_frame(&mut self, control: Control) -> Transmit {
        let arg = self.inbound.tell();
        self.control_frame_with(control, arg)
    }

    fn control_frame_with(&mut self, control: Control, arg: u32) -> Transmit {
        let slot = self.ring.take(true);
        self.frame(Kind::Control(control), 0, arg, slot)
    }

    /// The frame for a slot of the ring, with whether its send is signalled.
    fn frame(&mut self, kind: Kind, len: u32, arg: u32, slot: (u32, bool)) -> Transmit {
        let header = Header {
            kind,
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

    /// The next control frame that is to be sent, if there is a slot for it.
    fn next_control(&mut self) -> Option<Transmit> {
        if !self.ring.has_room() {
            return None;
        }
        if let Some((control, code)) = self.pending.abort.take() {
            let transmit = self.control_frame_with(control, code);
            self.last_word = LastWord::Sent(transmit.slot);
            return Some(transmit);
        }
        if std::mem::take(&mut self.pending.pong) {
            return Some(self.control_frame(Control::Pong));
        }
        if std::mem::take(&mut self.pending.close) {
            self.closed = true;
            return Some(self.control_frame(Control::Close));
        }
        if std::mem::take(&mut self.pending.close_ack) {
            let transmit = self.control_frame(Control::CloseAck);
            self.last_word = LastWord::Sent(transmit.slot);
            return Some(transmit);
        }
        // Another frame may have carried the grant meanwhile.
        if std::mem::take(&mut self.pending.grant)
            && (self.recv_credit.grant_due() || self.inbound.telling_due())
        {
            self.counted.grants_sent += 1;
            return Some(self.control_frame(Control::Grant));
        }
        if self.probe.take() {
            self.counted.pings_sent += 1;
            return Some(self.control_frame(Control::Ping));
        }
        None
    }

    pub(super) fn sent(&mut self, slot: u32) {
        // That the peer's device took control frames says nothing of its library, which may have
        // stopped: a ping wants a pong. Data it takes only as long as the library gives credit.
        if self.ring.complete(slot) {
            self.heard.here += 1;
        }
        if self.last_word == LastWord::Sent(slot) {
            self.last_word = LastWord::Arrived;
        }
    }

    /// Whether a sender that was refused is to be told that it may try again.
    fn take_writable(&mut self) -> bool {
        let writable = self.blocked.is_some_and(|large| {
            self.send_credit.available() > 0
                && self.ring.has_room_for_data()
                && (large == 0 || self.lending.has_room_for(large))
        });
        if writable {
            self.blocked = None;
        }
        writable
    }
}

/// A point in what was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    /// The peer has seen what was sent before when so many pongs have come,
    answered: u64,
    /// and so many large messages were taken.
    taken: u32,
}

impl Connection {
    pub(crate) fn statistics(&self) -> Statistics {
        self.transfer
            .as_ref()
            .map(Transfer::statistics)
            .unwrap_or_default()
    }

    /// Whether a large message is on its way, either way.
    pub(crate) fn transfers_large(&self) -> bool {
        self.transfer
            .as_ref()
            .is_some_and(|transfer| !transfer.inbound.is_idle() || !transfer.lending.is_empty())
    }

    /// Has the peer asked how far it has come. When it has come so far [`is_flushed`](Self::is_flushed) says so, and
    /// [`Event::Answered`] or [`Event::Taken`] tells when to look.
    pub(crate) fn flush(&mut self) -> Result<Flush, SendRefused> {
        let transfer = self.sending()?;
        let flush = Flush {
            answered: transfer.probe.wanted_from_now(),
            taken: transfer.lending.lent(),
        };
        self.send_control();
        Ok(flush)
    }

    /// Whether the peer's library has everything that was sent before `flush` was made.
    pub(crate) fn is_flushed(&self, flush: &Flush) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| {
            transfer.probe.answered >= flush.answered && transfer.lending.has_taken(flush.taken)
        })
    }

    /// One delivered message's buffer has been posted again: for this connection, or for all that share receives with it.
    pub(crate) fn release(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.recv_credit.release(self.account.as_deref());
        }
        self.grant_if_due();
    }

    /// The application has let go of a large message of `len` bytes.
    pub(crate) fn release_large(&mut self, len: u64, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.inbound.release(len);
        }
        self.read_on(now);
    }

    pub(super) fn grant_if_due(&mut self) {
        if let Some(transfer) = &mut self.transfer
            && (transfer.recv_credit.grant_due() || transfer.inbound.telling_due())
        {
            transfer.pending.grant = true;
            self.send_control();
        }
    }

    /// A signalled send completed, and with it all that were posted before it.
    pub(crate) fn handle_sent(&mut self, slot: u32, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.sent(slot);
            self.send_control();
            self.tell_writable();
            self.read_on(now);
            self.on_goodbye(now);
        }
    }

    /// Posts the control frames that are pending, as far as there are slots, while the peer may be spoken to.
    pub(super) fn send_control(&mut self) {
        match &self.state {
            State::Established | State::Closing(_) => {}
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. }
            | State::Draining(_)
            | State::Closed => return,
        }
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        while let Some(transmit) = transfer.next_control() {
            self.outputs.push(Output::Post(transmit));
        }
    }

    /// A sender that waits for room learns from its next try why there will be none.
    pub(super) fn tell_blocked(&mut self) {
        if let Some(transfer) = &mut self.transfer
            && transfer.blocked.take().is_some()
        {
            self.outputs.push(Output::Event(Event::Writable));
        }
    }

    pub(super) fn tell_writable(&mut self) {
        if let (State::Established, Some(transfer)) = (&self.state, &mut self.transfer)
            && transfer.take_writable()
        {
            self.outputs.push(Output::Event(Event::Writable));
        }
    }
}
