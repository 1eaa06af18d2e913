//! Tests that compare the constants of [`rdma_status`] with the constants of the C API, and tests
//! of the functions that convert results of C functions.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use rdma_status::{CmEventType, OsError, WcStatus};

use super::*;

#[test]
fn cvt_reports_minus_one_as_an_error() {
    assert_eq!(cvt("f", || 3), Ok(3));
    let expected = Err(OsError::new("close", libc::EBADF));
    assert_eq!(cvt("close", fail_with_ebadf), expected);
    // The number of the earlier error must not be reported again.
    assert_eq!(cvt("f", || -1), Err(OsError::new("f", libc::EIO)));
}

#[test]
fn cvt_errno_accepts_three_error_conventions() {
    let f = |ret| cvt_errno("f", || ret);
    assert_eq!(f(0), Ok(()));
    assert_eq!(f(libc::ENOMEM), Err(OsError::new("f", libc::ENOMEM)));
    assert_eq!(f(-libc::ENOMEM), Err(OsError::new("f", libc::ENOMEM)));
    let expected = Err(OsError::new("close", libc::EBADF));
    assert_eq!(cvt_errno("close", fail_with_ebadf), expected);
    assert_eq!(f(-1), Err(OsError::new("f", libc::EIO)));
    assert_eq!(f(i32::MIN), Err(OsError::new("f", i32::MAX)));
}

#[test]
fn full_queue_is_reported_in_three_ways() {
    fail_with_ebadf();
    for ret in [libc::ENOMEM, -libc::ENOMEM, -1] {
        let expected = Err(OsError::new("f", libc::ENOMEM));
        assert_eq!(cvt_post("f", ret), expected, "{ret}");
    }
    assert_eq!(cvt_post("f", 0), Ok(()));
}

#[test]
fn cvt_ptr_reports_null_as_an_error() {
    let mut value = 7;
    assert_eq!(
        cvt_ptr("f", || &raw mut value).map(NonNull::as_ptr),
        Ok(&raw mut value)
    );
    let failed = cvt_ptr::<u8>("f", || {
        fail_with_ebadf();
        ptr::null_mut()
    });
    assert_eq!(failed, Err(OsError::new("f", libc::EBADF)));
    assert_eq!(
        cvt_ptr::<u8>("f", ptr::null_mut),
        Err(OsError::new("f", libc::EIO))
    );
}

/// Fails as C functions do, by returning −1 with `errno` set to `EBADF`.
fn fail_with_ebadf() -> libc::c_int {
    // SAFETY: closing an invalid descriptor has no effect.
    unsafe { libc::close(-1) }
}

/// Compares constants of [`rdma_status`] with the C enumerators of the same names.
macro_rules! assert_same_values {
    ($ours:ident, $theirs:ident, $prefix:literal: $($name:ident = $c_name:ident),* $(,)?) => {
        $( assert_eq!(
            $ours::$name.raw(),
            ffi::$theirs::$c_name,
            "{} must have the value of the C API",
            stringify!($c_name),
        ); )*
        $( assert_eq!(concat!($prefix, stringify!($name)), stringify!($c_name)); )*
    };
}

#[test]
fn wc_status_matches_the_header() {
    assert_same_values!(WcStatus, ibv_wc_status, "IBV_WC_":
        SUCCESS = IBV_WC_SUCCESS,
        LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR,
        LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR,
        LOC_EEC_OP_ERR = IBV_WC_LOC_EEC_OP_ERR,
        LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR,
        WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR,
        MW_BIND_ERR = IBV_WC_MW_BIND_ERR,
        BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR,
        LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR,
        REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR,
        REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR,
        REM_OP_ERR = IBV_WC_REM_OP_ERR,
        RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR,
        RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR,
        LOC_RDD_VIOL_ERR = IBV_WC_LOC_RDD_VIOL_ERR,
        REM_INV_RD_REQ_ERR = IBV_WC_REM_INV_RD_REQ_ERR,
        REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR,
        INV_EECN_ERR = IBV_WC_INV_EECN_ERR,
        INV_EEC_STATE_ERR = IBV_WC_INV_EEC_STATE_ERR,
        FATAL_ERR = IBV_WC_FATAL_ERR,
        RESP_TIMEOUT_ERR = IBV_WC_RESP_TIMEOUT_ERR,
        GENERAL_ERR = IBV_WC_GENERAL_ERR,
        TM_ERR = IBV_WC_TM_ERR,
        TM_RNDV_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE,
    );
}

#[test]
fn cm_event_type_matches_the_header() {
    assert_same_values!(CmEventType, rdma_cm_event_type, "RDMA_CM_EVENT_":
        ADDR_RESOLVED = RDMA_CM_EVENT_ADDR_RESOLVED,
        ADDR_ERROR = RDMA_CM_EVENT_ADDR_ERROR,
        ROUTE_RESOLVED = RDMA_CM_EVENT_ROUTE_RESOLVED,
        ROUTE_ERROR = RDMA_CM_EVENT_ROUTE_ERROR,
        CONNECT_REQUEST = RDMA_CM_EVENT_CONNECT_REQUEST,
        CONNECT_RESPONSE = RDMA_CM_EVENT_CONNECT_RESPONSE,
        CONNECT_ERROR = RDMA_CM_EVENT_CONNECT_ERROR,
        UNREACHABLE = RDMA_CM_EVENT_UNREACHABLE,
        REJECTED = RDMA_CM_EVENT_REJECTED,
        ESTABLISHED = RDMA_CM_EVENT_ESTABLISHED,
        DISCONNECTED = RDMA_CM_EVENT_DISCONNECTED,
        DEVICE_REMOVAL = RDMA_CM_EVENT_DEVICE_REMOVAL,
        MULTICAST_JOIN = RDMA_CM_EVENT_MULTICAST_JOIN,
        MULTICAST_ERROR = RDMA_CM_EVENT_MULTICAST_ERROR,
        ADDR_CHANGE = RDMA_CM_EVENT_ADDR_CHANGE,
        TIMEWAIT_EXIT = RDMA_CM_EVENT_TIMEWAIT_EXIT,
    );
}
