//! The registered buffers of one connection and the queue pair that they are posted on.
//!
//! One memory region holds all of it: the receive buffers first, unless they are [shared](super::shared_receives), then the send buffers. This
//! file hands memory to the device, so it argues why that is sound:
//!
//! * the region outlives every work request, because [`Rings`] destroys its queue pair (field order) before it lets go of the region;
//! * a receive buffer belongs to the device from [`Rings::post_recv`] until its completion is polled, and to a
//!   [`RecvSlice`] or to nobody otherwise; the state machine names each buffer once for each completion and asks for it to be
//!   posted again once for each, which its simulator checks;
//! * a send buffer belongs to the device from [`Rings::post_send`] until a completion covers its
//!   slot; the state machine reuses a slot only after that. What the device writes there for an
//!   atomic operation is looked at between the two;
//! * memory of the application's and of large messages that a work request names is kept in `books` until the request is done, or the
//!   queue pair is destroyed.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque, io::IoSlice, mem::MaybeUninit, ops::Deref, ptr, slice, sync::Arc,
};

use super::{
    in_flight::{InFlight, Operation, OperationKind, Posted, SlotBytes},
    landing::Landing,
    operations::Checked,
    send_memory::Lent,
    sent_order::SentOrder,
    shared_receives::SharedReceives,
};
use crate::{
    proto::{CONTROL_RECEIVES, CONTROL_SENDS, HEADER_LEN, Params, READS, Read, Transmit},
    status::OsError,
    sys::ffi,
    verbs::{AccessFlags, MemoryRegion, ProtectionDomain, QpCap, QueuePair, RemoteAddr, SendOp},
};

/// Buffers start on cache lines of their own, so that the device and two threads never share one.
const ALIGN: usize = 64;

/// What a work request was for, told by its completion. Only the id is valid in a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkId {
    /// The receive of this buffer.
    Recv(u32),
    /// The send of this slot.
    Send(u32),
    /// The marker behind the last receive.
    DrainRecv,
    /// The marker behind the last send.
    DrainSend,
}

impl WorkId {
    pub(super) const fn encode(self) -> u64 {
        match self {
            Self::Recv(buffer) => buffer as u64,
            Self::Send(slot) => 1 << 32 | slot as u64,
            Self::DrainRecv => 2 << 32,
            Self::DrainSend => 3 << 32,
        }
    }

    /// The inverse of `encode`. An id that this file never gave out cannot come back from the device.
    pub(super) const fn decode(wr_id: u64) -> Self {
        let index = wr_id as u32;
        match wr_id >> 32 {
            0 => Self::Recv(index),
            1 => Self::Send(index),
            2 => Self::DrainRecv,
            _ => Self::DrainSend,
        }
    }
}

/// Where the buffers lie in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    recv_size: usize,
    /// As many receives may complete before any is posted again.
    recv_count: u32,
    /// Whether the receive buffers are not in the region.
    shared: bool,
    send_size: usize,
    send_count: u32,
}

impl Layout {
    /// The buffers that `params` ask for. Send buffers have the size of our own receive buffers: the peer's limit is not known
    /// before it answers, and a longer message than that is refused.
    pub(super) fn new(params: &Params) -> Self {
        let size = (HEADER_LEN + params.eager_size as usize).next_multiple_of(ALIGN);
        Self {
            recv_size: size,
            recv_count: u32::from(params.window) + CONTROL_RECEIVES,
            shared: params.shared,
            send_size: size,
            send_count: params.send_slots + READS + CONTROL_SENDS,
        }
    }

    fn bytes(&self) -> usize {
        self.send_offset(self.send_count)
    }

    /// The queue depths that hold all buffers and one drain marker each.
    pub(super) fn cap(&self, max_inline: u32) -> QpCap {
        QpCap {
            max_send_wr: self.send_count + 1,
            max_recv_wr: if self.shared { 0 } else { self.recv_count + 1 },
            max_send_sge: 2,
            max_recv_sge: if self.shared { 0 } else { 1 },
            max_inline_data: max_inline,
        }
    }

    /// How many completions can be in the completion queue at once.
    pub(super) fn completions(&self) -> u32 {
        self.send_count + self.recv_count + 2
    }

    const fn recv_offset(&self, buffer: u32) -> usize {
        self.recv_size * buffer as usize
    }

