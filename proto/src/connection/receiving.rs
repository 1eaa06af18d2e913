//! Handles the peer's frames and immediate data.

use std::mem;

use log::Level;

use super::{open::Open, side::Side, transfer::Accepts};
use crate::{
    Arrival, Clock, CloseReason, Descriptor, Event, HEADER_LEN, Output, PART_HEADER_LEN,
    PeerTimeout,
    batch::Batch,
    frame::{Control, Header, KEEPALIVE_TIMEOUT, Kind, NOT_TAKEN, OUT_OF_RESOURCES, READ_TIMEOUT},
    hello::PrivateBytes,
    inbound::Fragment,
    reason::Violation,
};

/// The content of a completed receive, after all checks that do not depend on the connection's
/// state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum Incoming {
    Data(Header),
    Rendezvous(Header, Descriptor),
    Batch(Header, Batch),
    /// The header of a fragment, the length in bytes of its payload, and whether the payload is
    /// already in the memory of its message.
    Fragment {
        header: Header,
        len: u32,
        in_place: bool,
    },
    ControlMessage(Header),
    /// A Request or an Answer: the header and the private data.
    PrivateData(Header, PrivateBytes),
    Control(Control, Header),
    Immediate {
        imm_data: u32,
        len: u32,
    },
}

impl Incoming {
    pub(super) fn parse(frame: &[u8]) -> Result<Self, Violation> {
        let header = Header::parse(frame)?;
        Ok(match header.kind {
            Kind::Data => Self::Data(header),
            Kind::Rendezvous => Self::Rendezvous(header, Descriptor::parse(frame)?),
            Kind::Batch => Self::Batch(header, Batch::parse(&frame[HEADER_LEN..])?),
            // The cast loses no bits, because the message's length is a `u32`, and a fragment is at
            // most as long as its message.
            Kind::Fragment => Self::Fragment {
                header,
                len: (frame.len() - HEADER_LEN) as u32,
                in_place: false,
            },
            Kind::ControlMessage => Self::ControlMessage(header),
            Kind::Request | Kind::Answer => Self::PrivateData(header, frame[HEADER_LEN..].into()),
            Kind::Control(control) => Self::Control(control, header),
        })
    }
}

impl Open {
    /// Handles a frame on the fast path, which supports only frames with a single message: see
    /// [`Connection::take_message`](super::Connection::take_message).
    #[inline]
    pub(super) fn take_message(&mut self, side: &mut Side, frame: &[u8]) -> Option<u32> {
        if !self.is_established() {
            return None;
        }
        let transfer = &mut self.transfer;
        let header = Header::parse_data(frame)?;
        if header.len > side.params.eager_size
            || u64::from(header.len) > side.params.max_message
            || transfer.accepts != Accepts::Everything
            || !transfer.sequence.is_next(header.sequence)
            || !transfer.inbound.is_clear()
            // If this message uses the peer's last credit, the peer waits for a grant, which the
            // fast path does not send.
            || !transfer.recv_credit.allows(2)
            || !transfer.outbound.is_reported(header.arg)
            // If a send was refused, the grant in this frame could permit a retry, which the fast
            // path does not report.
            || transfer.is_blocked()
        {
            return None;
        }
        // `granted` is the last check. All other checks precede it, because it changes the state if
        // the grant is valid. After these checks, `receive` cannot fail.
        transfer.send_credit.granted(header.grant).ok()?;
        transfer.sequence.receive(header.sequence).ok()?;
        transfer.recv_credit.receive(1);
        transfer.activity.on_connection += 1;
        transfer.counters.messages_received += 1;
        transfer.counters.bytes_received += u64::from(header.len);
        Some(header.len)
    }

    pub(super) fn on_incoming(
        &mut self,
        side: &mut Side,
        buffer: u32,
        incoming: Result<Incoming, Violation>,
        now: impl Clock,
    ) {
        if self.transfer.accepts == Accepts::Nothing {
            side.outputs.note(
                Level::Debug,
                format_args!(
                    "ignored a frame, because the ending connection accepts no further frames"
                ),
            );
            return self.repost(side, buffer);
        }
        let is_control = matches!(
            &incoming,
            Ok(Incoming::Control(..) | Incoming::PrivateData(..))
        );
        //= PROTOCOL.md#credits
        //# Each side keeps 15 receives posted for them on top of those of its window, and posts the
        //# receive of a control frame again **before it sends anything that the frame permits**.
        if is_control {
            self.repost(side, buffer);
        }
        if let Err(violation) = incoming.and_then(|incoming| self.take(side, buffer, incoming, now))
        {
            if !is_control {
                self.repost(side, buffer);
            }
            self.on_violation(side, violation, now);
        }
        if self.is_established() {
            self.transfer.watch_grant(now);
        }
    }

