//! Frames and immediates of the peer.

use log::Level;

use super::{Connection, State, transfer::Heard};
use crate::{
    Arrival, Clock, CloseReason, Descriptor, Event, HEADER_LEN, Output, PART_HEADER_LEN,
    PeerTimeout, Topic,
    batch::Batch,
    frame::{Control, Header, KEEPALIVE_TIMEOUT, Kind, NOT_TAKEN, OUT_OF_RESOURCES, READ_TIMEOUT},
    reason::Violation,
};

/// The content of a receive, checked as far as that is possible without the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    Data(Header),
    Rendezvous(Header, Descriptor),
    Batch(Header, Batch),
    Control(Control, Header),
    Immediate { imm_data: u32, len: u32 },
}

impl Incoming {
    fn parse(frame: &[u8]) -> Result<Self, Violation> {
        let header = Header::parse(frame)?;
        Ok(match header.kind {
            Kind::Data => Self::Data(header),
            Kind::Rendezvous => Self::Rendezvous(header, Descriptor::parse(frame)?),
            Kind::Batch => Self::Batch(header, Batch::parse(&frame[HEADER_LEN..])?),
            Kind::Control(control) => Self::Control(control, header),
        })
    }
}

impl Connection {
    /// Takes a completed receive by the fast path, if it is a message and nothing more: with no
    /// news about large messages, in a stream that waits for none.
    ///
    /// Returns the message's length; the caller delivers it before it polls outputs. Returns `None`
    /// for anything else and changes nothing then: [`handle_recv`](Self::handle_recv) takes it.
    pub fn take_message(&mut self, frame: &[u8]) -> Option<u32> {
        let (State::Established, Some(transfer)) = (&self.state, &mut self.transfer) else {
            return None;
        };
        let header = Header::parse_data(frame)?;
        if header.len > self.params.eager_size
            || u64::from(header.len) > self.params.max_message
            || transfer.heard != Heard::Everything
            || !transfer.sequence.is_next(header.sequence)
            || !transfer.inbound.is_clear()
            // With the last one that the peer knows of, it waits for a grant.
            || !transfer.recv_credit.allows(2)
            || !transfer.outbound.is_reported(header.arg)
        {
            return None;
        }
        // Last, because from here on state changes.
        transfer.send_credit.granted(header.grant).ok()?;
        transfer.sequence.receive(header.sequence).ok()?;
        transfer.recv_credit.receive(1);
        transfer.activity.here += 1;
        transfer.counters.messages_received += 1;
        transfer.counters.bytes_received += u64::from(header.len);
        self.grant_if_due();
        self.report_writable();
        Some(header.len)
    }

    /// Takes a completed receive.
    pub fn handle_recv(&mut self, buffer: u32, frame: &[u8], now: impl Clock) {
        self.on_recv(buffer, Incoming::parse(frame), now);
    }

    /// Takes a receive that was consumed by a write of `len` bytes with immediate data.
    pub fn handle_immediate(&mut self, buffer: u32, imm_data: u32, len: u32, now: impl Clock) {
        self.on_recv(buffer, Ok(Incoming::Immediate { imm_data, len }), now);
    }

