use std::{fmt, io};

/// `ENOTSUPP` of the kernel's `linux/errno.h`.
///
/// It is not part of the kernel's interface, and the C library has no name for it, but the RDMA
/// stack returns it.
const ENOTSUPP: i32 = 524;

/// The error of a call to the operating system, librdmacm or libibverbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OsError {
    /// The name of the C function, as in its man page, or of the library that cannot be opened.
    pub call: &'static str,
    /// The error number, positive, as in `errno.h`.
    pub errno: i32,
}

impl OsError {
    /// Creates the error of the C function `call` with a positive error number.
    #[must_use]
    pub const fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }

    /// Returns whether this process or its host lacks descriptors or memory.
    pub(crate) const fn is_shortage(&self) -> bool {
        matches!(
            self.errno,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS
        )
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
        write!(
            f,
            "{}: {}",
            self.call,
            io::Error::from_raw_os_error(self.errno)
        )
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
    fn the_kernels_own_number_has_words() {
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
