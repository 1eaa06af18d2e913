use std::{io, ptr::NonNull, time::Duration};

use nix::errno::Errno;
use rdma_status::OsError;

// The functions `cvt`, `cvt_errno` and `cvt_ptr` call a C function. Some drivers report a failure
// without setting `errno`. The functions therefore set `errno` to 0 before the call, and such a
// failure becomes `EIO`. Otherwise it would have the number of an earlier error of this thread.

/// Makes a call that returns −1 and sets `errno` if it fails, as `rdma_*` functions and system
/// calls do. `call` is the name of the C function.
///
/// Any other value is the call's result.
pub fn cvt(call: &'static str, make: impl FnOnce() -> libc::c_int) -> Result<libc::c_int, OsError> {
    Errno::clear();
    match make() {
        -1 => Err(last_error(call)),
        ret => Ok(ret),
    }
}

/// Makes a call that returns 0 or an error number, as most `ibv_*` calls do.
///
/// Drivers report errors in different ways: a function may return the error number, the negated
/// error number, or −1 with `errno` set. This function accepts all three. The result −1 could also
/// be the negated `EPERM`. But a function that returns negated numbers forwards the result of a
/// kernel command, and a failed kernel command also sets `errno`.
#[inline]
pub fn cvt_errno(call: &'static str, make: impl FnOnce() -> libc::c_int) -> Result<(), OsError> {
    Errno::clear();
    match make() {
        0 => Ok(()),
        -1 => Err(last_error(call)),
        ret => Err(OsError::new(call, ret.saturating_abs())),
    }
}

/// Converts the result of a call that posts work requests: 0, an error number or the negated error
/// number.
///
/// Some drivers return −1 without setting `errno` if the queue is full. The result −1 therefore
/// becomes `ENOMEM`. This function does not use `errno`, because access to `errno` would cost
/// instructions in each message.
#[inline]
pub const fn cvt_post(call: &'static str, ret: libc::c_int) -> Result<(), OsError> {
    match ret {
        0 => Ok(()),
        -1 => Err(OsError::new(call, libc::ENOMEM)),
        _ => Err(OsError::new(call, ret.saturating_abs())),
    }
}

/// Makes a call that returns a pointer, or null if it fails.
pub fn cvt_ptr<T>(
    call: &'static str,
    make: impl FnOnce() -> *mut T,
) -> Result<NonNull<T>, OsError> {
    Errno::clear();
    NonNull::new(make()).ok_or_else(|| last_error(call))
}

/// Returns a function for [`Result::map_err`]. The returned function converts an error that `nix`
/// or `std` has reported for the C function `call` to an [`OsError`].
///
/// An error without an error number becomes `EIO`, because the number 0 would mean success.
pub fn failed<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> OsError + Copy {
    failed_or(call, libc::EIO)
}

/// Does the same as [`failed`], but an error without an error number becomes `fallback`.
pub fn failed_or<E: Into<io::Error>>(
    call: &'static str,
    fallback: libc::c_int,
) -> impl Fn(E) -> OsError + Copy {
    move |error| {
        let errno = error.into().raw_os_error().filter(|errno| *errno > 0);
        OsError::new(call, errno.unwrap_or(fallback))
    }
}

/// Converts a timeout to milliseconds, rounded up. If it were rounded down, a timeout below 1 ms
/// would become 0, and the caller's wait would become a busy loop.
///
/// The function does not use `Duration::as_millis`, because the 128-bit division in `as_millis`
/// costs more than all other work of a call that does not wait.
#[inline]
pub const fn millis(wait: Duration) -> u64 {
    let rest = wait.subsec_nanos().div_ceil(1_000_000);
    wait.as_secs()
        .saturating_mul(1000)
        .saturating_add(rest as u64)
}

/// Logs the error if an RDMA object could not be destroyed. `Drop` implementations call this
/// function, because they cannot return an error.
///
/// Destroying an object fails with `EIO` or `ENODEV` if the device was removed, and with `EACCES`
/// if the process has changed its credentials. Any other error is a bug: the caller destroyed the
/// object before other objects that depend on it.
pub fn log_destroy_error(result: Result<(), OsError>) {
    let Err(error) = result else { return };
    error_elsewhere!(Rdma, "cannot destroy an RDMA object, which leaks: {error}");
    debug_assert!(
        matches!(error.errno, libc::EIO | libc::ENODEV | libc::EACCES) || std::thread::panicking(),
        "{error}: objects that depend on this object must be destroyed first"
    );
}

/// Returns the `errno` of the C function `call`, which has just failed.
///
/// If the function has not set `errno`, the error becomes `EIO`, because the number 0 would mean
/// success.
fn last_error(call: &'static str) -> OsError {
    failed(call)(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_nix_and_std_keep_their_number() {
        let expected = OsError::new("open", libc::ENOENT);
        assert_eq!(failed("open")(Errno::ENOENT), expected);
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(failed("open")(error), expected);
        let without = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(failed("open")(without), OsError::new("open", libc::EIO));
        let without = io::Error::from(io::ErrorKind::NotFound);
        let expected = OsError::new("open", libc::EAGAIN);
        assert_eq!(failed_or("open", libc::EAGAIN)(without), expected);
    }

    #[test]
    fn wait_is_rounded_up_to_milliseconds() {
        for (nanos, expected) in [
            (0, 0),
            (1, 1),
            (999_999, 1),
            (1_000_000, 1),
            (1_000_001, 2),
            (999_000_001, 1000),
            (9_999_999_999, 10_000),
            (10_000_000_000, 10_000),
        ] {
            assert_eq!(millis(Duration::from_nanos(nanos)), expected, "{nanos} ns");
        }
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
