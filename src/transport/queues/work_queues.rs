//! The registered buffers of one connection, and the queue pair on which they are posted.
//!
//! [`Buffers`] contain the send buffers, and also the receive buffers unless they are
//! [shared](super::shared_receives). This module hands memory to the device. This is sound for the
//! following reasons:
//!
//! * The buffers outlive all work requests, because [`WorkQueues`] drops its queue pair before them
//!   (field order).
//! * A receive buffer belongs to the device from [`WorkQueues::post_recv`] until its completion is
//!   polled. At all other times it belongs to a [`RecvSlice`] or has no owner. For each completion,
//!   the state machine handles the buffer exactly once, and requests exactly one repost. The
//!   simulator of the state machine checks this.
//! * A send buffer belongs to the device from [`WorkQueues::post_send`] until a completion covers
//!   its slot. The state machine reuses the slot only afterwards. The device writes the result of
//!   an atomic operation to the buffer. This side reads the result after the completion, and before
//!   the slot is reused.
//! * Only one thread at a time posts, because the public functions that post borrow the queues
//!   mutably. So the driver need not lock the queue pair.
//! * A work request can refer to memory of the application or of an arriving large message. Over
//!   TCP, a fragment can be received into the memory of its message. This memory is kept in
//!   `in_flight` until the request or the message is done, or the queue pair is destroyed.
//! * The memory of a large message that the peer can read is kept in `exposures` until its
//!   registration has ended, or until its window has been invalidated or freed.
//!
//! [`WorkQueues::new`] posts the first receives of a connection in lists, with one driver call per
//! list. Later, each receive is posted with a separate call. Lists would not help then: messages
//! are released one by one, and a receive must be posted before a grant announces it. A measurement
//! on software RoCE confirmed this. The traffic was one-way and two-way, with short messages,
//! fragments, large messages and a stream. After each poll, at most one receive of a control frame
//! was reposted. So no two of the 103,000 receives in this measurement could have shared a call.
#![allow(unsafe_code)]

use std::{io::IoSlice, ops::Range, sync::Arc};

use super::{
    buffers::{Buffers, Location},
    exposures::Exposures,
    in_flight::InFlight,
    layout::Layout,
    one_sided::Checked,
    poll_side::PollSide,
    queue_pair::{PostError, QueuePair},
    receive_share::ReceiveShare,
    send_slots::{Operation, OperationKind, Posted, SlotBytes},
    shared_receives::SharedReceives,
    work_request::{Frame, RemoteAddr, SendOp, Sge, WorkId},
};
use crate::{
    proto::{FragmentCopy, HEADER_LEN, MovedBytes, Read, Transmit},
    status::OsError,
    transport::{
        in_memory::WireControl,
        memory::{Allocator, Domain, InboundPool, RecvSlice, Registration, received_bytes},
    },
};

/// A connection's queue pair and buffers.
#[derive(Debug)]
pub(crate) struct WorkQueues {
    /// The exposed large messages. Dropped before `qp`, because some drivers cannot destroy a queue
    /// pair to which a window is bound.
    pub(super) exposures: Exposures,
    /// The queue pair. Dropped before `buffers`, because the device may access the buffers until
    /// the queue pair is destroyed.
    pub(super) qp: QueuePair,
    receives: Receives,
    buffers: Arc<Buffers>,
    /// The work requests in flight and their memory. Dropped after `qp`, like `buffers`.
    pub(crate) in_flight: InFlight,
    layout: Layout,
    /// The maximum length in bytes of a frame that is copied into its work request, or 0 if no
    /// frame is copied. At most the length of a buffer.
    max_inline: usize,
    /// Whether a drain marker is posted on the receive queue, behind all receives.
    marks_receives: bool,
}

/// The memory of the receive buffers.
#[derive(Debug)]
enum Receives {
    /// The receive buffers are among the connection's own buffers.
    Own,
    Shared(Arc<SharedReceives>),
}

