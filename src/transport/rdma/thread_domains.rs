//! A thread domain for the queue pair of each connection, on devices that have them.
//!
//! The driver of such a device does not lock the queue pair, and posts its sends through a doorbell
//! register of its own. Its lock would repeat the lock of the connection: each call that posts
//! takes the [`WorkQueues`](crate::transport::queues::WorkQueues) mutably, and these are under that
//! lock.
//!
//! A completion queue and a shared receive queue belong to no thread domain. A thread polls while
//! another one posts, and both change state that the lock of the completion queue guards: the
//! number of free places in the queues. The destruction of a queue pair takes the same lock.
//!
//! A device has a limited number of doorbell registers. A connection for which there is none left
//! shares one, under the locks of the driver.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    status::OsError,
    verbs::{Context, ProtectionDomain, ThreadDomain},
};

/// The knowledge about the thread domains of one device.
#[derive(Debug, Default)]
pub(super) struct ThreadDomains {
    /// Whether the driver has no thread domains.
    are_unsupported: AtomicBool,
    has_logged: AtomicBool,
}

impl ThreadDomains {
    /// Returns the domain in which to create a queue pair whose memory is in `pd`: a domain with a
    /// new thread domain, or `pd` if the device has none for it.
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

    /// Calls `make`, unless the driver has refused it as not supported. Logs the first refusal.
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
                        "device {name}: cannot allocate a thread domain, so the driver locks the \
                         queue pair: {error}"
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

    /// Returns the number of calls of `make`, and of lines in the log, for four connections.
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
