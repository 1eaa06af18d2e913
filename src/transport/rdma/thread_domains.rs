//! A thread domain for the queue pair of each connection, on devices that support thread domains.
//!
//! With a thread domain, the driver does not lock the queue pair, and posts its sends through a
//! separate doorbell register. The driver's lock is not needed, because the connection's own lock
//! already serialises these calls: each call that posts borrows the
//! [`WorkQueues`](crate::transport::queues::WorkQueues) mutably.
//!
//! Completion queues and shared receive queues are in no thread domain, so the driver still locks
//! them. The driver needs the lock of the completion queue: while one thread polls, another thread
//! may post, and both change the number of free entries in the work queues. The destruction of a
//! queue pair also locks the completion queue.
//!
//! A device has a limited number of doorbell registers. If none is free, a connection uses a shared
//! register, which the driver locks.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    status::OsError,
    verbs::{Context, ProtectionDomain, ThreadDomain},
};

/// Creates thread domains on a device, until the driver reports that it does not support them.
#[derive(Debug, Default)]
pub(super) struct ThreadDomains {
    /// Whether the driver has reported that it does not support thread domains.
    are_unsupported: AtomicBool,
    has_logged: AtomicBool,
}

impl ThreadDomains {
    /// Returns the domain for a queue pair whose memory is in `pd`. This is `pd` with a new thread
    /// domain, or `pd` alone if the device cannot provide a thread domain.
    pub(super) fn of_queue_pair(
        &self,
        context: &Context,
        pd: &ProtectionDomain,
    ) -> ProtectionDomain {
        let own = self.ask(
            || pd.with_thread_domain(&ThreadDomain::new(context)?),
            || context.device_name(),
        );
        own.unwrap_or_else(|| pd.clone())
    }

    /// Calls `make`, unless an earlier call showed that the driver does not support thread domains.
    /// Logs the first failure.
    fn ask<T>(
        &self,
        make: impl FnOnce() -> Result<T, OsError>,
        name: impl FnOnce() -> String,
    ) -> Option<T> {
        if self.are_unsupported.load(Ordering::Relaxed) {
            return None;
        }
        match make() {
            Ok(made) => Some(made),
            Err(error) => {
                if matches!(error.errno, libc::EOPNOTSUPP | libc::ENOSYS) {
                    self.are_unsupported.store(true, Ordering::Relaxed);
                }
                if !self.has_logged.swap(true, Ordering::Relaxed) {
                    let name = name();
                    debug!(
                        Rdma,
                        "device {name}: cannot allocate a thread domain: {error}; so the driver \
                         takes a lock for each operation of a queue pair"
                    );
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests a thread domain for each of four connections. Returns the number of calls of
    /// `make`, the number of log lines, and whether each connection's request succeeded.
    fn asked(domains: &ThreadDomains, answers: [Result<(), i32>; 4]) -> (u32, u32, Vec<bool>) {
        let (mut calls, mut lines) = (0, 0);
        let made = answers.map(|answer| {
            let make = || {
                calls += 1;
                answer.map_err(|errno| OsError::new("ibv_alloc_td", errno))
            };
            let name = || {
                lines += 1;
                String::from("mlx5_0")
            };
            domains.ask(make, name).is_some()
        });
        (calls, lines, made.to_vec())
    }

    #[test]
    fn driver_without_thread_domains_is_asked_once() {
        for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
            let domains = ThreadDomains::default();
            assert_eq!(asked(&domains, [Err(errno); 4]), (1, 1, vec![false; 4]));
        }
    }

    #[test]
    fn lack_of_registers_concerns_one_connection() {
        let domains = ThreadDomains::default();
        let full = Err(libc::ENOMEM);
        let expected = (4, 1, vec![true, false, true, false]);
        assert_eq!(asked(&domains, [Ok(()), full, Ok(()), full]), expected);
    }
}
