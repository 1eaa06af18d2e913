//! The inline functions of the C headers. They call operations that the device's driver has set.

use libc::c_int;

use super::{objects::*, work::*};

macro_rules! operations {
    ($(
        fn $name:ident($object:ident: $of:ty $(, $argument:ident: $type:ty )*) = $operation:ident;
    )*) => {
        $(
            #[inline]
            pub(crate) unsafe fn $name($object: $of $(, $argument: $type )*) -> c_int {
                // SAFETY: the caller guarantees that `$object` exists.
                let context = unsafe { (*$object).context };
                // SAFETY: the `context` of an existing object is open.
                match unsafe { (*context).ops.$operation } {
                    // SAFETY: the driver has set this operation for the object's device. The caller
                    // fulfils the operation's requirements.
                    Some(operation) => unsafe { operation($object $(, $argument )*) },
                    None => -libc::EOPNOTSUPP,
                }
            }
        )*

        #[cfg(all(test, feature = "linked"))]
        #[test]
        fn operations_match_the_header() {
            use std::any::type_name_of_val;

            use crate::sys::{dlopen::define::{placeholder, without_module_paths}, linked};

            $( {
                let ours: unsafe fn($of $(, $type )*) -> c_int = $name;
                let theirs = linked::$name
                    as unsafe fn(placeholder!($object) $(, placeholder!($argument) )*) -> _;
                assert_eq!(
                    without_module_paths(type_name_of_val(&ours)),
                    without_module_paths(type_name_of_val(&theirs)),
                );
            } )*
        }
    };
}

operations! {
    fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) = poll_cq;
    fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) = req_notify_cq;
    fn ibv_post_send(
        qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr
    ) = post_send;
    fn ibv_post_recv(
        qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr
    ) = post_recv;
    fn ibv_post_srq_recv(
        srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr
    ) = post_srq_recv;
}
