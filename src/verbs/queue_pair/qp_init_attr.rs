use std::ptr;

use super::{QpCap, QpType, SharedReceiveQueue};
use crate::{
    status::OsError,
    sys::ffi,
    verbs::{completion::CompletionQueue, memory::ProtectionDomain},
};

/// What a queue pair is created with.
///
/// [`rc`](Self::rc) and [`ud`](Self::ud) fill in what most programs want; the rest is set by field
/// update:
///
/// ```no_run
/// # use rdmsg::verbs::{CompletionQueue, QpCap, QpInitAttr};
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

impl<'a> QpInitAttr<'a> {
    /// A queue pair of the given type with capacities of at least `cap`. Both queues complete on `cq`;
    /// there is no shared receive queue, and only signaled work requests complete.
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

    /// A reliable connection: otherwise as [`new`](Self::new).
    #[must_use]
    pub const fn rc(cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self::new(QpType::RC, cq, cap)
    }

    /// Unreliable datagrams: otherwise as [`new`](Self::new).
    #[must_use]
    pub const fn ud(cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self::new(QpType::UD, cq, cap)
    }
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
