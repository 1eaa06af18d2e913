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

    /// Returns whether the error means that the process or its host has run out of descriptors or
    /// memory.
    pub const fn is_shortage(&self) -> bool {
        matches!(
            self.errno,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS
        )
    }

    /// Returns a text that names the exhausted resource and the limit to raise. Returns `None` if
    /// the error is not caused by a shortage, or if the wrapping error names the limit.
    fn shortage(&self) -> Option<&'static str> {
        let is_of_rdma = self.call.starts_with("ibv_") || self.call.starts_with("rdma_");
        Some(match (self.errno, self.call) {
            (libc::EMFILE, _) => {
                "this process has reached its limit on open files (`ulimit -n`): raise nofile in \
                 /etc/security/limits.conf or with LimitNOFILE= in the service's unit, or close \
                 connections"
            }
            (libc::ENFILE, _) => {
                "this host has reached its limit on open files: raise fs.file-max with `sysctl`"
            }
            (libc::EAGAIN, "pthread_create") => {
                "the kernel refused to start a thread: raise TasksMax= in the service's unit, \
                 pids.max of the control group or container, nproc (`ulimit -u`) or the limit on \
                 the address space (`ulimit -v`)"
            }
            // The callers of `ibv_reg_mr` wrap this error in another error, whose text names the
            // limit on locked memory. Therefore this text contains no advice.
            (libc::ENOMEM, "ibv_reg_mr") => return None,
            (libc::ENOMEM, "mmap" | "malloc") => {
                "the kernel refused to map memory: raise the limit on the address space \
                 (`ulimit -v`), vm.max_map_count with `sysctl` or memory.max of the control \
                 group, or see vm.overcommit_memory"
            }
            (libc::ENOMEM, _) if is_of_rdma => {
                "the RDMA device or its driver cannot create another object of this kind, or this \
                 process has reached its limit on locked memory (`ulimit -l`): close connections \
                 (`rdma resource` counts the objects), or lower receive_window and send_depth in \
                 the Config"
            }
            (libc::ENOMEM | libc::ENOBUFS, _) => {
                "the kernel has no memory left: see `free`, and memory.max of the control group"
            }
            (libc::ENOSPC, "epoll_ctl") => {
                "this user has reached the limit on epoll watches: raise \
                 fs.epoll.max_user_watches with `sysctl`"
            }
            _ => return None,
        })
    }
}

impl OsError {
    /// Returns true if the process has probably changed its credentials after it opened an RDMA
    /// descriptor. The kernel then rejects all calls on that descriptor with `EACCES`. The function
    /// returns false for calls that open a device or bind to a port, because these calls can fail
    /// with `EACCES` for another reason.
    pub fn is_of_credentials(&self) -> bool {
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
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, "{}: {error}", self.call)?;
        let advice = if self.is_of_credentials() {
            Some(
                "the process probably changed its user or group after its first use of RDMA: \
                 change them before that",
            )
        } else {
            self.shortage()
        };
        advice.map_or(Ok(()), |advice| write!(f, "; {advice}"))
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

    #[test]
    fn refused_descriptor_names_the_remedy() {
        let text = |call| OsError::new(call, libc::EACCES).to_string();
        for call in ["rdma_get_cm_event", "rdma_create_id", "ibv_post_send"] {
            assert!(
                text(call).ends_with(": change them before that"),
                "{}",
                text(call)
            );
        }
        for call in ["rdma_bind_addr", "rdma_create_event_channel", "bind"] {
            assert!(text(call).ends_with("(os error 13)"), "{}", text(call));
        }
    }

    #[test]
    fn shortage_says_how_to_get_more() {
        for (call, errno, advice) in [
            ("socket", libc::EMFILE, "LimitNOFILE="),
            ("accept4", libc::ENFILE, "fs.file-max"),
            ("pthread_create", libc::EAGAIN, "TasksMax="),
            ("mmap", libc::ENOMEM, "vm.max_map_count"),
            ("malloc", libc::ENOMEM, "ulimit -v"),
            ("rdma_create_qp", libc::ENOMEM, "rdma resource"),
            ("ibv_create_cq", libc::ENOMEM, "ulimit -l"),
            ("ibv_alloc_pd", libc::ENOMEM, "close connections"),
            ("socket", libc::ENOBUFS, "memory.max"),
            ("epoll_create1", libc::ENOMEM, "memory.max"),
            ("epoll_ctl", libc::ENOSPC, "fs.epoll.max_user_watches"),
        ] {
            let text = OsError::new(call, errno).to_string();
            assert!(text.contains(advice), "{text}");
        }
        let others = [("send", libc::EAGAIN), ("ibv_reg_mr", libc::ENOMEM)];
        for (call, errno) in others {
            let text = OsError::new(call, errno).to_string();
            assert!(text.ends_with(&format!("(os error {errno})")), "{text}");
        }
    }
}