    const fn send_offset(&self, slot: u32) -> usize {
        let receives = if self.shared { 0 } else { self.recv_count };
        self.recv_size * receives as usize + self.send_size * slot as usize
    }

    pub(super) const fn recv_size(&self) -> usize {
        self.recv_size
    }
}

/// A connection's queue pair and buffers.
#[derive(Debug)]
pub(super) struct Rings {
    /// Before `memory`: once it is destroyed the device touches none of the buffers.
    qp: QueuePair,
    receives: Receives,
    /// Where the send buffers are. Where there is nothing else, it is made when it is first needed.
    memory: Option<MemoryRegion>,
    pd: ProtectionDomain,
    /// After `qp`, as `memory`.
    pub(super) books: Books,
    layout: Layout,
    max_inline: usize,
}

/// Where the receive buffers are.
#[derive(Debug)]
enum Receives {
    /// At the start of the connection's own region.
    Own(MemoryRegion),
    Shared(Arc<SharedReceives>),
}

/// What work requests use beside the rings' own memory.
#[derive(Debug)]
pub(super) struct Books {
    /// By slot of the send ring.
    pub(super) in_flight: InFlight,
    /// The peer's large messages that are being read: their ids, and where they are read to. Oldest first.
    pub(super) pulls: VecDeque<(u32, Box<Landing>)>,
    /// Large messages that the peer has not taken yet, oldest first: what it may read.
    pub(super) lent: VecDeque<Lent>,
    /// Messages of which the application is to be told.
    pub(super) order: SentOrder,
}

impl Books {
    /// Where the large message of this id is read to.
    pub(super) fn pull(&mut self, id: u32) -> Option<&mut Landing> {
        let mut pulls = self.pulls.iter_mut();
        pulls
            .find(|(pull, _)| *pull == id)
            .map(|(_, landing)| &mut **landing)
    }

    /// How many completions the application is still to be told.
    pub(super) fn ids(&self) -> usize {
        self.in_flight.operations() + self.order.ids()
    }
}

/// Allocates and registers the buffers of one connection.
fn allocate(pd: &ProtectionDomain, layout: &Layout) -> Result<MemoryRegion, OsError> {
    MemoryRegion::new(pd, layout.bytes(), AccessFlags::LOCAL_WRITE)
}

impl Rings {
    /// Takes a queue pair made with `layout.cap(..)`, of the same domain, and on the queue of the `shared` receives if the layout has none of
    /// its own. Otherwise posts all receives.
    pub(super) fn new(
        qp: QueuePair,
        pd: &ProtectionDomain,
        layout: Layout,
        shared: Option<Arc<SharedReceives>>,
    ) -> Result<Self, OsError> {
        assert_eq!(
            layout.shared,
            shared.is_some(),
            "the layout says where the receives are"
        );
        let max_inline = qp.cap().max_inline_data as usize;
        let (receives, memory) = match shared {
            Some(shared) => (Receives::Shared(shared), None),
            None => {
                let memory = allocate(pd, &layout)?;
                (Receives::Own(memory.clone()), Some(memory))
            }
        };
        let rings = Self {
            qp,
            receives,
            memory,
            pd: pd.clone(),
            books: Books {
                in_flight: InFlight::new(layout.send_count),
                pulls: VecDeque::new(),
                lent: VecDeque::new(),
                order: SentOrder::default(),
            },
            layout,
            max_inline,
        };
        if let Receives::Own(_) = rings.receives {
            for buffer in 0..layout.recv_count {
                rings.post_recv(buffer)?;
            }
        }
        Ok(rings)
    }

    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Gives a receive buffer to the device.
    pub(super) fn post_recv(&self, buffer: u32) -> Result<(), OsError> {
        if let Receives::Shared(shared) = &self.receives {
            return shared.post(buffer);
        }
        let (memory, offset, size) = self.receive(buffer);
        self.recv(WorkId::Recv(buffer), Some(sge(memory, offset, size)))
    }

