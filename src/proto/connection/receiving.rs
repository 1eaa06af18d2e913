//! What comes from the peer.

use super::{Connection, State};
use crate::proto::{
    Arrival, Clock, CloseReason, Descriptor, Event, HEADER_LEN, Output,
    frame::{Control, Header, Kind, OUT_OF_RESOURCES},
    reason::Violation,
};

/// What a receive brought, as far as it can be checked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    Data(Header),
    Rendezvous(Header, Descriptor),
    Control(Control, Header),
    Immediate { imm_data: u32, len: u32 },
}

impl Incoming {
    fn parse(frame: &[u8]) -> Result<Self, Violation> {
        let header = Header::parse(frame)?;
        Ok(match header.kind {
            Kind::Data => Self::Data(header),
            Kind::Rendezvous => Self::Rendezvous(header, Descriptor::parse(frame)?),
            Kind::Control(control) => Self::Control(control, header),
        })
    }
}

impl Connection {
    /// A receive completed with these bytes. Takes what is most often there, a message with nothing to say but that, in a short way: its
    /// length is returned, and it is to be delivered before the outputs are looked at. `None`: nothing has changed, and
    /// [`handle_recv`](Self::handle_recv) is to take it.
    pub(crate) fn take_message(&mut self, frame: &[u8]) -> Option<u32> {
        let (State::Established, Some(transfer)) = (&self.state, &mut self.transfer) else {
            return None;
        };
        let header = Header::parse_data(frame)?;
        if header.len > self.params.eager_size
            || u64::from(header.len) > self.params.max_message
            || transfer.deaf
            || !transfer.inbound.is_clear()
            || !transfer.recv_credit.allows()
            || !transfer.lending.has_said(header.arg)
        {
            return None;
        }
        // Last, because it takes the grant if that is as it should be.
        transfer.send_credit.granted(header.grant).ok()?;
        transfer.recv_credit.receive().ok()?;
        transfer.heard.here += 1;
        transfer.counted.messages_received += 1;
        transfer.counted.bytes_received += u64::from(header.len);
        self.grant_if_due();
        self.tell_writable();
        Some(header.len)
    }

    /// A receive completed with these bytes.
    pub(crate) fn handle_recv(&mut self, buffer: u32, frame: &[u8], now: impl Clock) {
        self.on_recv(buffer, Incoming::parse(frame), now);
    }

    /// The peer wrote `len` bytes to this side's memory with an immediate `word`, which took a receive.
    pub(crate) fn handle_immediate(
        &mut self,
        buffer: u32,
        imm_data: u32,
        len: u32,
        now: impl Clock,
    ) {
        self.on_recv(buffer, Ok(Incoming::Immediate { imm_data, len }), now);
    }

    fn on_recv(&mut self, buffer: u32, incoming: Result<Incoming, Violation>, now: impl Clock) {
        match &mut self.state {
            // A peer that keeps to its hello has no more out before it is answered.
            State::Connecting(_, early) if early.len() as u32 >= self.params.first_receives() => {
                let violation = Violation::new(
                    "frames before the hello",
                    early.len() as u64 + 1,
                    "no more than this side's hello allows",
                );
                log::warn!("the peer violated the protocol: {violation}");
                self.fail(CloseReason::ProtocolViolation(violation), now.now());
            }
            State::Connecting(_, early) => early.push_back((buffer, incoming)),
            State::Accepting { .. } => {
                // The peer speaks, so it knows that the connection is established.
                self.establish(now.now());
                self.on_incoming(buffer, incoming, now);
            }
            State::Established | State::Closing(_) | State::Draining(_) => {
                self.on_incoming(buffer, incoming, now);
            }
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Closed => self.unexpected("a frame"),
        }
    }

    pub(super) fn on_incoming(
        &mut self,
        buffer: u32,
        incoming: Result<Incoming, Violation>,
        now: impl Clock,
    ) {
        if self.transfer.as_ref().is_some_and(|transfer| transfer.deaf) {
            log::debug!("a frame after the peer's last word: ignored");
            return self.give_back(buffer);
        }
        let is_control = matches!(&incoming, Ok(Incoming::Control(..)));
        if is_control {
            // Before anything is sent that the frame allows: see `credit`.
            self.give_back(buffer);
        }
        if let Err(violation) = incoming.and_then(|incoming| self.take(buffer, incoming, now)) {
            log::warn!("the peer violated the protocol: {violation}");
            if !is_control {
                self.give_back(buffer);
            }
            self.turn_deaf();
            self.fail(CloseReason::ProtocolViolation(violation), now.now());
        }
    }

    fn take(&mut self, buffer: u32, incoming: Incoming, now: impl Clock) -> Result<(), Violation> {
        if let Some(transfer) = &mut self.transfer {
            transfer.heard.here += 1;
        }
        match incoming {
            Incoming::Data(header) => self.on_data(buffer, header)?,
            Incoming::Rendezvous(header, descriptor) => {
                self.on_rendezvous(buffer, header, descriptor, now)?;
            }
            Incoming::Control(control, header) => self.on_control(control, header, now)?,
            Incoming::Immediate { imm_data, len } => self.on_immediate(buffer, imm_data, len)?,
        }
        self.tell_writable();
        Ok(())
    }