    /// Handles a protocol violation by the peer. Ignores the peer's further frames.
    pub(super) fn on_violation(&mut self, side: &mut Side, violation: Violation, now: impl Clock) {
        side.note_violation(&violation);
        //= PROTOCOL.md#violations
        //# The receiver of a violation delivers the messages that came before it and are complete,
        //# ignores everything that the peer sends afterwards, and disconnects without a notice; the
        //# peer sees DISCONNECTED, or the failure of its own work requests.
        self.transfer.accepts = Accepts::Nothing;
        self.fail(side, CloseReason::ProtocolViolation(violation), now.now());
    }

    fn take(
        &mut self,
        side: &mut Side,
        buffer: u32,
        incoming: Incoming,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.transfer.activity.on_connection += 1;
        if !self.was_established() {
            check_greets(&incoming)?;
        }
        match incoming {
            Incoming::Data(header) => self.on_data(side, buffer, header)?,
            Incoming::Rendezvous(header, descriptor) => {
                self.on_rendezvous(side, buffer, header, descriptor, now)?;
            }
            Incoming::Batch(header, batch) => self.on_batch(side, buffer, header, batch)?,
            Incoming::Fragment {
                header,
                len,
                in_place,
            } => {
                let fragment = Fragment {
                    buffer,
                    len,
                    in_place,
                };
                self.on_fragment(side, header, fragment, now)?;
            }
            Incoming::ControlMessage(header) => self.on_control_message(side, buffer, header)?,
            Incoming::PrivateData(header, data) => self.on_private_data(side, header, data, now)?,
            Incoming::Control(control, header) => self.on_control(side, control, header, now)?,
            Incoming::Immediate { imm_data, len } => {
                self.on_immediate(side, buffer, imm_data, len)?
            }
        }
        self.report_writable(side);
        Ok(())
    }

    /// Handles a Data frame, which contains a single message.
    fn on_data(&mut self, side: &mut Side, buffer: u32, header: Header) -> Result<(), Violation> {
        self.apply_header(side, header)?;
        let transfer = &mut self.transfer;
        transfer.take_credits(Kind::Data, 1)?;
        if header.len > side.params.eager_size || u64::from(header.len) > side.params.max_message {
            return Err(Violation::new(
                "len",
                header.len.into(),
                "no more than the largest eager frame of the hello",
            ));
        }
        transfer.counters.messages_received += 1;
        transfer.counters.bytes_received += u64::from(header.len);
        self.arrive(
            side,
            Arrival::Message {
                buffer,
                offset: HEADER_LEN as u32,
                len: header.len,
            },
        );
        Ok(())
    }

    /// Handles a Batch frame, which contains several messages.
    fn on_batch(
        &mut self,
        side: &mut Side,
        buffer: u32,
        header: Header,
        batch: Batch,
    ) -> Result<(), Violation> {
        self.apply_header(side, header)?;
        let transfer = &mut self.transfer;
        let Batch { count, longest } = batch;
        transfer.take_credits(Kind::Batch, count)?;
        if header.len > side.params.eager_size || u64::from(longest) > side.params.max_message {
            return Err(Violation::new(
                "len",
                header.len.into(),
                "no more than the largest eager frame of the hello",
            ));
        }
        transfer.counters.messages_received += u64::from(count);
        let lens = u64::from(count) * PART_HEADER_LEN as u64;
        transfer.counters.bytes_received += u64::from(header.len) - lens;
        self.arrive(
            side,
            Arrival::Batch {
                buffer,
                len: header.len,
                count,
            },
        );
        Ok(())
    }

