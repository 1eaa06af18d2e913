//! Frames, credits and slots, from the hellos to the end.

use std::time::{Duration, Instant};

use super::{Connection, State, keepalive::Keepalive};
use crate::proto::{
    CloseReason, Event, Negotiated, Output, Params, SendRefused, Transmit,
    credit::{RecvCredit, SendCredit},
    frame::{HEADER_LEN, Header, Kind},
    hello::Hello,
    reason::Violation,
    send_ring::SendRing,
};

/// The peer's hello brings this side's keepalive interval no lower than this: it costs this side its timer.
const LEAST_KEEPALIVE: Duration = Duration::from_millis(100);

/// What two sides that know each other keep.
#[derive(Debug)]
pub(super) struct Transfer {
    negotiated: Negotiated,
    send_credit: SendCredit,
    recv_credit: RecvCredit,
    ring: SendRing,
    keepalive: Option<Keepalive>,
    keepalive_timeout: Duration,
    /// Frames received, of any kind: the peer's signs of life.
    pub(super) heard: u64,
    /// Whether nothing more that the peer sends counts: it aborted, or broke the protocol. What follows a frame that could not be
    /// taken is a stream of messages with a hole in it.
    deaf: bool,
    /// Whether a send was refused as blocked, and nobody was told since that it may work now.
    blocked: bool,
    /// Control frames that are to be sent.
    pending: Pending,
    close: CloseSend,
}

/// Control frames that are to be sent as soon as there is a slot. Of each kind there is at most one.
#[derive(Debug, Default)]
struct Pending {
    abort: Option<u32>,
    pong: bool,
    close: bool,
    grant: bool,
    ping: bool,
}

/// How far our last word, Close or Abort, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseSend {
    NotSent,
    /// In this slot, on its way. Whether it is a close, which vouches for everything before it.
    Sent {
        slot: u32,
        vouches: bool,
    },
    Arrived {
        vouches: bool,
    },
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
        Self {
            negotiated: Negotiated {
                version: hello.version,
                send_window: hello.window,
                recv_window: params.window,
                send_limit: u64::from(hello.eager_size).min(hello.max_message),
                recv_limit: params.max_message,
                keepalive_interval,
            },
            send_credit: SendCredit::new(hello.window, start),
            recv_credit: RecvCredit::new(params.window, start),
            ring: SendRing::new(params.send_slots),
            keepalive: None,
            keepalive_timeout: params.keepalive_timeout,
            heard: 0,
            deaf: false,
            blocked: false,
            pending: Pending::default(),
            close: CloseSend::NotSent,
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

    pub(super) fn keepalive_deadline(&self) -> Option<Instant> {
        self.keepalive.as_ref().map(Keepalive::deadline)
    }

    /// Whether everything that was sent is known to have arrived at the peer's device.
    pub(super) fn arrived(&self) -> bool {
        self.close == CloseSend::Arrived { vouches: true }
    }

    /// Whether our last word is known to have arrived.
    pub(super) fn said_goodbye(&self) -> bool {
        matches!(self.close, CloseSend::Arrived { .. })
    }

    pub(super) fn want_close(&mut self) {
        self.pending.close = true;
    }

    /// Nothing but this is said from now on.
    pub(super) fn want_abort(&mut self, code: u32) {
        self.pending = Pending {
            abort: Some(code),
            ..Pending::default()
        };
    }

    pub(super) fn want_ping(&mut self) {
        self.pending.ping = true;
    }

    /// Nothing more will be posted.
    pub(super) fn silence(&mut self) {
        self.pending = Pending::default();
        self.keepalive = None;
    }

    pub(super) fn send(&mut self, len: usize) -> Result<Transmit, SendRefused> {
        if len as u64 > self.negotiated.send_limit {
            return Err(SendRefused::TooLong {
                limit: self.negotiated.send_limit,
            });
        }
        if self.send_credit.available() == 0 || !self.ring.has_room_for_data() {
            self.blocked = true;
            return Err(SendRefused::Blocked);
        }
        self.send_credit.take();
        // The limit is a `u32`, so the length fits.
        Ok(self.frame(Kind::Data, len as u32, 0, false))
    }

    fn frame(&mut self, kind: Kind, len: u32, arg: u32, signalled: bool) -> Transmit {
        let (slot, signalled) = self.ring.take(signalled);
        let header = Header {
            kind,
            grant: self.recv_credit.announce(),
            len,
            arg,
        }
        .emit();
        Transmit {
            slot,
            header,
            signalled,
        }
    }

    /// The next control frame that is to be sent, if there is a slot for it.
    fn next_control(&mut self) -> Option<Transmit> {
        if !self.ring.has_room() {
            return None;
        }
        if let Some(code) = self.pending.abort.take() {
            let transmit = self.frame(Kind::Abort, 0, code, true);
            self.close = CloseSend::Sent {
                slot: transmit.slot,
                vouches: false,
            };
            return Some(transmit);
        }
        if std::mem::take(&mut self.pending.pong) {
            return Some(self.frame(Kind::Pong, 0, 0, true));
        }
        if std::mem::take(&mut self.pending.close) {
            let transmit = self.frame(Kind::Close, 0, 0, true);
            self.close = CloseSend::Sent {
                slot: transmit.slot,
                vouches: true,
            };
            return Some(transmit);
        }
        // Another frame may have carried the grant meanwhile.
        if std::mem::take(&mut self.pending.grant) && self.recv_credit.grant_due() {
            return Some(self.frame(Kind::Grant, 0, 0, true));
        }
        if std::mem::take(&mut self.pending.ping) {
            return Some(self.frame(Kind::Ping, 0, 0, true));
        }
        None
    }

    fn sent(&mut self, slot: u32) {
        self.ring.complete(slot);
        if let CloseSend::Sent {
            slot: last_word,
            vouches,
        } = self.close
            && last_word == slot
        {
            self.close = CloseSend::Arrived { vouches };
        }
    }

    /// Whether a sender that was refused is to be told that it may try again.
    fn take_writable(&mut self) -> bool {
        let writable =
            self.blocked && self.send_credit.available() > 0 && self.ring.has_room_for_data();
        if writable {
            self.blocked = false;
        }
        writable
    }
}