    /// Writes a frame into its slot, or into the work request where it is short, and posts it. With an `id` its end is told of.
    pub(super) fn post_send(
        &mut self,
        transmit: &Transmit,
        payload: &[IoSlice<'_>],
        id: Option<u64>,
    ) -> Result<(), OsError> {
        let Transmit {
            slot, ref header, ..
        } = *transmit;
        let len = HEADER_LEN + payload.iter().map(|part| part.len()).sum::<usize>();
        assert!(
            slot < self.layout.send_count,
            "the state machine names slots that exist"
        );
        assert!(
            len <= self.layout.send_size,
            "the state machine checked the length"
        );
        let flags = send_flags(transmit.signalled || id.is_some());

        if len <= self.max_inline && payload.len() <= 1 {
            // The driver copies inline data before the call returns, so it may lie anywhere; the lkey is not looked at.
            let mut sges = [
                inline_sge(header),
                inline_sge(payload.first().map_or(&[], |part| part)),
            ];
            let count = if len == HEADER_LEN { 1 } else { 2 };
            let flags = flags | ffi::ibv_send_flags::IBV_SEND_INLINE.0;
            self.send(WorkId::Send(slot), &mut sges[..count], flags)?;
        } else {
            let mut offset = self.layout.send_offset(slot);
            let memory = self.staging()?;
            let sge = sge(memory, offset, len);
            fill(memory, offset, header);
            offset += HEADER_LEN;
            for part in payload {
                fill(memory, offset, part);
                offset += part.len();
            }
            self.send(WorkId::Send(slot), &mut [sge], flags)?;
        }
        if let Some(id) = id {
            self.books.in_flight.put(slot, Posted::Message);
            self.books.order.small(id);
        }
        Ok(())
    }

    /// Lends a large message to the peer: posts its descriptor, and keeps it until the peer has taken it.
    pub(super) fn post_large(
        &mut self,
        transmit: &Transmit,
        lent: Lent,
        id: Option<u64>,
    ) -> Result<(), OsError> {
        let descriptor = lent.descriptor().emit();
        self.post_send(transmit, &[IoSlice::new(&descriptor)], None)?;
        self.books.order.large(id);
        self.books.lent.push_back(lent);
        Ok(())
    }

    /// Reads a piece of a large message of the peer's to where it was prepared.
    pub(super) fn post_read(&mut self, read: &Read) -> Result<(), OsError> {
        let (offset, len) = (read.offset as usize, read.len as usize);
        let landing = self.books.pull(read.id);
        let (addr, lkey) = landing
            .and_then(|landing| landing.piece(offset, len))
            .expect("the state machine reads what was prepared");
        // A piece is far shorter than 4 GiB.
        let mut sge = ffi::ibv_sge {
            addr,
            length: read.len as u32,
            lkey,
        };
        let remote = RemoteAddr {
            addr: read.remote_addr,
            rkey: read.rkey,
        };
        self.one_sided(read.slot, SendOp::Read(remote), &mut sge)?;
        let id = read.id;
        let posted = Posted::ReadChunk { id, offset };
        self.books.in_flight.put(read.slot, posted);
        Ok(())
    }

    /// Posts a one-sided operation on a part of memory of the application's, which is kept until it is done.
    pub(super) fn post_operation(&mut self, slot: u32, checked: &Checked) -> Result<(), OsError> {
        let Checked {
            op,
            ref memory,
            ref range,
            id,
        } = *checked;
        assert!(
            range.start <= range.end && range.end <= memory.len(),
            "the caller checked the bounds"
        );
        // The caller checked that the length fits what the device moves at once, which is less than 4 GiB.
        let in_memory = || sge(memory, range.start, range.len());
        let (kind, mut sge) = match op {
            SendOp::Read(_) => (OperationKind::Read, in_memory()),
            SendOp::Write(_) | SendOp::WriteWithImm(..) => (OperationKind::Write, in_memory()),
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => {
                let answer = SlotBytes {
                    offset: self.layout.send_offset(slot),
                    region: self.staging()?.clone(),
                };
                let sge = sge(&answer.region, answer.offset, range.len());
                let offset = range.start;
                (OperationKind::Atomic { offset, answer }, sge)
            }
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_) => {
                unreachable!("what is sent is no one-sided operation")
            }
        };
        self.one_sided(slot, op, &mut sge)?;
        let memory = memory.clone();
        let operation = Operation { id, kind, memory };
        self.books.in_flight.put(slot, Posted::Operation(operation));
        Ok(())
    }

    /// Moves the queue pair to its error state and posts one marker behind the last work request of each queue: work requests
    /// come back in order, so when the markers have come back everything has. There is none for receives that are shared: those that
    /// the queue pair did not take stay where they are.
    pub(super) fn post_drain_markers(&self) -> Result<(), OsError> {
        self.qp.to_err()?;
        if let Receives::Own(_) = self.receives {
            self.recv(WorkId::DrainRecv, None)?;
        }
        self.send(
            WorkId::DrainSend,
            &mut [],
            ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
        )
    }