    fn on_recv(&mut self, buffer: u32, incoming: Result<Incoming, Violation>, now: impl Clock) {
        match &mut self.state {
            // A peer that respects this side's hello sends no more before it hears from this side.
            State::Connecting(_, early) if early.len() as u32 >= self.params.first_receives() => {
                let violation = Violation::new(
                    "frames before the hello",
                    early.len() as u64 + 1,
                    "no more than this side's hello allows",
                );
                self.note_violation(&violation);
                self.fail(CloseReason::ProtocolViolation(violation), now.now());
            }
            State::Connecting(_, early) => early.push_back((buffer, incoming)),
            State::Accepting { .. } => {
                // A peer that sends knows that the connection is established.
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
        if self
            .transfer
            .as_ref()
            .is_some_and(|transfer| transfer.heard == Heard::Nothing)
        {
            let text = format_args!("a frame after an abort or a violation: ignored");
            self.outputs.note(Level::Debug, text);
            return self.repost(buffer);
        }
        let is_control = matches!(&incoming, Ok(Incoming::Control(..)));
        if is_control {
            // Before anything is sent that the frame permits: see [`CONTROL_RECEIVES`](crate::CONTROL_RECEIVES).
            self.repost(buffer);
        }
        if let Err(violation) = incoming.and_then(|incoming| self.take(buffer, incoming, now)) {
            if !is_control {
                self.repost(buffer);
            }
            self.handle_violation(violation, now);
        }
        if let (State::Established, Some(transfer)) = (&self.state, &mut self.transfer) {
            transfer.watch_grant(now);
        }
    }

    /// The peer has violated the protocol: nothing of it is taken any more.
    pub fn handle_violation(&mut self, violation: Violation, now: impl Clock) {
        self.note_violation(&violation);
        self.ignore_peer();
        self.fail(CloseReason::ProtocolViolation(violation), now.now());
    }

    fn note_violation(&mut self, violation: &Violation) {
        let text = format_args!("the peer violated the protocol: {violation}");
        self.outputs.warn(Topic::Violation, text);
    }

    fn take(&mut self, buffer: u32, incoming: Incoming, now: impl Clock) -> Result<(), Violation> {
        if let Some(transfer) = &mut self.transfer {
            transfer.activity.here += 1;
        }
        match incoming {
            Incoming::Data(header) => self.on_data(buffer, header)?,
            Incoming::Rendezvous(header, descriptor) => {
                self.on_rendezvous(buffer, header, descriptor, now)?;
            }
            Incoming::Batch(header, batch) => self.on_batch(buffer, header, batch)?,
            Incoming::Control(control, header) => self.on_control(control, header, now)?,
            Incoming::Immediate { imm_data, len } => self.on_immediate(buffer, imm_data, len)?,
        }
        self.report_writable();
        Ok(())
    }

    /// Takes a message in a frame of its own.
    fn on_data(&mut self, buffer: u32, header: Header) -> Result<(), Violation> {
        self.take_numbers(header)?;
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        transfer.take_credits(Kind::Data, 1)?;
        if header.len > self.params.eager_size || u64::from(header.len) > self.params.max_message {
            return Err(Violation::new(
                "len",
                header.len.into(),
                "no more than the largest eager frame of the hello",
            ));
        }
        transfer.counters.messages_received += 1;
        transfer.counters.bytes_received += u64::from(header.len);
        self.arrive(Arrival::Message {
            buffer,
            offset: HEADER_LEN as u32,
            len: header.len,
        });
        Ok(())
    }

    /// Takes several messages in one frame.
    fn on_batch(&mut self, buffer: u32, header: Header, batch: Batch) -> Result<(), Violation> {
        self.take_numbers(header)?;
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        let Batch { count, longest } = batch;
        transfer.take_credits(Kind::Batch, count)?;
        if header.len > self.params.eager_size || u64::from(longest) > self.params.max_message {
            return Err(Violation::new(
                "len",
                header.len.into(),
                "no more than the largest eager frame of the hello",
            ));
        }
        transfer.counters.messages_received += u64::from(count);
        let lens = u64::from(count) * PART_HEADER_LEN as u64;
        transfer.counters.bytes_received += u64::from(header.len) - lens;
        self.arrive(Arrival::Batch {
            buffer,
            len: header.len,
            count,
        });
        Ok(())
    }

    /// Takes the announcement of a large message.
    fn on_rendezvous(
        &mut self,
        buffer: u32,
        header: Header,
        descriptor: Descriptor,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.take_numbers(header)?;
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        transfer.take_credits(Kind::Rendezvous, 1)?;
        if descriptor.len > self.params.max_message {
            return Err(Violation::new(
                "descriptor len",
                descriptor.len,
                "no more than the largest message of the hello",
            ));
        }
        transfer.inbound.announce(descriptor)?;
        transfer.counters.messages_received += 1;
        transfer.counters.bytes_received += descriptor.len;
        transfer.counters.large_received += 1;
        // Nothing of the frame is kept.
        if self.reposts() {
            self.outputs.push(Output::Release(buffer));
        }
        self.read_on(now);
        Ok(())
    }

    /// Takes the report of a write to this side's memory. It has no header.
    fn on_immediate(&mut self, buffer: u32, imm_data: u32, len: u32) -> Result<(), Violation> {
        if !self.exposed_writable {
            // A write of no bytes needs no key, so the device allows it to any peer.
            return Err(Violation::new(
                "immediate",
                imm_data.into(),
                "none, as no region was given out with the right to write",
            ));
        }
        if let Some(transfer) = &mut self.transfer {
            transfer.take_credits(Kind::Data, 1)?;
        }
        self.arrive(Arrival::Immediate {
            buffer,
            imm_data,
            len,
        });
        Ok(())
    }

    /// Takes a frame without a message.
    fn on_control(
        &mut self,
        control: Control,
        header: Header,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.take_numbers(header)?;
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        match control {
            Control::Grant => transfer.counters.grants_received += 1,
            Control::Ping => {
                transfer.control.queue_pong();
                self.send_control();
            }
            Control::Pong => {
                let answered = transfer.probe.answer();
                // Closing cancels probes, whose pongs may still come.
                if !answered && matches!(self.state, State::Established) {
                    return Err(Kind::Control(control).unexpected("no pong without a ping"));
                }
                self.outputs.push(Output::Event(Event::Answered));
                // Another ping may have waited for this pong.
                self.send_control();
            }
            Control::Finish => {
                if transfer.has_peer_closed() || transfer.heard == Heard::NoMessages {
                    let expected = "one finish, before the sender's close";
                    return Err(Kind::Control(control).unexpected(expected));
                }
                transfer.heard = Heard::NoMessages;
                self.arrive(Arrival::Finish);
            }
            Control::Close => self.on_close_frame(now)?,
            Control::CloseAck => self.on_close_ack(now)?,
            Control::Abort => {
                self.ignore_peer();
                self.fail(CloseReason::PeerAborted(header.arg), now.now());
            }
            Control::Failure => {
                self.ignore_peer();
                let reason = match header.arg {
                    OUT_OF_RESOURCES => CloseReason::PeerOutOfResources,
                    NOT_TAKEN => CloseReason::PeerBusy,
                    KEEPALIVE_TIMEOUT => CloseReason::PeerGaveUp(PeerTimeout::Keepalive),
                    READ_TIMEOUT => CloseReason::PeerGaveUp(PeerTimeout::Read),
                    code => CloseReason::PeerFailed(code),
                };
                self.fail(reason, now.now());
            }
        }
        Ok(())
    }

    /// Takes the numbers of a frame's header.
    fn take_numbers(&mut self, header: Header) -> Result<(), Violation> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        transfer.sequence.receive(header.sequence)?;
        transfer.send_credit.granted(header.grant)?;
        if let Some(taken) = header.taken() {
            let taken = transfer.outbound.apply_taken(taken)?;
            if taken > 0 {
                self.outputs.push(Output::Event(Event::Taken(taken)));
            }
        }
        Ok(())
    }

    /// Delivers what has arrived, or keeps it until everything before it is complete.
    fn arrive(&mut self, arrival: Arrival) {
        if let Some(transfer) = &mut self.transfer
            && let Some(arrival) = transfer.inbound.arrive(arrival)
        {
            self.outputs.push(Output::Event(Event::Arrived(arrival)));
        }
        // The peer may have used up its credit with it, while there are receives to grant.
        self.grant_if_due();
    }

    /// Has a buffer posted again whose content is not kept, if it is to be posted at all.
    pub(super) fn repost(&mut self, buffer: u32) {
        if self.reposts() {
            self.outputs.push(Output::Repost(buffer));
        }
    }

    /// Whether a free buffer is to be posted again. A shared one always is, until the end: other
    /// connections use it. After the end the driver posts all of them.
    fn reposts(&self) -> bool {
        let shared = self.params.shared && !matches!(self.state, State::Closed);
        shared || self.accepts_receives()
    }

    /// Drops everything else that the peer sends.
    fn ignore_peer(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.heard = Heard::Nothing;
        }
    }
}
