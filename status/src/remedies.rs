//! The causes of errors of the operating system, and the remedies in their texts, for instance the
//! limit to raise.

use crate::OsError;

impl OsError {
    /// Returns whether the error means that the process or its host has run out of descriptors or
    /// memory.
    pub const fn is_shortage(&self) -> bool {
        matches!(
            self.errno,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS
        )
    }

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

    /// Returns the remedy for the error, if one is known.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        if self.is_of_credentials() {
            return Some(
                "the process probably changed its user or group after its first use of RDMA: \
                 change them before that",
            );
        }
        self.shortage()
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
            // limit on locked memory. Therefore this text contains no remedy.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_says_how_to_get_more() {
        for (call, errno, remedy) in [
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
            assert!(text.contains(remedy), "{text}");
        }
        let others = [("send", libc::EAGAIN), ("ibv_reg_mr", libc::ENOMEM)];
        for (call, errno) in others {
            let text = OsError::new(call, errno).to_string();
            assert!(text.ends_with(&format!("(os error {errno})")), "{text}");
        }
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
}
