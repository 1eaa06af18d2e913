use super::{AddressHandle, Sge, SgeList};
use crate::sys::ffi;

/// A work request of the send queue: a send or a one-sided operation.
///
/// ```no_run
/// # use rdma_verbs::verbs::{Inline, MemoryRegion, PostError, QueuePair, RemoteAddr, SendWr, Sge};
/// # fn main() {}
/// # fn f(qp: &QueuePair, region: &MemoryRegion, peer: RemoteAddr) -> Result<(), PostError> {
/// qp.post_send(&[
///     SendWr::write(1, Sge::new(region, ..4096), peer),
///     SendWr::send(2, Inline(b"written")).signaled(),
/// ])
/// # }
/// ```
///
/// A successful request has a completion only if it is [`signaled`](Self::signaled), or if the
/// queue pair was created with `sq_sig_all`. The entry of an unsignaled request in the send queue
/// becomes free when the completion of a later request is polled. Therefore signal at least one of
/// every `max_send_wr` requests.
///
/// See [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_send_wr")]
pub struct SendWr<'a> {
    pub(in crate::verbs) wr_id: u64,
    pub(in crate::verbs) payload: Payload<'a>,
    pub(in crate::verbs) op: SendOp,
    pub(in crate::verbs) ud: Option<UdTarget<'a>>,
    pub(in crate::verbs) flags: u32,
}

/// The local data of a request: elements of memory regions, or the [`Inline`] bytes of a send or
/// WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'a>(pub(in crate::verbs) Bytes<'a>);

#[derive(Debug, Clone, Copy)]
pub(in crate::verbs) enum Bytes<'a> {
    Registered(SgeList<'a>),
    Inline(&'a [u8]),
}

/// Bytes that are copied when the work request is posted. Their memory needs no registration.
///
/// [`QpCap::max_inline_data`](crate::verbs::QpCap::max_inline_data) of the queue pair limits the
/// number of bytes.
#[derive(Debug, Clone, Copy)]
#[doc(alias = "IBV_SEND_INLINE")]
#[expect(clippy::exhaustive_structs, reason = "the type only marks a parameter")]
pub struct Inline<'a>(pub &'a [u8]);

/// Memory of the peer: the address and the key that the peer announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "one-sided operations need only these two fields"
)]
pub struct RemoteAddr {
    /// The address of the first byte.
    ///
    /// The value is [`MemoryRegion::addr`](crate::verbs::MemoryRegion::addr) of a region of the
    /// peer, plus an offset.
    pub addr: u64,
    /// The key of a region or window of the peer, which is the value of
    /// [`MemoryRegion::rkey`](crate::verbs::MemoryRegion::rkey) or
    /// [`MemoryWindow::rkey`](crate::verbs::MemoryWindow::rkey).
    pub rkey: u32,
}

