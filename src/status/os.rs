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

impl OsError {
    /// Whether the kernel refuses a descriptor of RDMA that a process opened with other
    /// credentials, for all further calls. Other causes have other numbers, but for the calls that
    /// open a device or take a privileged port.
    pub(crate) fn is_of_credentials(&self) -> bool {
        let opens = matches!(
            self.call,
            "rdma_create_event_channel" | "rdma_bind_addr" | "ibv_open_device"
        );
        let is_rdma = self.call.starts_with("rdma_") || self.call.starts_with("ibv_");
        self.errno == libc::EACCES && is_rdma && !opens
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
        )?;
        if self.is_of_credentials() {
            f.write_str(
                "; most often the process changed its user or group after it first used RDMA: \
                 change them before",
            )?;
        }
        Ok(())
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

    #[test]
    fn refused_descriptor_names_the_remedy() {
        let text = |call| OsError::new(call, libc::EACCES).to_string();
        for call in ["rdma_get_cm_event", "rdma_create_id", "ibv_post_send"] {
            assert!(
                text(call).ends_with(": change them before"),
                "{}",
                text(call)
            );
        }
        for call in ["rdma_bind_addr", "rdma_create_event_channel", "bind"] {
            assert!(text(call).ends_with("(os error 13)"), "{}", text(call));
        }
    }
}
