use super::SgeList;

/// A receive: the buffer for a message.
///
/// See [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr<'a> {
    pub(in crate::verbs) wr_id: u64,
    pub(in crate::verbs) sg_list: SgeList<'a>,
}

impl<'a> RecvWr<'a> {
    /// Creates a receive that scatters a message over these elements.
    ///
    /// Its completion carries `wr_id`.
    ///
    /// They must allow `LOCAL_WRITE` and be long enough for the message; a datagram takes 40 bytes
    /// more ([`AddressHandle::GRH_LEN`](crate::verbs::AddressHandle::GRH_LEN)). An RDMA WRITE with
    /// immediate data consumes a receive without writing to its buffer.
    #[must_use]
    pub fn new(wr_id: u64, sg_list: impl Into<SgeList<'a>>) -> Self {
        Self {
            wr_id,
            sg_list: sg_list.into(),
        }
    }
}
