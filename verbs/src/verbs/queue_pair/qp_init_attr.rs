use std::ptr;

use rdma_status::{OsError, open_enum};

use super::{QpCap, SharedReceiveQueue};
use crate::{
    sys::ffi,
    verbs::{completion::CompletionQueue, memory::ProtectionDomain},
};

/// The attributes with which a queue pair is created.
///
/// [`rc`](Self::rc) and [`ud`](Self::ud) fill in the common values; others are set by field update:
///
/// ```no_run
/// # use rdma_verbs::verbs::{CompletionQueue, QpCap, QpInitAttr};
/// # fn main() {}
/// # fn f(cq: &CompletionQueue) {
/// let attr = QpInitAttr {
///     sq_sig_all: true,
///     ..QpInitAttr::rc(cq, QpCap::default())
/// };
/// # }
/// ```
///
/// See [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field, as in C"
)]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInitAttr<'a> {
    /// The type of transport.
    pub qp_type: QpType,
    /// The completion queue of the send queue.
    pub send_cq: &'a CompletionQueue,
    /// The completion queue of the receive queue, which may be the same one.
    pub recv_cq: &'a CompletionQueue,
    /// The shared receive queue that replaces a receive queue of its own.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// The minimum capacities of the queues.
    pub cap: QpCap,
    /// Whether every work request of the send queue is signaled, so that it has a completion.
    pub sq_sig_all: bool,
}

impl<'a> QpInitAttr<'a> {
    /// Describes a queue pair of the given type with capacities of at least `cap`.
    ///
    /// Both queues complete on `cq`. There is no shared receive queue, and only work requests that
    /// are marked as signaled have a completion.
    #[must_use]
    pub const fn new(qp_type: QpType, cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self {
            qp_type,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap,
            sq_sig_all: false,
        }
    }

    /// Describes a reliable connection, otherwise the same as [`new`](Self::new).
    #[must_use]
    pub const fn rc(cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self::new(QpType::RC, cq, cap)
    }

    /// Describes an unreliable datagram queue pair, otherwise the same as [`new`](Self::new).
    #[must_use]
    pub const fn ud(cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self::new(QpType::UD, cq, cap)
    }
    /// Converts to the C form, which is valid for as long as the borrowed objects.
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

    /// Checks that all objects belong to the device of `pd`, which drivers take for granted.
    pub(crate) fn check(&self, call: &'static str, pd: &ProtectionDomain) -> Result<(), OsError> {
        let context = pd.context();
        let same_device = self.send_cq.context().is(context)
            && self.recv_cq.context().is(context)
            && self.srq.is_none_or(|srq| srq.pd().context().is(context));
        // Other types need further attributes, which this structure does not have.
        let known_type = matches!(self.qp_type, QpType::RC | QpType::UC | QpType::UD);
        if same_device && known_type {
            Ok(())
        } else {
            Err(OsError::new(call, libc::EINVAL))
        }
    }
}

open_enum! {
    /// The type of transport: `enum ibv_qp_type`.
    #[doc(alias = "ibv_qp_type")]
    pub struct QpType(u32);
    /// Reliable connection: messages arrive once and in order, or the connection fails.
    RC = 2;
    /// Unreliable connection: messages may be lost.
    UC = 3;
    /// Unreliable datagram: messages of one packet to any peer, which may be lost.
    UD = 4;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi;

    #[test]
    fn types_are_the_headers() {
        assert_eq!(QpType::RC.raw(), ffi::ibv_qp_type::IBV_QPT_RC);
        assert_eq!(QpType::UC.raw(), ffi::ibv_qp_type::IBV_QPT_UC);
        assert_eq!(QpType::UD.raw(), ffi::ibv_qp_type::IBV_QPT_UD);
    }
}