    /// Looks at the bytes of a completed receive.
    pub(super) fn frame(&self, buffer: u32, len: u32) -> &[u8] {
        let (memory, offset, len) = self.extent(buffer, len);
        bytes(memory, offset, len)
    }

    /// Takes the bytes of a completed receive along. The buffer must not be posted again before the slice is gone.
    pub(super) fn received(&self, buffer: u32, len: u32) -> RecvSlice {
        let (memory, offset, len) = self.extent(buffer, len);
        RecvSlice {
            memory: memory.clone(),
            offset,
            len,
        }
    }

    fn extent(&self, buffer: u32, len: u32) -> (&MemoryRegion, usize, usize) {
        let (memory, offset, size) = self.receive(buffer);
        assert!(
            len as usize <= size,
            "the device writes no more than was posted"
        );
        (memory, offset, len as usize)
    }

    /// Where a receive buffer lies, and its length.
    fn receive(&self, buffer: u32) -> (&MemoryRegion, usize, usize) {
        let (memory, count, offset, size) = match &self.receives {
            Receives::Own(memory) => (
                memory,
                self.layout.recv_count,
                self.layout.recv_offset(buffer),
                self.layout.recv_size,
            ),
            Receives::Shared(shared) => (
                &shared.memory,
                shared.count(),
                shared.offset(buffer),
                shared.size(),
            ),
        };
        assert!(buffer < count, "only buffers that exist are named");
        (memory, offset, size)
    }

    /// The memory of the send buffers.
    fn staging(&mut self) -> Result<&MemoryRegion, OsError> {
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => allocate(&self.pd, &self.layout)?,
        };
        Ok(self.memory.insert(memory))
    }

    fn recv(&self, id: WorkId, sge: Option<ffi::ibv_sge>) -> Result<(), OsError> {
        let mut sge = sge;
        let (sg_list, num_sge) = sge
            .as_mut()
            .map_or((ptr::null_mut(), 0), |sge| (ptr::from_mut(sge), 1));
        let mut wr = ffi::ibv_recv_wr {
            wr_id: id.encode(),
            next: ptr::null_mut(),
            sg_list,
            num_sge,
        };
        // SAFETY: the request and its element live on this stack for the call; the buffer it names belongs to `memory`, which
        // outlives the queue pair, and to nobody else until the completion (see the top of this file).
        unsafe { self.qp.post_recv_raw(&mut wr) }
    }

    fn send(&self, id: WorkId, sges: &mut [ffi::ibv_sge], flags: u32) -> Result<(), OsError> {
        self.post(id, SendOp::Send, sges, flags)
    }

    fn one_sided(&self, slot: u32, op: SendOp, sge: &mut ffi::ibv_sge) -> Result<(), OsError> {
        assert!(
            slot < self.layout.send_count,
            "the state machine names slots that exist"
        );
        let sges = slice::from_mut(sge);
        self.post(WorkId::Send(slot), op, sges, send_flags(true))
    }

    fn post(
        &self,
        id: WorkId,
        op: SendOp,
        sges: &mut [ffi::ibv_sge],
        flags: u32,
    ) -> Result<(), OsError> {
        let mut wr = MaybeUninit::<ffi::ibv_send_wr>::zeroed();
        // SAFETY: the C structure holds integers, raw pointers and unions of them: all zero is a valid value.
        let wr = unsafe { wr.assume_init_mut() };
        wr.wr_id = id.encode();
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as i32;
        wr.send_flags = flags;
        op.encode(wr);
        // SAFETY: the request and its elements live on the callers' stacks for the call; memory that is not inline belongs to
        // `memory` or `books`, which outlive the queue pair, and to nobody else until a completion covers its slot (top of this file).
        unsafe { self.qp.post_send_raw(wr) }
    }
}

/// A part of a region for the device. It is less than 4 GiB long: a buffer is at most 1 MiB and a
/// header (`Config::check`).
fn sge(memory: &MemoryRegion, offset: usize, len: usize) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: memory.addr() + offset as u64,
        length: len as u32,
        lkey: memory.lkey(),
    }
}