impl WorkQueues {
    /// Creates the queues for a queue pair in this domain. The queue pair must have queues with the
    /// depths of the layout. If `shared` is given, the queue pair uses the shared receive queue.
    /// Otherwise, this function allocates the first piece of memory of the layout, and posts the
    /// receive buffers that lie in this piece. If the layout has more pieces, the queue pair
    /// allocates the next piece, and posts its receive buffers, whenever no posted receive remains.
    pub(crate) fn new(
        qp: QueuePair,
        domain: &Domain,
        layout: Layout,
        shared: Option<Arc<SharedReceives>>,
        inbound_pool: Arc<InboundPool>,
    ) -> Result<Self, OsError> {
        assert_eq!(
            layout.is_shared(),
            shared.is_some(),
            "the layout and `shared` must agree on whether receives are shared"
        );
        let max_inline = qp.max_inline().unwrap_or(0).min(layout.size());
        let mut queues = Self {
            exposures: Exposures::default(),
            qp,
            receives: shared.map_or(Receives::Own, Receives::Shared),
            buffers: Arc::new(Buffers::new(domain, layout)),
            in_flight: InFlight::new(layout.send_count(), inbound_pool),
            layout,
            max_inline,
            marks_receives: false,
        };
        if let Receives::Own = queues.receives {
            queues.buffers.allocate(0)?;
            let first = layout.receives_from(0);
            queues.post_recvs(first.clone())?;
            // SAFETY: the buffers outlive the queue pair, and no code uses the receives that are
            // not posted yet.
            unsafe { queues.qp.post_on_demand(&queues.buffers, first.end) };
        }
        Ok(queues)
    }

    /// Sets the RNR timer. Called shortly before the connection is established.
    pub(crate) fn set_min_rnr_timer(&self) -> Result<(), OsError> {
        self.qp.set_min_rnr_timer()
    }

    /// Returns the handle for fault injection of an in-memory connection. Returns `None` over RDMA
    /// and TCP.
    pub(crate) fn control(&self) -> Option<WireControl> {
        self.qp.control().cloned()
    }

    /// Moves the queue pair to the error state. Posted work requests are flushed, and no further
    /// frame is received.
    pub(crate) fn fail(&self) -> Result<(), OsError> {
        self.qp.fail()
    }

    /// Returns the byte counters, if the transport has them.
    pub(crate) fn moved(&self) -> Option<MovedBytes> {
        self.qp.moved()
    }

    /// Over TCP, moves an open queue pair to the error state, so that the calls of other threads on
    /// the queue pair return soon. Returns true if no other thread is executing such a call.
    /// [`destroy`](Self::destroy) then runs without waiting. Over the other transports, does
    /// nothing and returns true.
    pub(crate) fn try_release(&self) -> bool {
        self.qp.try_release()
    }

    /// Destroys the queue pair. Then releases the memory, which the device no longer accesses.
    pub(crate) fn destroy(self) {
        let inbound_pool = Arc::clone(self.in_flight.inbound_pool());
        drop(self);
        inbound_pool.close();
    }

    /// Posts a receive buffer.
    #[inline(always)]
    pub(crate) fn post_recv(&mut self, buffer: u32) -> Result<(), OsError> {
        if let Receives::Shared(shared) = &self.receives {
            return shared.post(buffer);
        }
        let (id, sge) = self.request(buffer);
        self.recv(id, Some(sge))
    }

    /// Posts receive buffers in lists. The buffers belong to this connection alone.
    fn post_recvs(&mut self, buffers: Range<u32>) -> Result<(), OsError> {
        let receives = buffers.map(|buffer| self.request(buffer));
        // SAFETY: as in `recv`.
        unsafe { self.qp.post_recvs(receives) }
    }

    /// Returns the work request of a receive buffer.
    #[inline(always)]
    fn request(&self, buffer: u32) -> (WorkId, Sge) {
        let (memory, offset, size) = self.receive(buffer);
        (WorkId::Recv(buffer), sge(memory, offset, size))
    }

