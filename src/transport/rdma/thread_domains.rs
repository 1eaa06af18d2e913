//! A thread domain for the queue pair of each connection, on devices that support thread domains.
//!
//! With a thread domain, the driver does not lock the queue pair, and posts its sends through a
//! separate doorbell register. The driver's lock is not needed, because the connection's own lock
//! already serialises these calls: each call that posts borrows the
//! [`WorkQueues`](crate::transport::queues::WorkQueues) mutably.
//!
//! A completion queue or a shared receive queue is in no thread domain. One thread can poll while
//! another posts, and both change the number of free entries in the queues. The driver protects
//! this number with the lock of the completion queue. The destruction of a queue pair takes the
//! same lock.
//!
//! A device has a limited number of doorbell registers. If none is left, a connection shares a
//! register, and the driver locks it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    status::OsError,
    verbs::{Context, ProtectionDomain, ThreadDomain},
};

/// The thread domains of a device, and the knowledge whether its driver supports them.
#[derive(Debug, Default)]
pub(super) struct ThreadDomains {
    /// Whether the driver has reported that it does not support thread domains.
    are_unsupported: AtomicBool,
    has_logged: AtomicBool,
}

impl ThreadDomains {
    /// Returns the domain for a queue pair whose memory is in `pd`: `pd` with a new thread domain,
    /// or `pd` itself if the device has no thread domain left.
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

    /// Calls `make`, unless the driver has reported before that it does not support thread domains.
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
                        "device {name}: cannot allocate a thread domain: {error}; the driver locks \
                         the queue pair"
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

    /// Returns the number of calls of `make` and of log lines for four connections, and which calls
    /// succeeded.
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
