use std::{fmt, io};

/// `ENOTSUPP` from the kernel header `linux/errno.h`.
///
/// The kernel does not export this number to user space, and the C library has no text for it.
/// Nevertheless, RDMA drivers return this number.
const ENOTSUPP: i32 = 524;

/// An error that the operating system, librdmacm or libibverbs has reported.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OsError {
    /// The name of the C function, as in its man page, or the name of the library that could not be
    /// loaded.
    pub call: &'static str,
    /// The positive error number, as in `errno.h`.
    pub errno: i32,
}

impl OsError {
    /// Creates the error that the C function `call` has reported with the positive number `errno`.
    #[must_use]
    pub const fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == ENOTSUPP {
            return write!(
                f,
                "{}: not supported by the kernel or its driver (os error {ENOTSUPP})",
                self.call
            );
        }
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, "{}: {error}", self.call)?;
        self.remedy()
            .map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl fmt::Debug for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OsError({self})")
    }
}

impl std::error::Error for OsError {}

impl From<OsError> for io::Error {
    fn from(error: OsError) -> Self {
        Self::new(Self::from_raw_os_error(error.errno).kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_internal_error_number_has_text() {
        let error = |errno| OsError::new("rdma_join_multicast", errno).to_string();
        assert_eq!(
            error(ENOTSUPP),
            "rdma_join_multicast: not supported by the kernel or its driver (os error 524)"
        );
        assert_eq!(
            error(libc::EINVAL),
            "rdma_join_multicast: Invalid argument (os error 22)"
        );
    }
}
