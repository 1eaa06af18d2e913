//! The operations that the connection manager and the device perform.

use super::{Device, Large, Sent};
use crate::{
    proto::{
        CONTROL_RECEIVES, CmInput, CmOp, Descriptor, DrainSide, Params, TransportTraits, Work,
        testing::BOTH_WAYS,
    },
    status::{OsError, WcStatus},
    wire::{hello, long, word},
};

impl Device {
    /// Makes the next requested call to the connection manager succeed. If the call results in an
    /// event, delivers the event.
    pub(crate) fn perform_well(&mut self, theirs: &Params) {
        let hello = hello(theirs, self.long);
        let Some(op) = self.wanted.pop_front() else {
            return;
        };
        let event = match op {
            CmOp::CreateTransport => {
                let count = u32::from(self.params.window) + CONTROL_RECEIVES;
                self.posted = (0..count).collect();
                return self.conn.handle_transport(TransportTraits::UNRESTRICTED);
            }
            CmOp::ResolveAddr { .. } => CmInput::AddrResolved,
            CmOp::ResolveRoute { .. } => CmInput::RouteResolved,
            CmOp::Connect { .. } | CmOp::Accept { .. } => {
                self.connected = true;
                let is_active = matches!(op, CmOp::Connect { .. });
                CmInput::Established {
                    private_data: if is_active { &hello } else { &[] },
                    reads: BOTH_WAYS,
                }
            }
            // Permit the setup immediately: the simulation has no limit on concurrent setups.
            CmOp::AwaitSetupSlot => return self.conn.begin_setup(self.now),
            CmOp::Discard => {
                assert!(self.sending.is_empty() && !self.established);
                self.posted.clear();
                self.connected = false;
                return;
            }
            CmOp::Disconnect => {
                self.broken = true;
                CmInput::Disconnected
            }
            CmOp::CreateId | CmOp::Reject { .. } | CmOp::SetMinRnrTimer => return,
        };
        self.conn.handle_cm_event(event, self.now);
    }

    /// Establishes the connection: makes all requested calls to the connection manager succeed, and
    /// accepts the request if the peer connects. If private data are sent in separate frames, also
    /// receives the peer's frame.
    pub(crate) fn establish(&mut self, theirs: &Params) {
        let is_active = self.conn.peer_engine().is_none();
        self.conn.accept(b"", self.now);
        self.perform_outputs();
        while !self.wanted.is_empty() {
            self.perform_well(theirs);
            self.perform_outputs();
        }
        if self.long {
            let mut frame = vec![if is_active { 14 } else { 13 }, 0, 0, 0];
            frame.extend(u32::from(theirs.window).to_be_bytes());
            frame.extend([0; 8]);
            self.frames(&[frame]);
            self.conn.accept(b"", self.now);
            self.perform_outputs();
        }
    }

    /// Makes the next requested call to the connection manager fail with `errno`.
    pub(crate) fn fail_to_perform(&mut self, errno: i32) {
        if let Some(op) = self.wanted.pop_front() {
            let error = OsError::new("rdma_call", errno);
            self.conn.handle_cm_failure(op.call(), error, self.now);
        }
    }

    fn receive(&mut self, frame: &[u8]) -> Option<u32> {
        if !self.connected || self.broken || self.ended.is_some() {
            return None;
        }
        let buffer = self.posted.pop_front()?;
        self.filled.insert(buffer, frame.to_vec());
        Some(buffer)
    }

    /// Receives the frames, at most one for each posted receive. All frames arrive before the
    /// connection processes the first one. The number in each frame of `frames` is the difference
    /// from the expected frame number: 0 in a valid frame. This function replaces the difference
    /// with the actual number.
    pub(crate) fn frames(&mut self, frames: &[Vec<u8>]) {
        let arrived: Vec<_> = frames
            .iter()
            .map_while(|frame| self.receive_numbered(frame))
            .collect();
        for (buffer, frame) in arrived {
            self.frame(buffer, &frame);
            self.perform_outputs();
        }
    }

    fn receive_numbered(&mut self, frame: &[u8]) -> Option<(u32, Vec<u8>)> {
        let mut frame = frame.to_vec();
        if let Some([a, b]) = frame.get_mut(2..4) {
            let number = self
                .frames_received
                .wrapping_add(u16::from_be_bytes([*a, *b]));
            [*a, *b] = number.to_be_bytes();
        }
        let buffer = self.receive(&frame)?;
        self.frames_received = self.frames_received.wrapping_add(1);
        Some((buffer, frame))
    }

