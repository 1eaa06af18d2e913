use std::{io, ptr::NonNull};

use rdma_status::OsError;

/// Converts the result of a call that returns −1 and sets `errno`: `rdma_*` and system calls.
///
/// Any other value is the call's result.
pub fn cvt(call: &'static str, ret: libc::c_int) -> Result<libc::c_int, OsError> {
    if ret == -1 {
        Err(last_error(call))
    } else {
        Ok(ret)
    }
}

/// Converts the result of a call that returns 0 or an error number, as most `ibv_*` calls do.
///
/// The conventions differ: a driver may return the number, the number negated, or −1 with `errno`
/// set. All three are accepted. (−1 is never `-EPERM` here: the calls that negate return the result
/// of the kernel's command, which is in `errno` as well.)
pub fn cvt_errno(call: &'static str, ret: libc::c_int) -> Result<(), OsError> {
    match ret {
        0 => Ok(()),
        -1 => Err(last_error(call)),
        _ => Err(OsError::new(call, ret.saturating_abs())),
    }
}

/// Converts the result of a call that returns a pointer, or null with `errno` set.
pub fn cvt_ptr<T>(call: &'static str, ptr: *mut T) -> Result<NonNull<T>, OsError> {
    NonNull::new(ptr).ok_or_else(|| last_error(call))
}

/// Logs that an object could not be destroyed, from its `Drop`, which cannot return an error.
///
/// A device that was removed returns `EIO` or `ENODEV`. After a change of credentials the kernel
/// returns `EACCES`. Neither is a defect. Any other error is a defect of this crate: an object was
/// destroyed before its dependents.
pub fn log_destroy_error(result: Result<(), OsError>) {
    let Err(error) = result else { return };
    error_sparsely!("{error}: the object is leaked");
    debug_assert!(
        matches!(error.errno, libc::EIO | libc::ENODEV | libc::EACCES) || std::thread::panicking(),
        "{error}: destroyed while something still depends on it"
    );
}

/// Returns `errno` of the call just made.
///
/// A call that failed without setting it is reported as `EIO`, never as success.
fn last_error(call: &'static str) -> OsError {
    let errno = match io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno > 0 => errno,
        _ => libc::EIO,
    };
    OsError::new(call, errno)
}
