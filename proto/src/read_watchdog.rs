use std::time::{Duration, Instant};

use rdma_status::OsError;

/// The time between a failed memory allocation and the first retry. The time doubles with each
/// further retry.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
/// The maximum time between two retries of a memory allocation.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// Limits the time for which large messages may make no progress. The limit is necessary because
/// other connections may be waiting for the memory of these messages.
///
/// While other connections wait for memory, the messages must also arrive at a minimum rate. The
/// number of bytes that arrive within the duration of a timeout must be at least an eighth of the
/// number of bytes that have already arrived for incomplete messages.
///
/// The watchdog checks the progress of reads periodically, so no timer needs to be set when a chunk
/// arrives. A stalled read is detected after 1 to 1.5 times the timeout.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct ReadWatchdog {
    timeout: Duration,
    watch: Watch,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Watch {
    /// No reads are watched, and no allocation waits for a retry.
    Off,
    /// Reads are in progress, or fragments of a message are missing.
    Reading {
        /// The time of the next check.
        check: Instant,
        /// The progress at the last check.
        seen: Progress,
        /// Whether the progress between the last two checks was too small.
        was_too_slow: bool,
    },
    /// The system has no memory for the next chunk or the next message.
    OutOfMemory {
        error: OsError,
        /// The time at which the connection ends if there is still no memory.
        until: Instant,
        /// The time of the next retry.
        retry: Instant,
        backoff: Duration,
    },
    /// The driver was asked to retry the allocation, and has not reported a result.
    Retrying { until: Instant, backoff: Duration },
}

/// Counters that show the progress of large messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Progress {
    /// The number of chunks and fragments that have arrived on all connections to the peer's
    /// engine. On a transport that counts bytes, the number of bytes read is added to this number,
    /// because only an increase of the sum matters.
    pub(super) chunks: u64,
    /// The number of bytes that have arrived on this connection.
    pub(super) bytes: u64,
    /// The number of bytes that have arrived for messages that are still incomplete. 0 if no other
    /// connection waits for memory.
    pub(super) contended_bytes: u64,
}

impl Progress {
    /// Returns true if the progress since `seen` is sufficient. At least one chunk must have
    /// arrived. The minimum rate is an eighth of `contended_bytes` per timeout, and `seen` was
    /// recorded half a timeout earlier, so a sixteenth of `contended_bytes` suffices.
    fn is_enough_since(&self, seen: Self) -> bool {
        self.chunks > seen.chunks && self.bytes - seen.bytes >= self.contended_bytes / 16
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Retry the allocation.
    Retry,
    /// For longer than the timeout, too few bytes have arrived.
    Stalled,
    /// For longer than the timeout, no memory has been available.
    OutOfMemory(OsError),
}

impl ReadWatchdog {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            watch: Watch::Off,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.watch {
            Watch::Reading { check: at, .. } | Watch::OutOfMemory { retry: at, .. } => Some(at),
            Watch::Off | Watch::Retrying { .. } => None,
        }
    }

