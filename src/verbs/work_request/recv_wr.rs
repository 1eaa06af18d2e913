use super::SgeList;

/// A receive: where the next message goes.
///
/// See [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr<'a> {
    pub(in crate::verbs) wr_id: u64,
    pub(in crate::verbs) sg_list: SgeList<'a>,
}

impl<'a> RecvWr<'a> {
    /// Puts the next message into these pieces, one after the other. Its completion carries `wr_id`.
    ///
    /// They must allow `LOCAL_WRITE`, and be long enough for the message; a datagram takes 40 bytes more
    /// ([`AddressHandle::GRH_LEN`](crate::verbs::AddressHandle::GRH_LEN)). An RDMA WRITE with immediate data uses a receive and none of its
    /// bytes.
    #[must_use]
    pub fn new(wr_id: u64, sg_list: impl Into<SgeList<'a>>) -> Self {
        Self {
            wr_id,
            sg_list: sg_list.into(),
        }
    }
}