/// The operation of a request, with its remote address and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the operations of libibverbs")]
pub enum SendOp {
    /// `IBV_WR_SEND`.
    Send,
    /// `IBV_WR_SEND_WITH_IMM`, with the immediate data.
    SendWithImm(u32),
    /// `IBV_WR_SEND_WITH_INV`, with the peer's key that the operation invalidates.
    SendWithInv(u32),
    /// `IBV_WR_RDMA_WRITE`.
    Write(RemoteAddr),
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`, with the immediate data.
    WriteWithImm(RemoteAddr, u32),
    /// `IBV_WR_RDMA_READ`.
    Read(RemoteAddr),
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`.
    FetchAdd {
        /// The eight bytes that the operation changes in the peer's memory.
        remote: RemoteAddr,
        /// The number to add.
        add: u64,
    },
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`.
    CompareSwap {
        /// The eight bytes that the operation compares and may change in the peer's memory.
        remote: RemoteAddr,
        /// The expected value. The operation writes `swap` only if the peer's memory contains this
        /// value.
        compare: u64,
        /// The new value of the eight bytes.
        swap: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(in crate::verbs) struct UdTarget<'a> {
    pub(in crate::verbs) handle: &'a AddressHandle,
    pub(in crate::verbs) qp_num: u32,
    pub(in crate::verbs) qkey: u32,
}

impl<'a> SendWr<'a> {
    /// Creates a send: a message that consumes the peer's next receive.
    #[must_use]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send(wr_id: u64, payload: impl Into<Payload<'a>>) -> Self {
        Self::new(wr_id, payload.into(), SendOp::Send)
    }

    /// Creates a send with 32 bits of immediate data. The receive completion at the peer contains
    /// this data.
    ///
    /// The immediate data is in host byte order on both sides.
    #[must_use]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn send_with_imm(wr_id: u64, payload: impl Into<Payload<'a>>, imm_data: u32) -> Self {
        Self::new(wr_id, payload.into(), SendOp::SendWithImm(imm_data))
    }

    /// Creates a send that invalidates a key of the peer.
    ///
    /// The key must be the key of a memory window: the key of a memory region cannot be
    /// invalidated.
    #[must_use]
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_with_inv(wr_id: u64, payload: impl Into<Payload<'a>>, rkey: u32) -> Self {
        Self::new(wr_id, payload.into(), SendOp::SendWithInv(rkey))
    }

    /// Creates an RDMA WRITE, which writes to the peer's memory without notifying the peer.
    #[must_use]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(wr_id: u64, payload: impl Into<Payload<'a>>, remote: RemoteAddr) -> Self {
        Self::new(wr_id, payload.into(), SendOp::Write(remote))
    }

    /// Creates an RDMA WRITE that carries 32 bits of immediate data and completes the peer's next
    /// receive.
    ///
    /// The immediate data is in host byte order on both sides.
    #[must_use]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_with_imm(
        wr_id: u64,
        payload: impl Into<Payload<'a>>,
        remote: RemoteAddr,
        imm_data: u32,
    ) -> Self {
        Self::new(
            wr_id,
            payload.into(),
            SendOp::WriteWithImm(remote, imm_data),
        )
    }

    /// Creates an RDMA READ of the peer's memory. The regions of `into` must allow `LOCAL_WRITE`.
    #[must_use]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(wr_id: u64, into: impl Into<SgeList<'a>>, remote: RemoteAddr) -> Self {
        Self::new(wr_id, into.into().into(), SendOp::Read(remote))
    }

    /// Creates an atomic fetch-and-add on 8 aligned bytes of the peer's memory.
    ///
    /// The operation writes the original value to `into`, which must be 8 bytes long. All values
    /// are in host byte order.
    #[must_use]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add(wr_id: u64, into: Sge<'a>, remote: RemoteAddr, add: u64) -> Self {
        Self::new(wr_id, into.into(), SendOp::FetchAdd { remote, add })
    }

    /// Creates an atomic compare-and-swap on 8 aligned bytes of the peer's memory.
    ///
    /// The operation changes the value to `swap` if the value is equal to `compare`. It writes the
    /// original value to `into`, which must be 8 bytes long. All values are in host byte order.
    #[must_use]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap(
        wr_id: u64,
        into: Sge<'a>,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::new(
            wr_id,
            into.into(),
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            },
        )
    }

    /// Sets the destination of a datagram: the path, and the number and the queue key of the queue
    /// pair that receives the datagram.
    ///
    /// Requests on datagram queue pairs must have a destination. Other requests must not have one.
    #[must_use]
    pub fn to(mut self, handle: &'a AddressHandle, qp_num: u32, qkey: u32) -> Self {
        self.ud = Some(UdTarget {
            handle,
            qp_num,
            qkey,
        });
        self
    }

    /// Requests a completion even if the request succeeds.
    #[must_use]
    #[doc(alias = "IBV_SEND_SIGNALED")]
    pub fn signaled(self) -> Self {
        self.with(ffi::ibv_send_flags::IBV_SEND_SIGNALED)
    }

    /// Marks the message as solicited. The message then raises an event at the peer even if the
    /// peer requested events only for solicited messages.
    ///
    /// See [`CompletionQueue::req_notify`](crate::verbs::CompletionQueue::req_notify).
    #[must_use]
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub fn solicited(self) -> Self {
        self.with(ffi::ibv_send_flags::IBV_SEND_SOLICITED)
    }

    /// Delays the start of this request until all READ and atomic operations that were posted
    /// earlier have completed.
    #[must_use]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fence(self) -> Self {
        self.with(ffi::ibv_send_flags::IBV_SEND_FENCE)
    }

    fn new(wr_id: u64, payload: Payload<'a>, op: SendOp) -> Self {
        let flags = match payload.0 {
            Bytes::Registered(_) | Bytes::Inline([]) => 0,
            Bytes::Inline(_) => ffi::ibv_send_flags::IBV_SEND_INLINE.0,
        };
        Self {
            wr_id,
            payload,
            op,
            ud: None,
            flags,
        }
    }

    fn with(mut self, flag: ffi::ibv_send_flags) -> Self {
        self.flags |= flag.0;
        self
    }
}

impl SendOp {
    #[inline(always)]
    pub(in crate::verbs) const fn opcode(self) -> ffi::ibv_wr_opcode::Type {
        use ffi::ibv_wr_opcode as c;
        match self {
            Self::Send => c::IBV_WR_SEND,
            Self::SendWithImm(_) => c::IBV_WR_SEND_WITH_IMM,
            Self::SendWithInv(_) => c::IBV_WR_SEND_WITH_INV,
            Self::Write(_) => c::IBV_WR_RDMA_WRITE,
            Self::WriteWithImm(..) => c::IBV_WR_RDMA_WRITE_WITH_IMM,
            Self::Read(_) => c::IBV_WR_RDMA_READ,
            Self::FetchAdd { .. } => c::IBV_WR_ATOMIC_FETCH_AND_ADD,
            Self::CompareSwap { .. } => c::IBV_WR_ATOMIC_CMP_AND_SWP,
        }
    }

    pub(in crate::verbs) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }
}

impl<'a> From<SgeList<'a>> for Payload<'a> {
    fn from(list: SgeList<'a>) -> Self {
        Self(Bytes::Registered(list))
    }
}

impl<'a> From<Sge<'a>> for Payload<'a> {
    fn from(sge: Sge<'a>) -> Self {
        SgeList::from(sge).into()
    }
}

impl<'a> From<&'a [Sge<'a>]> for Payload<'a> {
    fn from(sges: &'a [Sge<'a>]) -> Self {
        SgeList::from(sges).into()
    }
}

impl<'a, const N: usize> From<&'a [Sge<'a>; N]> for Payload<'a> {
    fn from(sges: &'a [Sge<'a>; N]) -> Self {
        SgeList::from(sges).into()
    }
}

impl<'a> From<Inline<'a>> for Payload<'a> {
    fn from(inline: Inline<'a>) -> Self {
        Self(Bytes::Inline(inline.0))
    }
}

/// A receive: the buffer for one message.
///
/// See [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr<'a> {
    pub(in crate::verbs) wr_id: u64,
    pub(in crate::verbs) sg_list: SgeList<'a>,
}

impl<'a> RecvWr<'a> {
    /// Creates a receive that scatters a message over the elements of `sg_list`.
    ///
    /// The completion of the receive contains `wr_id`.
    ///
    /// The regions of the elements must allow `LOCAL_WRITE`, and the elements must be long enough
    /// for the message. A datagram needs 40 additional bytes
    /// ([`AddressHandle::GRH_LEN`](crate::verbs::AddressHandle::GRH_LEN)). An RDMA WRITE with
    /// immediate data consumes a receive without writing to its elements.
    #[must_use]
    pub fn new(wr_id: u64, sg_list: impl Into<SgeList<'a>>) -> Self {
        Self {
            wr_id,
            sg_list: sg_list.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_add_up() {
        use ffi::ibv_send_flags as c;
        assert_eq!(SendWr::send(1, Inline(b"")).flags, 0);
        let wr = SendWr::send(1, &[]).signaled().solicited().fence();
        assert_eq!(
            wr.flags,
            (c::IBV_SEND_SIGNALED | c::IBV_SEND_SOLICITED | c::IBV_SEND_FENCE).0
        );
        assert_eq!(SendWr::send(1, Inline(b"x")).flags, c::IBV_SEND_INLINE.0);
    }
}