impl Connection {
    /// One delivered message's buffer has been posted again.
    pub(crate) fn release(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.recv_credit.release();
        }
        self.grant_if_due();
        self.finish();
    }

    fn grant_if_due(&mut self) {
        if let Some(transfer) = &mut self.transfer
            && transfer.recv_credit.grant_due()
        {
            transfer.pending.grant = true;
            self.send_control();
        }
    }

    /// A receive completed with these bytes.
    pub(crate) fn handle_recv(&mut self, buffer: u32, frame: &[u8], now: Instant) {
        let header = Header::parse(frame);
        match &mut self.state {
            State::Connecting(_, early) => early.push_back((buffer, header)),
            State::Accepting { .. } => {
                // The peer speaks, so it knows that the connection is established.
                self.establish(now);
                self.on_frame(buffer, header, now);
            }
            State::Established | State::Closing(_) | State::Draining(_) => {
                self.on_frame(buffer, header, now)
            }
            State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Closed => self.unexpected("a frame"),
        }
        self.finish();
    }

    /// A signalled send completed, and with it all that were posted before it.
    pub(crate) fn handle_sent(&mut self, slot: u32, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            transfer.sent(slot);
            self.send_control();
            self.tell_writable();
            self.on_goodbye(now);
        }
        self.finish();
    }

    pub(super) fn on_frame(
        &mut self,
        buffer: u32,
        header: Result<Header, Violation>,
        now: Instant,
    ) {
        if self.transfer.as_ref().is_some_and(|transfer| transfer.deaf) {
            log::debug!("a frame after the peer's last word: ignored");
            return;
        }
        if let Err(violation) = header.and_then(|header| self.take_frame(buffer, header, now)) {
            log::warn!("the peer violated the protocol: {violation}");
            self.turn_deaf();
            self.fail(CloseReason::ProtocolViolation(violation), now);
        }
    }

    fn take_frame(&mut self, buffer: u32, header: Header, now: Instant) -> Result<(), Violation> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        transfer.heard += 1;
        transfer.send_credit.granted(header.grant)?;
        match header.kind {
            Kind::Data => {
                if self.peer_said_goodbye() {
                    return Err(Violation::new(
                        "kind",
                        Kind::Data as u64,
                        "no data after a close",
                    ));
                }
                // The borrow ends with the question above.
                if let Some(transfer) = &mut self.transfer {
                    transfer.recv_credit.receive()?;
                }
                if header.len > self.params.eager_size {
                    return Err(Violation::new(
                        "len",
                        header.len.into(),
                        "no more than the largest eager frame of the hello",
                    ));
                }
                let event = Event::Message {
                    buffer,
                    offset: HEADER_LEN as u32,
                    len: header.len,
                };
                self.outputs.push_back(Output::Event(event));
                // It may have been the last that the peer could send, with room here that it does not know of.
                self.grant_if_due();
            }
            Kind::Grant | Kind::Ping | Kind::Pong | Kind::Close | Kind::Abort => {
                // Before anything is sent that the frame allows: see `credit`.
                if self.takes_receives() {
                    self.outputs.push_back(Output::Repost(buffer));
                }
                self.take_control(header, now)?;
            }
        }
        self.tell_writable();
        Ok(())
    }

    fn take_control(&mut self, header: Header, now: Instant) -> Result<(), Violation> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        match header.kind {
            Kind::Data | Kind::Grant => {}
            Kind::Ping => {
                transfer.pending.pong = true;
                self.send_control();
            }
            Kind::Pong => {
                let answered = transfer.keepalive.as_mut().is_some_and(Keepalive::answered);
                // While closing nobody waits for it any more.
                if !answered && matches!(self.state, State::Established) {
                    return Err(Violation::new(
                        "kind",
                        Kind::Pong as u64,
                        "no pong without a ping",
                    ));
                }
            }
            Kind::Close => self.on_close_frame(now)?,
            Kind::Abort => {
                self.turn_deaf();
                self.fail(CloseReason::PeerAborted(header.arg), now);
            }
        }
        Ok(())
    }

    fn turn_deaf(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.deaf = true;
        }
    }

    /// Posts the control frames that are pending, as far as there are slots, while the peer may be spoken to.
    pub(super) fn send_control(&mut self) {
        match &self.state {
            State::Established | State::Closing(_) => {}
            State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepting { .. }
            | State::Draining(_)
            | State::Closed => return,
        }
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        while let Some(transmit) = transfer.next_control() {
            self.outputs.push_back(Output::Post(transmit));
        }
    }

    /// A sender that waits for room learns from its next try why there will be none.
    pub(super) fn tell_blocked(&mut self) {
        if let Some(transfer) = &mut self.transfer
            && std::mem::take(&mut transfer.blocked)
        {
            self.outputs.push_back(Output::Event(Event::Writable));
        }
    }

    fn tell_writable(&mut self) {
        if let (State::Established, Some(transfer)) = (&self.state, &mut self.transfer)
            && transfer.take_writable()
        {
            self.outputs.push_back(Output::Event(Event::Writable));
        }
    }
}
