use crate::sys::ffi;

/// The capacities of a queue pair's queues.
///
/// A requested capacity is a minimum: the granted capacity may be higher.
///
/// The default is one work request with one element in each queue, and no inline data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "programs fill in every field, as in C"
)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// The maximum number of outstanding work requests in the send queue.
    pub max_send_wr: u32,
    /// The maximum number of outstanding receives. Ignored if the queue pair uses a shared receive
    /// queue.
    pub max_recv_wr: u32,
    /// The maximum number of scatter/gather elements of a work request in the send queue.
    pub max_send_sge: u32,
    /// The maximum number of scatter/gather elements of a receive.
    ///
    /// Ignored if the queue pair uses a shared receive queue.
    pub max_recv_sge: u32,
    /// The maximum number of bytes that a work request may carry inline.
    pub max_inline_data: u32,
}

impl QpCap {
    pub(crate) const fn from_raw(raw: ffi::ibv_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        }
    }

    pub(super) const fn to_raw(self) -> ffi::ibv_qp_cap {
        ffi::ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
        }
    }
}

impl Default for QpCap {
    fn default() -> Self {
        Self {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_round_trip() {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 2,
            max_send_sge: 3,
            max_recv_sge: 4,
            max_inline_data: 5,
        };
        assert_eq!(QpCap::from_raw(cap.to_raw()), cap);
    }
}
