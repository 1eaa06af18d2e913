use std::ptr;

use super::SharedReceiveQueue;
use crate::{
    status::{OsError, open_enum},
    sys::ffi,
    verbs::{completion::CompletionQueue, memory::ProtectionDomain},
};

/// What a queue pair is made of.
///
/// See [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field, as in C"
)]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInitAttr<'a> {
    /// The kind of transport.
    pub qp_type: QpType,
    /// Where completions of the send queue go.
    pub send_cq: &'a CompletionQueue,
    /// Where completions of the receive queue go. May be the same.
    pub recv_cq: &'a CompletionQueue,
    /// Where receives come from, instead of a queue of its own.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// How much the queues must hold.
    pub cap: QpCap,
    /// Whether every work request of the send queue has a completion, as if it were signaled.
    pub sq_sig_all: bool,
}

/// How much the queues of a queue pair hold. What is asked for is a lower bound; what is granted, an upper one.
///
/// The default holds one work request of one element in each queue, and no inline data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field, as in C"
)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Work requests of the send queue that are not completed.
    pub max_send_wr: u32,
    /// Receives that are not completed. Means nothing with a shared receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a work request of the send queue.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive. Means nothing with a shared receive queue.
    pub max_recv_sge: u32,
    /// Bytes that a work request may carry inline.
    pub max_inline_data: u32,
}

open_enum! {
    /// A kind of transport: `enum ibv_qp_type`.
    #[doc(alias = "ibv_qp_type")]
    pub struct QpType(u32);
    /// Reliable connection: messages arrive once and in order, or the connection fails.
    RC = 2;
    /// Unreliable connection: messages may be lost.
    UC = 3;
    /// Unreliable datagram: messages of one packet to any peer, which may be lost.
    UD = 4;
}

impl QpInitAttr<'_> {
    /// The C form. It holds as long as what this one borrows.
    pub(crate) fn to_raw(self) -> ffi::ibv_qp_init_attr {
        ffi::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.send_cq.as_ptr(),
            recv_cq: self.recv_cq.as_ptr(),
            srq: self.srq.map_or(ptr::null_mut(), SharedReceiveQueue::as_ptr),
            cap: self.cap.to_raw(),
            qp_type: self.qp_type.raw(),
            sq_sig_all: self.sq_sig_all.into(),
        }
    }

    /// Makes sure that everything belongs to the device of `pd`: a driver takes each object for one of its own.
    pub(crate) fn check(&self, call: &'static str, pd: &ProtectionDomain) -> Result<(), OsError> {
        let context = pd.context();
        let same_device = self.send_cq.context().is(context)
            && self.recv_cq.context().is(context)
            && self.srq.is_none_or(|srq| srq.pd().context().is(context));
        // Other types have attributes of their own, which are not given here.
        let known_type = matches!(self.qp_type, QpType::RC | QpType::UC | QpType::UD);
        if same_device && known_type {
            Ok(())
        } else {
            Err(OsError::new(call, libc::EINVAL))
        }
    }
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
    fn capacities_come_back_as_they_went() {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 2,
            max_send_sge: 3,
            max_recv_sge: 4,
            max_inline_data: 5,
        };
        assert_eq!(QpCap::from_raw(cap.to_raw()), cap);
    }

    #[test]
    fn types_are_the_headers() {
        assert_eq!(QpType::RC.raw(), ffi::ibv_qp_type::IBV_QPT_RC);
        assert_eq!(QpType::UC.raw(), ffi::ibv_qp_type::IBV_QPT_UC);
        assert_eq!(QpType::UD.raw(), ffi::ibv_qp_type::IBV_QPT_UD);
    }
}