/// Copies bytes into a send buffer. `MemoryRegion::copy_in` would do, at half the speed: it must allow for others that
/// touch the same bytes, and here there are none.
fn fill(memory: &MemoryRegion, offset: usize, from: &[u8]) {
    // SAFETY: the callers checked slot and length against the layout, so this lies inside the region's allocation.
    let to = unsafe { memory.as_ptr().add(offset) };
    // SAFETY: both sides are valid for this length and apart; the slot is not the device's (top of this file), and
    // the connection's lock keeps other threads away.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
}

fn send_flags(signalled: bool) -> u32 {
    if signalled {
        ffi::ibv_send_flags::IBV_SEND_SIGNALED.0
    } else {
        0
    }
}

/// An element that names memory whose bytes the driver copies before `ibv_post_send` returns.
fn inline_sge(bytes: &[u8]) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: bytes.as_ptr() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    }
}

/// A part of a receive buffer whose receive has completed.
fn bytes(memory: &MemoryRegion, offset: usize, len: usize) -> &[u8] {
    // SAFETY: the callers checked `offset` and `len` against the layout, so the address lies inside the region's allocation.
    let start = unsafe { memory.as_ptr().add(offset) };
    // SAFETY: the bytes were zeroed at allocation, live as long as the region, and nobody writes them: the device has completed
    // the receive, and it is posted again only once the slice is gone (top of this file).
    unsafe { slice::from_raw_parts(start, len) }
}

/// A part of a receive buffer that the device has let go of.
pub(crate) struct RecvSlice {
    memory: MemoryRegion,
    offset: usize,
    len: usize,
}

impl RecvSlice {
    /// Narrows the slice. The state machine checked that the part lies inside.
    pub(super) fn part(self, offset: u32, len: u32) -> Self {
        let (offset, len) = (offset as usize, len as usize);
        assert!(
            offset + len <= self.len,
            "the state machine names a part of the frame"
        );
        Self {
            offset: self.offset + offset,
            len,
            memory: self.memory,
        }
    }
}

impl Deref for RecvSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        bytes(&self.memory, self.offset, self.len)
    }
}

impl std::fmt::Debug for RecvSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvSlice")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish()
    }
}

const _: () = assert!(HEADER_LEN <= ALIGN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, engine::EngineLimits};

    #[test]
    fn work_ids_come_back_as_they_went() {
        for id in [
            WorkId::Recv(0),
            WorkId::Recv(u32::MAX),
            WorkId::Send(7),
            WorkId::DrainRecv,
            WorkId::DrainSend,
        ] {
            assert_eq!(WorkId::decode(id.encode()), id);
        }
    }

    /// The table in the documentation of [`Config`] is what this comes to.
    #[test]
    fn the_documentation_says_how_many_connections_fit_the_lock_limit() {
        let documentation = include_str!("../config.rs");
        let default = Config::default();
        for (window, depth, eager) in [
            (
                default.receive_window,
                default.send_depth,
                default.eager_size,
            ),
            (64, 64, 16 << 10),
            (32, 32, 8 << 10),
            (16, 16, 4 << 10),
            (8, 8, 1 << 10),
        ] {
            let config = Config {
                receive_window: window,
                send_depth: depth,
                eager_size: eager,
                ..Config::default()
            };
            let name = if config == default {
                "the default: "
            } else {
                ""
            };
            let bytes = Layout::new(&config.params()).bytes().next_multiple_of(4096) as u64;
            let fit = [64 << 10, 8 << 20, 64 << 20, 1 << 30]
                .map(|limit| (limit - EngineLimits::of(u64::MAX, limit).pinned) / bytes);
            let kib = eager >> 10;
            let [first, second, third, fourth] = fit;
            let row = format!(
                "/// | {name}{window}, {depth}, {kib} KiB | {bytes} | {first} | {second} | {third} | {fourth} |\n"
            );
            assert!(documentation.contains(&row), "{row}");
        }
    }

    #[test]
    fn buffers_do_not_overlap() {
        let layout = Layout {
            recv_size: 128,
            recv_count: 3,
            shared: false,
            send_size: 192,
            send_count: 2,
        };
        assert_eq!(layout.recv_offset(2) + 128, layout.send_offset(0));
        assert_eq!(layout.send_offset(1) + 192, layout.bytes());
        let layout = Layout {
            shared: true,
            ..layout
        };
        assert_eq!(layout.send_offset(0), 0, "receives are elsewhere");
    }
}