    /// Returns whether the watchdog is idle: it watches no reads, and no allocation waits for a
    /// retry.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.watch, Watch::Off)
    }

    /// Returns whether reads are being watched. If so, [`read_posted`](Self::read_posted) has no
    /// effect, and the caller can skip the call.
    pub(super) fn is_watching(&self) -> bool {
        matches!(self.watch, Watch::Reading { .. })
    }

    /// Records that a read is posted, or that fragments of a message are missing. `seen` is the
    /// progress so far.
    pub(super) fn read_posted(&mut self, seen: Progress, now: Instant) {
        match self.watch {
            Watch::Off | Watch::OutOfMemory { .. } | Watch::Retrying { .. } => {
                self.watch = Watch::Reading {
                    check: now + self.timeout / 2,
                    seen,
                    was_too_slow: false,
                }
            }
            Watch::Reading { .. } => {}
        }
    }

    /// Records that a memory allocation failed. Returns [`Verdict::OutOfMemory`] if allocations
    /// have failed for longer than the timeout.
    pub(super) fn out_of_memory(&mut self, error: OsError, now: Instant) -> Verdict {
        let (until, backoff) = match self.watch {
            Watch::Off | Watch::Reading { .. } => (now + self.timeout, FIRST_BACKOFF),
            Watch::OutOfMemory { until, backoff, .. } | Watch::Retrying { until, backoff } => {
                (until, (2 * backoff).min(LONGEST_BACKOFF))
            }
        };
        if now >= until {
            self.watch = Watch::Off;
            return Verdict::OutOfMemory(error);
        }
        self.watch = Watch::OutOfMemory {
            error,
            until,
            retry: (now + backoff).min(until),
            backoff,
        };
        Verdict::Fine
    }

    /// Records that a memory allocation succeeded.
    pub(super) fn memory_found(&mut self) {
        match self.watch {
            Watch::OutOfMemory { .. } | Watch::Retrying { .. } => self.watch = Watch::Off,
            Watch::Off | Watch::Reading { .. } => {}
        }
    }

    /// Records that the driver was asked to retry the allocation.
    pub(super) fn retrying(&mut self) {
        if let Watch::OutOfMemory { until, backoff, .. } = self.watch {
            self.watch = Watch::Retrying { until, backoff };
        }
    }

    /// If a deadline has passed, returns the verdict on the reads, or on the wait for memory. If no
    /// deadline has passed, returns [`Verdict::Fine`]. `progress` is the progress up to `now`.
    /// `reading` is true if bytes of a large message are expected.
    pub(super) fn check(&mut self, progress: Progress, reading: bool, now: Instant) -> Verdict {
        match self.watch {
            Watch::Reading {
                check,
                seen,
                was_too_slow,
            } if check <= now => {
                self.watch = Watch::Off;
                let too_little = !progress.is_enough_since(seen);
                if reading && too_little && was_too_slow {
                    return Verdict::Stalled;
                }
                if reading {
                    self.watch = Watch::Reading {
                        check: now + self.timeout / 2,
                        seen: progress,
                        was_too_slow: too_little,
                    };
                }
                Verdict::Fine
            }
            Watch::OutOfMemory { error, until, .. } if until <= now => {
                self.watch = Watch::Off;
                Verdict::OutOfMemory(error)
            }
            Watch::OutOfMemory { retry, .. } if retry <= now => {
                self.retrying();
                Verdict::Retry
            }
            Watch::Reading { .. }
            | Watch::OutOfMemory { .. }
            | Watch::Off
            | Watch::Retrying { .. } => Verdict::Fine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn chunks(chunks: u64) -> Progress {
        Progress {
            chunks,
            bytes: chunks << 16,
            contended_bytes: 0,
        }
    }

    /// Calls `check` at each deadline, until the verdict is not `Fine`. `arrived(n)` is the number
    /// of chunks that have arrived by check `n`. Returns the number of checks, the last verdict,
    /// and the time of that verdict.
    fn checks(
        read_watchdog: &mut ReadWatchdog,
        arrived: impl Fn(u32) -> u64,
        reading: bool,
    ) -> (u32, Verdict, Instant) {
        let mut last = Instant::now();
        for count in 0..20 {
            let Some(now) = read_watchdog.deadline() else {
                return (count, Verdict::Fine, last);
            };
            last = now;
            let verdict = read_watchdog.check(chunks(arrived(count)), reading, now);
            if verdict != Verdict::Fine {
                return (count + 1, verdict, last);
            }
        }
        (20, Verdict::Fine, last)
    }

    #[test]
    fn stalled_reads_are_detected_in_time() {
        let start = Instant::now();
        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        read_watchdog.read_posted(chunks(0), start);
        assert_eq!(
            checks(&mut read_watchdog, |_| 0, true),
            (2, Verdict::Stalled, start + TIMEOUT)
        );

        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        read_watchdog.read_posted(chunks(0), start);
        let late = start + 3 * TIMEOUT / 2;
        assert_eq!(
            checks(&mut read_watchdog, |_| 1, true),
            (3, Verdict::Stalled, late)
        );
    }

    #[test]
    fn slow_reads_with_progress_do_not_time_out() {
        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        read_watchdog.read_posted(chunks(0), Instant::now());
        let arrived = |check: u32| u64::from(check.div_ceil(2));
        assert_eq!(checks(&mut read_watchdog, arrived, true).1, Verdict::Fine);
        assert_eq!(checks(&mut read_watchdog, arrived, false).1, Verdict::Fine);
        assert_eq!(
            read_watchdog.deadline(),
            None,
            "a watchdog without reads must have no deadline"
        );
    }

    #[test]
    fn required_read_pace_grows_with_contended_memory() {
        for (bytes, slow) in [(1 << 20, false), (2 << 20, true)] {
            let mut now = Instant::now();
            let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
            read_watchdog.read_posted(chunks(0), now);
            let mut verdict = Verdict::Fine;
            for arrived in 1..=10 {
                now += TIMEOUT / 2;
                let progress = Progress {
                    contended_bytes: bytes,
                    ..chunks(arrived)
                };
                verdict = read_watchdog.check(progress, true, now);
                if verdict != Verdict::Fine {
                    assert_eq!(arrived, 2);
                    break;
                }
            }
            assert_eq!(verdict == Verdict::Stalled, slow, "{bytes}");
        }
    }

    #[test]
    fn missing_memory_is_requested_until_timeout() {
        let start = Instant::now();
        let error = OsError::new("ibv_reg_mr", libc::ENOMEM);
        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        assert_eq!(read_watchdog.out_of_memory(error, start), Verdict::Fine);
        let mut tries = Vec::new();
        let end = loop {
            let now = read_watchdog.deadline().expect("the allocation is retried");
            match read_watchdog.check(chunks(0), false, now) {
                Verdict::Retry => tries.push(now - start),
                Verdict::OutOfMemory(why) => break (now - start, why),
                other => panic!("{other:?}"),
            }
            assert_eq!(
                read_watchdog.deadline(),
                None,
                "the driver must report a result first"
            );
            assert_eq!(read_watchdog.out_of_memory(error, now), Verdict::Fine);
        };
        assert_eq!(end, (TIMEOUT, error));
        assert_eq!(tries[..3], [10, 30, 70].map(Duration::from_millis));
        assert!(tries.len() < 20, "the retries must become less frequent");

        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        assert_eq!(read_watchdog.out_of_memory(error, start), Verdict::Fine);
        read_watchdog.retrying();
        read_watchdog.memory_found();
        assert_eq!(read_watchdog.deadline(), None);
        assert_eq!(
            read_watchdog.out_of_memory(error, start + 2 * TIMEOUT),
            Verdict::Fine
        );
    }
}