    /// Handles a Rendezvous frame, which announces a large message.
    fn on_rendezvous(
        &mut self,
        side: &mut Side,
        buffer: u32,
        header: Header,
        descriptor: Descriptor,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.apply_header(side, header)?;
        let transfer = &mut self.transfer;
        transfer.take_credits(Kind::Rendezvous, 1)?;
        if descriptor.len > side.params.max_message {
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
        // The content of the frame is no longer needed, so its buffer can be reposted.
        self.discard_receive(side, buffer);
        self.read_on(side, now);
        Ok(())
    }

    /// Releases the receive of a data frame whose content is no longer needed.
    pub(super) fn discard_receive(&mut self, side: &mut Side, buffer: u32) {
        if self.reposts(side) {
            side.outputs.push(Output::Release(buffer));
        } else {
            self.transfer.recv_credit.give_up();
        }
    }

    /// Handles a Fragment frame, which contains a part of a message.
    fn on_fragment(
        &mut self,
        side: &mut Side,
        header: Header,
        fragment: Fragment,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.apply_header(side, header)?;
        let transfer = &mut self.transfer;
        transfer.take_credits(Kind::Fragment, 1)?;
        let rest = header.len;
        //= PROTOCOL.md#frames
        //# The `length` of each further Fragment is the `length` of the previous one, minus the
        //# number of payload bytes of the previous one.
        let (fits, expected) = match transfer.inbound.missing() {
            _ if fragment.len > side.params.eager_size => {
                (false, "no more than the largest eager frame of the hello")
            }
            None => (
                u64::from(rest) <= side.params.max_message,
                "no more than the largest message of the hello",
            ),
            Some(missing) => (u64::from(rest) == missing, "the rest of the message"),
        };
        if !fits {
            return Err(Violation::new("len", rest.into(), expected));
        }
        if transfer.inbound.missing().is_none() {
            transfer.counters.messages_received += 1;
            transfer.counters.bytes_received += u64::from(rest);
        }
        transfer.inbound.fragment(fragment, rest);
        transfer.incomplete_frames += u32::from(rest > fragment.len);
        self.watch_fragments(now);
        self.read_on(side, now);
        self.grant_if_due(side);
        Ok(())
    }

    /// Handles the immediate data of a write to this side's memory. Immediate data arrive without a
    /// frame header.
    fn on_immediate(
        &mut self,
        side: &mut Side,
        buffer: u32,
        imm_data: u32,
        len: u32,
    ) -> Result<(), Violation> {
        //= PROTOCOL.md#one-sided-operations
        //# It must not be sent to a side that gave out no memory with the right to write.
        if !side.exposed_writable {
            // The device accepts a write of 0 bytes from any peer, because such a write needs no
            // key.
            return Err(Violation::new(
                "immediate",
                imm_data.into(),
                "none, because no memory is exposed for writing",
            ));
        }
        self.transfer.take_credits(Kind::Data, 1)?;
        self.arrive(
            side,
            Arrival::Immediate {
                buffer,
                imm_data,
                len,
            },
        );
        Ok(())
    }

    /// Handles a control message. The driver copies the message before the buffer is reposted.
    fn on_control_message(
        &mut self,
        side: &mut Side,
        buffer: u32,
        header: Header,
    ) -> Result<(), Violation> {
        self.apply_header(side, header)?;
        if !side.params.takes_control_messages {
            let expected = "no control message to a side that takes none";
            return Err(Kind::ControlMessage.unexpected(expected));
        }
        if self.transfer.has_peer_closed() {
            return Err(Kind::ControlMessage.unexpected("no control message after a close"));
        }
        if header.len > side.params.eager_size {
            return Err(Violation::new(
                "len",
                header.len.into(),
                "no more than the largest eager frame of the hello",
            ));
        }
        if side.control_messages.receive(header.arg)? {
            let len = header.len;
            let event = Event::ControlMessage { buffer, len };
            side.outputs.push(Output::Event(event));
        }
        //= PROTOCOL.md#control-messages
        //# The receive of a control message is posted again at once, and before any Permit
        //# that is sent later.
        self.repost(side, buffer);
        self.grant_control_messages(side);
        Ok(())
    }

    /// Sends a grant for control messages, if one is due.
    pub(super) fn grant_control_messages(&mut self, side: &mut Side) {
        // A peer that has sent its Close must not send further control messages, so it needs no
        // grant.
        if side.control_messages.grant_due() && !self.transfer.has_peer_closed() {
            self.send_control(side);
        }
    }

    /// Handles a control frame.
    fn on_control(
        &mut self,
        side: &mut Side,
        control: Control,
        header: Header,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.apply_header(side, header)?;
        let transfer = &mut self.transfer;
        match control {
            Control::Grant => transfer.counters.grants_received += 1,
            //= PROTOCOL.md#keepalive
            //# A side that receives a Ping must answer with a Pong as soon as it has processed all
            //# frames before it, whether it probes itself or not.
            Control::Ping => {
                transfer.control.queue_pong();
                self.send_control(side);
            }
            Control::Leave => {
                if !side.params.takes_control_messages {
                    let expected = "no leave to a side that takes no control messages";
                    return Err(Kind::Control(control).unexpected(expected));
                }
                if mem::replace(&mut transfer.peer_leaves, true) {
                    return Err(Kind::Control(control).unexpected("one leave"));
                }
                if !transfer.has_peer_closed() {
                    side.outputs.push(Output::Event(Event::PeerLeaving));
                }
                transfer.control.queue_pong();
                self.send_control(side);
            }
            Control::Pong => {
                let answered = transfer.probe.answer();
                // When this side aborts or disconnects, it forgets an unanswered Ping. The Pong for
                // this Ping can still arrive.
                if !answered && !self.is_ending() {
                    return Err(Kind::Control(control).unexpected("no pong without a ping"));
                }
                side.outputs.push(Output::Event(Event::Answered));
                // Another Ping may have been waiting for this Pong.
                self.send_control(side);
            }
            Control::Finish => {
                //= PROTOCOL.md#half-close
                //# A Finish is sent once at most, and not after a Close.
                transfer.check_order(Kind::Control(control))?;
                if transfer.has_peer_closed() || transfer.accepts == Accepts::NoMessages {
                    let expected = "one finish, before the sender's close";
                    return Err(Kind::Control(control).unexpected(expected));
                }
                transfer.accepts = Accepts::NoMessages;
                self.arrive(side, Arrival::Finish);
            }
            Control::Close => {
                transfer.check_order(Kind::Control(control))?;
                self.on_close_frame(side, now)?;
            }
            Control::CloseAck => self.on_close_ack(side, now)?,
            Control::Permit => side.control_messages.granted(header.arg)?,
            //= PROTOCOL.md#closing
            //# The receiver of an Abort ignores everything behind it and disconnects.
            Control::Abort => {
                self.transfer.accepts = Accepts::Nothing;
                self.fail(side, CloseReason::PeerAborted(header.arg), now.now());
            }
            Control::Failure => {
                self.transfer.accepts = Accepts::Nothing;
                let reason = match header.arg {
                    OUT_OF_RESOURCES => CloseReason::PeerOutOfResources,
                    NOT_TAKEN => CloseReason::PeerBusy,
                    KEEPALIVE_TIMEOUT => CloseReason::PeerGaveUp(PeerTimeout::Keepalive),
                    READ_TIMEOUT => CloseReason::PeerGaveUp(PeerTimeout::Read),
                    code => CloseReason::PeerFailed(code),
                };
                self.fail(side, reason, now.now());
            }
        }
        Ok(())
    }

    /// Applies the header of a frame: the sequence number, the grant, and the number of large
    /// messages that the peer has taken.
    pub(super) fn apply_header(
        &mut self,
        side: &mut Side,
        header: Header,
    ) -> Result<(), Violation> {
        let transfer = &mut self.transfer;
        transfer.sequence.receive(header.sequence)?;
        transfer.send_credit.granted(header.grant)?;
        if let Some(taken) = header.taken() {
            let taken = transfer.outbound.apply_taken(taken)?;
            if taken > 0 {
                side.outputs.push(Output::Event(Event::Taken(taken)));
            }
        }
        Ok(())
    }

    /// Delivers an arrival, or queues it until all earlier messages are complete.
    fn arrive(&mut self, side: &mut Side, arrival: Arrival) {
        if let Some(arrival) = self.transfer.inbound.arrive(arrival) {
            side.outputs.push(Output::Event(Event::Arrived(arrival)));
        }
        // The peer may have used its last credit for this arrival. If so, this side grants the
        // receives that it can grant.
        self.grant_if_due(side);
    }

    /// Asks the driver to repost a buffer, because its content is no longer needed. Does nothing if
    /// [`reposts`](Self::reposts) returns false.
    pub(super) fn repost(&mut self, side: &mut Side, buffer: u32) {
        if self.reposts(side) {
            side.outputs.push(Output::Repost(buffer));
        }
    }

    /// Returns whether the driver must repost free buffers. Buffers that are not shared are
    /// reposted only while the queue pair works. Shared buffers are reposted until the connection
    /// ends, because other connections use them. After the end, the driver reposts the remaining
    /// shared buffers without further outputs.
    fn reposts(&self, side: &Side) -> bool {
        side.params.shared || self.is_connected()
    }
}

/// Checks that `incoming` is allowed before the Answer to a long request. Until the Answer, the
/// connection is not considered established.
fn check_greets(incoming: &Incoming) -> Result<(), Violation> {
    //= PROTOCOL.md#long-requests
    //# Until the Answer, both sides must send nothing else than Ping, Pong, Grant, Abort and
    //# Failure.
    let kind = match incoming {
        Incoming::PrivateData(..)
        | Incoming::Control(
            Control::Ping | Control::Pong | Control::Grant | Control::Abort | Control::Failure,
            _,
        ) => return Ok(()),
        Incoming::Data(header)
        | Incoming::Rendezvous(header, _)
        | Incoming::Batch(header, _)
        | Incoming::Fragment { header, .. }
        | Incoming::ControlMessage(header)
        | Incoming::Control(_, header) => header.kind,
        Incoming::Immediate { .. } => Kind::Data,
    };
    Err(kind.unexpected("no message and no close before the answer"))
}