    /// A message in a frame of its own.
    fn on_data(&mut self, buffer: u32, header: Header) -> Result<(), Violation> {
        self.take_counters(header)?;
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        transfer.take_credit(Kind::Data)?;
        if header.len > self.params.eager_size || u64::from(header.len) > self.params.max_message {
            return Err(Violation::new(
                "len",
                header.len.into(),
                "no more than the largest eager frame of the hello",
            ));
        }
        transfer.counted.messages_received += 1;
        transfer.counted.bytes_received += u64::from(header.len);
        self.arrive(Arrival::Message {
            buffer,
            offset: HEADER_LEN as u32,
            len: header.len,
        });
        Ok(())
    }

    /// The announcement of a large message.
    fn on_rendezvous(
        &mut self,
        buffer: u32,
        header: Header,
        descriptor: Descriptor,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.take_counters(header)?;
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        transfer.take_credit(Kind::Rendezvous)?;
        if descriptor.len > self.params.max_message {
            return Err(Violation::new(
                "descriptor len",
                descriptor.len,
                "no more than the largest message of the hello",
            ));
        }
        transfer.inbound.announce(descriptor)?;
        transfer.counted.messages_received += 1;
        transfer.counted.bytes_received += descriptor.len;
        transfer.counted.large_received += 1;
        // Nothing of the frame is kept.
        if self.takes_back() {
            self.outputs.push(Output::Release(buffer));
        }
        self.read_on(now);
        Ok(())
    }

    /// A write to this side's memory that the peer reports. It brings no header.
    fn on_immediate(&mut self, buffer: u32, imm_data: u32, len: u32) -> Result<(), Violation> {
        if !self.gave_out_writable {
            // A write of no bytes needs no key, so the device lets anybody do it.
            return Err(Violation::new(
                "immediate",
                imm_data.into(),
                "none, as no region was given out with the right to write",
            ));
        }
        if let Some(transfer) = &mut self.transfer {
            transfer.take_credit(Kind::Data)?;
        }
        self.arrive(Arrival::Immediate {
            buffer,
            imm_data,
            len,
        });
        Ok(())
    }

    fn on_control(
        &mut self,
        control: Control,
        header: Header,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.take_counters(header)?;
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        match control {
            Control::Grant => transfer.counted.grants_received += 1,
            Control::Ping => {
                transfer.pending.pong = true;
                self.send_control();
            }
            Control::Pong => {
                let answered = transfer.probe.answer();
                // While closing nobody waits for it any more.
                if !answered && matches!(self.state, State::Established) {
                    return Err(Kind::Control(control).unexpected("no pong without a ping"));
                }
                self.outputs.push(Output::Event(Event::Answered));
                // Another ping may have waited for this.
                self.send_control();
            }
            Control::Close => self.on_close_frame(now)?,
            Control::CloseAck => self.on_close_ack(now)?,
            Control::Abort => {
                self.turn_deaf();
                self.fail(CloseReason::PeerAborted(header.arg), now.now());
            }
            Control::Failure => {
                self.turn_deaf();
                let reason = match header.arg {
                    OUT_OF_RESOURCES => CloseReason::PeerOutOfResources,
                    code => CloseReason::PeerFailed(code),
                };
                self.fail(reason, now.now());
            }
        }
        Ok(())
    }

    /// Takes the counters that every frame carries.
    fn take_counters(&mut self, header: Header) -> Result<(), Violation> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        transfer.send_credit.granted(header.grant)?;
        if let Some(taken) = header.taken() {
            let taken = transfer.lending.taken(taken)?;
            if taken > 0 {
                self.outputs.push(Output::Event(Event::Taken(taken)));
            }
        }
        Ok(())
    }

    /// Delivers what arrived whole, or keeps it until what is before it is complete.
    fn arrive(&mut self, arrival: Arrival) {
        if let Some(transfer) = &mut self.transfer
            && let Some(arrival) = transfer.inbound.arrive(arrival)
        {
            self.outputs.push(Output::Event(Event::Arrived(arrival)));
        }
        // It may have been the last that the peer could send, with room here that it does not know of.
        self.grant_if_due();
    }

    /// Nothing is kept of what is in this buffer: it is posted again where that is worth anything.
    pub(super) fn give_back(&mut self, buffer: u32) {
        if self.takes_back() {
            self.outputs.push(Output::Repost(buffer));
        }
    }

    /// Whether a buffer that is free again is to be posted: shared ones serve others, whatever
    /// becomes of this connection. After the end they go back with all else.
    fn takes_back(&self) -> bool {
        let shared = self.params.shared && !matches!(self.state, State::Closed);
        shared || self.takes_receives()
    }

    fn turn_deaf(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.deaf = true;
        }
    }
}