    /// Posts a frame. Copies a short frame with at most one payload part into the work request, and
    /// any other frame to its slot. The frame is signalled if `transmit` requires it, or if its
    /// completion is `reported`.
    pub(crate) fn post_send(
        &mut self,
        transmit: &Transmit,
        payload: &[IoSlice<'_>],
        reported: bool,
    ) -> Result<(), PostError> {
        let Transmit {
            slot, ref header, ..
        } = *transmit;
        let len = HEADER_LEN + payload.iter().map(|part| part.len()).sum::<usize>();
        self.check(slot, len);
        let signalled = transmit.signalled || reported;
        if reported {
            self.in_flight.slots.put(slot, Posted::Message);
        }
        if len <= self.max_inline && payload.len() <= 1 {
            let payload = payload.first().map_or(&[][..], |part| part);
            self.post_inline(transmit, payload, signalled)
        } else {
            let frame = Frame {
                header,
                payload,
                len,
            };
            let memory = || {
                let place = self.staging(slot)?;
                Ok(sge(place.memory, place.offset, len))
            };
            // SAFETY: as in `post`. The slot has room for the frame.
            unsafe {
                self.qp
                    .post_frame(WorkId::Send(slot), frame, memory, signalled)
            }
        }
    }

    /// Does the same as [`post_send`](Self::post_send), for a message whose completion is not
    /// reported and whose payload has one part.
    #[inline(always)]
    pub(crate) fn post_message(
        &mut self,
        transmit: &Transmit,
        payload: &[u8],
    ) -> Result<(), PostError> {
        let len = HEADER_LEN + payload.len();
        if len > self.max_inline {
            return self.post_send(transmit, &[IoSlice::new(payload)], false);
        }
        self.check_slot(transmit.slot);
        self.post_inline(transmit, payload, transmit.signalled)
    }

    #[inline]
    fn check(&self, slot: u32, len: usize) {
        self.check_slot(slot);
        assert!(
            len <= self.layout.size(),
            "the frame must fit into a send buffer"
        );
    }

    #[inline(always)]
    fn check_slot(&self, slot: u32) {
        assert!(
            slot < self.layout.send_count(),
            "the slot must exist in the send ring"
        );
    }

    /// Posts a frame that is copied into the work request.
    #[inline(always)]
    fn post_inline(
        &self,
        transmit: &Transmit,
        payload: &[u8],
        signalled: bool,
    ) -> Result<(), PostError> {
        let (id, parts) = (WorkId::Send(transmit.slot), [&transmit.header[..], payload]);
        // SAFETY: the queue has room for one request of each slot and for the drain marker. No slot
        // has more than one request at a time. The callers borrow `self` mutably, so no other
        // thread posts (see the top of this file).
        unsafe { self.qp.post_inline(id, parts, signalled) }
    }

    /// Posts the frames of one message, each with its payload. If `reported` is true, the
    /// completion of the last frame is reported to the application.
    pub(crate) fn post_sends(
        &mut self,
        sends: &[(Transmit, Vec<IoSlice<'_>>)],
        reported: bool,
    ) -> Result<(), PostError> {
        let Some((Transmit { slot: last, .. }, _)) = sends.last() else {
            return Ok(());
        };
        let frame = |(transmit, payload): &'_ (Transmit, Vec<IoSlice<'_>>)| {
            let len = HEADER_LEN + payload.iter().map(|part| part.len()).sum::<usize>();
            self.check(transmit.slot, len);
            len
        };
        let frames: Vec<_> = sends
            .iter()
            .map(|send| {
                let (transmit, payload) = send;
                let frame = Frame {
                    header: &transmit.header,
                    payload,
                    len: frame(send),
                };
                let signalled = transmit.signalled || (reported && transmit.slot == *last);
                (WorkId::Send(transmit.slot), frame, signalled)
            })
            .collect();
        let memory = |number: usize| {
            let place = self.staging(sends[number].0.slot)?;
            Ok(sge(place.memory, place.offset, frames[number].1.len))
        };
        // SAFETY: as in `post`. Each slot has room for its frame.
        let posted = unsafe { self.qp.post_frames(&frames, memory) };
        if reported {
            self.in_flight.slots.put(*last, Posted::Message);
        }
        posted
    }

    /// Posts a READ of a chunk of a large message, into the memory that was prepared for the
    /// message.
    pub(crate) fn post_read(&mut self, read: &Read) -> Result<(), PostError> {
        let (offset, len) = (read.offset as usize, read.len as usize);
        let inbound = self.in_flight.inbound(read.id);
        let (start, lkey) = inbound
            .and_then(|inbound| inbound.chunk(offset, len))
            .expect("the READ must lie in memory that was prepared for its message");
        // The cast is lossless, because a chunk is far shorter than 4 GiB.
        let sge = Sge {
            start,
            len: read.len as u32,
            lkey,
        };
        let remote = RemoteAddr {
            addr: read.remote_addr,
            rkey: read.rkey,
        };
        let posted = Posted::ReadChunk {
            id: read.id,
            offset,
        };
        self.in_flight.slots.put(read.slot, posted);
        self.one_sided(read.slot, SendOp::Read(remote), sge)
    }

    /// Posts an empty WRITE. The peer's device handles the WRITE without a notice to the peer's
    /// library.
    pub(crate) fn post_nudge(&mut self, slot: u32) -> Result<(), PostError> {
        let nowhere = RemoteAddr { addr: 0, rkey: 0 };
        let op = SendOp::Write(nowhere);
        self.post(WorkId::Send(slot), op, None)
    }

    /// Posts a one-sided operation on memory of the application. The memory is kept until the
    /// operation is done.
    pub(crate) fn post_operation(&mut self, slot: u32, checked: &Checked) -> Result<(), PostError> {
        let Checked {
            op,
            ref memory,
            ref range,
            id,
            epoch: _,
        } = *checked;
        assert!(
            range.start <= range.end && range.end <= memory.len(),
            "the range must lie in the registered memory"
        );
        // The cast in `sge` is lossless, because the caller has checked the length against the
        // limit of the device, which is below 4 GiB.
        let in_memory = || sge(memory, range.start, range.len());
        let (kind, sge) = match op {
            SendOp::Read(_) => (OperationKind::Read, in_memory()),
            SendOp::Write(_) | SendOp::WriteWithImm(..) => (OperationKind::Write, in_memory()),
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => {
                let place = self.staging(slot)?;
                let answer = SlotBytes {
                    region: place.memory.clone(),
                    offset: place.offset,
                };
                let sge = sge(&answer.region, answer.offset, range.len());
                let offset = range.start;
                (OperationKind::Atomic { offset, answer }, sge)
            }
            SendOp::Send => unreachable!("a send is not a one-sided operation"),
        };
        let posted = self.one_sided(slot, op, sge);
        if let Err(PostError::Failed(_)) = posted {
            return posted;
        }
        let memory = memory.clone();
        let operation = Operation { id, kind, memory };
        self.in_flight.slots.put(slot, Posted::Operation(operation));
        posted
    }

    /// Moves the queue pair to the error state. Then posts a drain marker on the send queue, and on
    /// the receive queue if that queue is not shared. Work requests complete in order. So when a
    /// marker has completed, all earlier requests of its queue have completed too. The receives on
    /// a shared queue that the queue pair has not consumed stay posted.
    pub(crate) fn post_drain_markers(&mut self) -> Result<(), PostError> {
        self.in_flight.stop_reading();
        self.fail()?;
        if let Receives::Own = self.receives {
            // Some drivers refuse to post a receive in the error state. Such a driver has already
            // completed all earlier receives.
            self.marks_receives = match self.recv(WorkId::DrainRecv, None) {
                Ok(()) => true,
                Err(error) if error.errno == libc::EINVAL => false,
                Err(error) => return Err(error.into()),
            };
        }
        self.post(WorkId::DrainSend, SendOp::Send, None)
    }

    /// Returns true if a drain marker is posted on the receive queue, behind all receives. Without
    /// this marker, all receives have completed when the marker of the send queue has completed and
    /// the completion queue is empty.
    pub(crate) fn marks_receives(&self) -> bool {
        self.marks_receives
    }

    /// Returns the bytes of a completed receive.
    #[inline]
    pub(crate) fn frame(&self, buffer: u32, len: u32) -> &[u8] {
        let (memory, offset, len) = self.extent(buffer, len);
        received_bytes(memory, offset, len)
    }

    /// Copies a fragment from its receive buffer to the memory of its message, unless the fragment
    /// is already in place. Returns `false` if the budget has no memory for the message. The
    /// connection's engine then gets a notice when memory is available.
    pub(crate) fn copy_fragment(&mut self, fragment: &FragmentCopy) -> Result<bool, OsError> {
        if fragment.in_place {
            return Ok(true);
        }
        let frame = self.received(fragment.buffer, HEADER_LEN as u32 + fragment.len);
        let Some(inbound) = self.in_flight.inbound(fragment.id) else {
            return Ok(false);
        };
        let places = fragment.offset == 0
            && (fragment.len as usize) < inbound.len()
            && self.qp.places_fragments();
        if places {
            inbound.prepare_whole()?;
        }
        let copied = inbound.fill(fragment.offset as usize, &frame[HEADER_LEN..])?;
        if places
            && copied
            && let Some((start, len)) = inbound.rest(fragment.len as usize)
        {
            // SAFETY: the memory belongs to `in_flight`, which outlives the queue pair. Until all
            // fragments of the message have completed, other code accesses only the bytes of
            // fragments that are copied, and these fragments have already begun.
            unsafe { self.qp.place_fragments(fragment.number, start, len) };
        }
        Ok(copied)
    }

    /// Returns the bytes of a completed receive as a slice. No code may read the slice after the
    /// buffer was reposted.
    #[inline]
    pub(crate) fn received(&self, buffer: u32, len: u32) -> RecvSlice {
        let (memory, offset, _) = self.extent(buffer, len);
        RecvSlice::new(memory.clone(), buffer, offset, len)
    }

    #[inline]
    fn extent(&self, buffer: u32, len: u32) -> (&Registration, usize, usize) {
        let (memory, offset, size) = self.receive(buffer);
        assert!(
            len as usize <= size,
            "the received frame must fit into its receive buffer"
        );
        (memory, offset, len as usize)
    }

    /// Returns the memory, offset and length of a receive buffer.
    #[inline(always)]
    fn receive(&self, buffer: u32) -> (&Registration, usize, usize) {
        let (memory, offset) = match &self.receives {
            Receives::Own => {
                let place = self.buffers.posted(buffer);
                (place.memory, place.offset)
            }
            Receives::Shared(shared) => {
                assert!(buffer < shared.count(), "the pool must have this buffer");
                (&shared.memory, shared.offset(buffer))
            }
        };
        (memory, offset, self.layout.size())
    }

    /// Returns the location of the buffer for a slot of the send ring. Allocates the memory of the
    /// buffer if necessary.
    fn staging(&self, slot: u32) -> Result<Location<'_>, OsError> {
        self.buffers.allocate(self.layout.send_buffer(slot))
    }

    #[inline(always)]
    fn recv(&self, id: WorkId, sge: Option<Sge>) -> Result<(), OsError> {
        // SAFETY: the queue has room for one receive of each buffer and for the drain marker. No
        // buffer is posted again before its receive has completed. The buffer is one of `buffers`,
        // which outlive the queue pair, and no other code uses it until the receive completes. The
        // callers borrow `self` mutably, so no other thread posts (see the top of this file).
        unsafe { self.qp.post_recv(id, sge) }
    }

    fn one_sided(&self, slot: u32, op: SendOp, sge: Sge) -> Result<(), PostError> {
        self.check_slot(slot);
        self.post(WorkId::Send(slot), op, Some(sge))
    }

    /// Posts a signalled request on the send queue.
    fn post(&self, id: WorkId, op: SendOp, sge: Option<Sge>) -> Result<(), PostError> {
        // SAFETY: the queue has room for one request of each slot and for the drain marker. No slot
        // has more than one request at a time. The memory belongs to `buffers` or `in_flight`,
        // which outlive the queue pair, and no other code uses it until a completion covers the
        // slot. The callers borrow `self` mutably, so no other thread posts (see the top of this
        // file).
        unsafe { self.qp.post_send(id, op, sge, true) }
    }
}

/// Returns the scatter/gather element for a part of a region. The cast of `len` is lossless: a
/// buffer has at most 1 MiB plus a header (`Config::check`), and the memory of an operation is
/// shorter than 4 GiB (`post_operation`).
fn sge(memory: &Registration, offset: usize, len: usize) -> Sge {
    Sge {
        start: memory.as_ptr().wrapping_add(offset),
        len: len as u32,
        lkey: memory.lkey(),
    }
}

/// The parts of a connection's transport. All parts are created, and the first receives are posted,
/// before any frame is sent. Each part has its own lock, so that a polling thread does not delay an
/// allocation.
#[derive(Debug)]
pub(crate) struct TransportParts {
    /// The queues on which work requests are posted.
    pub(crate) queues: WorkQueues,
    /// The connection's share of the shared receive queue, if the connection uses one. The minimum
    /// number of receives of the connection is already reserved.
    pub(crate) share: Option<ReceiveShare>,
    /// The handle with which threads poll the completion queue.
    pub(crate) poll_side: PollSide,
    /// The allocator of the application's memory.
    pub(crate) allocator: Arc<Allocator>,
}