    fn frame(&mut self, buffer: u32, frame: &[u8]) {
        // The connection processes the frame later, or never, so record the frame's descriptor
        // here. `read` compares the READs with the descriptor.
        if let Some(descriptor) = large(frame) {
            self.announced += 1;
            self.inbound.push_back(Large::new(descriptor, 0));
        }
        if let Some((rest, len)) = fragment(frame) {
            match self.inbound.back_mut().filter(|large| large.missing > 0) {
                Some(large) if large.missing == rest => large.missing -= len,
                // The fragment violates the protocol, so there is nothing to record.
                Some(_) => {}
                None => {
                    let descriptor = Descriptor {
                        addr: 0,
                        len: rest.into(),
                        rkey: 0,
                    };
                    self.inbound.push_back(Large::new(descriptor, rest - len));
                }
            }
        }
        if frame.len() == 16 && frame[0] == 11 {
            let (grant, limit) = (word(frame, 12), &mut self.control.limit);
            if self.control.used == *limit && (1..=2).contains(&grant.wrapping_sub(*limit)) {
                *limit = grant;
            }
        }
        if frame.len() >= 16 {
            let grant = word(frame, 4);
            if grant > self.credit.limit && grant - self.credit.used <= self.window() {
                self.credit.limit = grant;
            }
        }
        self.conn.handle_recv(buffer, frame, self.now);
    }

    /// Returns the send window: the maximum difference between a valid grant and the number of
    /// messages sent.
    pub(crate) fn window(&self) -> u32 {
        self.conn
            .negotiated()
            .map_or(0, |negotiated| negotiated.send_window.into())
    }

    /// Receives the immediate data of an RDMA WRITE from the peer.
    pub(crate) fn immediate(&mut self, imm_data: u32, len: u32) {
        // If `imm_data` is odd, the application exposes writable memory before the WRITE arrives.
        // If it is even, the WRITE can arrive before any writable memory is exposed.
        if imm_data & 1 == 1 {
            self.conn.allow_immediates();
        }
        if let Some(buffer) = self.receive(&[]) {
            self.conn.handle_immediate(buffer, imm_data, len, self.now);
        }
    }

    /// Completes the oldest work requests of the send queue, up to and including the first
    /// signalled one.
    pub(crate) fn complete(&mut self) {
        if self.broken || !self.connected {
            return;
        }
        let Some(last) = self.sending.iter().position(|sent| sent.signalled) else {
            return;
        };
        let Some(Sent { slot, read, .. }) = self.sending.drain(..=last).next_back() else {
            return;
        };
        let Some(chunk) = read else {
            return self.conn.handle_sent(slot, self.now);
        };
        let first = self
            .inbound
            .iter_mut()
            .find(|large| large.completed < large.requested)
            .expect("the READ must belong to a message");
        first.completed += chunk;
        self.taken += u32::from(first.completed == first.descriptor.len);
        self.conn.handle_read(slot, self.now);
    }

    /// Fails the oldest work request: that of the receive queue if `recv` is set, otherwise that of
    /// the send queue. The failure moves the queue pair to the error state.
    pub(crate) fn fail(&mut self, recv: bool, status: WcStatus) {
        if self.broken || self.ended.is_some() {
            return;
        }
        if let Some(work) = self.take_work(recv) {
            self.broken = true;
            self.conn.handle_work_error(work, status, 0x81, self.now);
        }
    }

    /// If the queue pair is in the error state, flushes the oldest work request of the queue that
    /// `recv` selects, as in [`fail`](Self::fail). If this queue is empty, completes its drain
    /// marker.
    pub(crate) fn flush(&mut self, recv: bool) {
        if !self.broken || self.ended.is_some() {
            return;
        }
        let side = match recv {
            true => DrainSide::Recv,
            false => DrainSide::Send,
        };
        if let Some(work) = self.take_work(recv) {
            let status = WcStatus::WR_FLUSH_ERR;
            self.conn.handle_work_error(work, status, 0x81, self.now);
        } else if let Some(markers) = &mut self.markers
            && let Some(at) = markers.iter().position(|marker| *marker == side)
        {
            markers.swap_remove(at);
            self.conn.handle_drained(side);
        }
    }

    /// Removes the oldest work request of the receive queue or of the send queue.
    fn take_work(&mut self, recv: bool) -> Option<Work> {
        if recv {
            let buffer = self.posted.pop_front()?;
            return Some(Work::Recv { buffer });
        }
        let Sent { slot, read, .. } = self.sending.pop_front()?;
        Some(match read {
            Some(_) => Work::Read { slot },
            None => Work::Send { slot },
        })
    }
}

/// Parses a fragment of a message. Returns the remaining length of the message, including this
/// fragment, and the length of the fragment, both in bytes. Returns `None` for other frames.
fn fragment(frame: &[u8]) -> Option<(u32, u32)> {
    let (header, payload) = frame.split_first_chunk::<16>()?;
    let rest = word(header, 8);
    let fits = (1..=rest as usize).contains(&payload.len());
    (header[..2] == [18, 0] && fits).then_some((rest, payload.len() as u32))
}

/// Parses the descriptor of a large message. Returns `None` if the frame does not announce a large
/// message.
fn large(frame: &[u8]) -> Option<Descriptor> {
    let whole = frame.len() == 40 && frame[..2] == [16, 0] && word(frame, 8) == 24;
    whole.then(|| Descriptor {
        addr: long(frame, 16),
        len: long(frame, 24),
        rkey: word(frame, 32),
    })
}
