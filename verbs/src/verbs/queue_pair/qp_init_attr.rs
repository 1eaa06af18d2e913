use std::ptr;

use rdma_status::{OsError, open_enum};

use super::{QpCap, SharedReceiveQueue};
use crate::{
    sys::ffi,
    verbs::{completion::CompletionQueue, memory::ProtectionDomain},
};

/// The attributes with which a queue pair is created.
///
/// [`rc`](Self::rc) and [`ud`](Self::ud) fill in common values. Struct update syntax sets other
/// values:
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
    reason = "programs fill in every field, as in C"
)]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInitAttr<'a> {
    /// The type of the queue pair, which determines its transport service.
    pub qp_type: QpType,
    /// The completion queue for sends.
    pub send_cq: &'a CompletionQueue,
    /// The completion queue for receives, which may be the same as `send_cq`.
    pub recv_cq: &'a CompletionQueue,
    /// The shared receive queue, or `None` if the queue pair has its own receive queue.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// The minimum capacities of the queues.
    pub cap: QpCap,
    /// Whether every send is signaled. A signaled request has a completion even if it succeeds.
    pub sq_sig_all: bool,
}

impl<'a> QpInitAttr<'a> {
    /// Returns the attributes of a queue pair of the type `qp_type`, with capacities of at least
    /// `cap`.
    ///
    /// Both queues use the completion queue `cq`. The queue pair has no shared receive queue, and a
    /// successful send has a completion only if its work request is signaled.
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

    /// Returns the attributes that [`new`](Self::new) returns for a reliable connection
    /// ([`QpType::RC`]).
    #[must_use]
    pub const fn rc(cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self::new(QpType::RC, cq, cap)
    }

    /// Returns the attributes that [`new`](Self::new) returns for unreliable datagrams
    /// ([`QpType::UD`]).
    #[must_use]
    pub const fn ud(cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self::new(QpType::UD, cq, cap)
    }

    /// Converts the attributes to the C structure, which is valid while the borrowed objects exist.
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

    /// Returns `EINVAL` if an object belongs to a different device than `pd`, because drivers do
    /// not check this. Also returns `EINVAL` if the type is not RC, UC or UD.
    pub(crate) fn check(&self, call: &'static str, pd: &ProtectionDomain) -> Result<(), OsError> {
        let context = pd.context();
        let same_device = self.send_cq.context().is_same_device(context)
            && self.recv_cq.context().is_same_device(context)
            && self
                .srq
                .is_none_or(|srq| srq.pd().context().is_same_device(context));
        // Other types of queue pairs require attributes that this structure lacks.
        let known_type = matches!(self.qp_type, QpType::RC | QpType::UC | QpType::UD);
        if same_device && known_type {
            Ok(())
        } else {
            Err(OsError::new(call, libc::EINVAL))
        }
    }
}

open_enum! {
    /// The type of a queue pair, which determines its transport service: `enum ibv_qp_type`.
    #[doc(alias = "ibv_qp_type")]
    pub struct QpType(u32);
    /// Reliable connection: each message arrives once and in order, or the connection fails.
    RC = 2;
    /// Unreliable connection: messages may be lost.
    UC = 3;
    /// Unreliable datagram: each message is one packet, can be sent to any peer, and may be lost.
    UD = 4;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi;

    #[test]
    fn types_match_the_headers() {
        assert_eq!(QpType::RC.raw(), ffi::ibv_qp_type::IBV_QPT_RC);
        assert_eq!(QpType::UC.raw(), ffi::ibv_qp_type::IBV_QPT_UC);
        assert_eq!(QpType::UD.raw(), ffi::ibv_qp_type::IBV_QPT_UD);
    }
}
