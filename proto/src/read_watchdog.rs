use std::time::{Duration, Instant};

use rdma_status::OsError;

/// The wait before the first retry of a failed allocation. It doubles after each retry.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
/// The longest wait between two tries to find memory.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// Limits the time for which large messages make no progress, because other connections wait for
/// the memory of these messages.
///
/// While other connections wait, a message must arrive at a rate that grows with its memory: within
/// each timeout, an eighth of its bytes that have arrived so far.
///
/// The watchdog checks reads periodically, so that an arriving chunk sets no timer. It detects
/// stalled reads after 1 to 1.5 times the timeout.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct ReadWatchdog {
    timeout: Duration,
    watch: Watch,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Watch {
    /// No large message was being read at the last check.
    Off,
    /// Reads are in progress.
    Reading {
        /// The time of the next check.
        check: Instant,
        /// The progress at the last check.
        seen: Progress,
        /// Whether the progress between the last two checks was too small.
        still: bool,
    },
    /// The system has no memory for the next chunk, or for the next message.
    OutOfMemory {
        error: OsError,
        /// The deadline for finding memory.
        until: Instant,
        /// The time of the next retry.
        retry: Instant,
        backoff: Duration,
    },
    /// The driver was asked to try again, and has not answered.
    Retrying { until: Instant, backoff: Duration },
}

/// The progress of large messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Progress {
    /// The number of chunks that arrived on all connections with the peer's engine.
    pub(super) chunks: u64,
    /// The number of bytes that arrived on this connection.
    pub(super) bytes: u64,
    /// The number of bytes that have arrived of incomplete messages, if other connections wait for
    /// the memory.
    pub(super) wanted: u64,
}

impl Progress {
    /// Whether the progress since `seen`, which is half a timeout old, is sufficient.
    fn is_enough_since(&self, seen: Self) -> bool {
        self.chunks > seen.chunks && self.bytes - seen.bytes >= self.wanted / 16
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Retry the allocation.
    Retry,
    /// Too few bytes have arrived for longer than the timeout.
    Stalled,
    /// There has been no memory for longer than the timeout.
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

    /// Whether no reads are watched and no memory is missing.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.watch, Watch::Off)
    }

    /// Whether reads are being watched, so that [`read_posted`](Self::read_posted) need not be
    /// called for the next read.
    pub(super) fn is_watching(&self) -> bool {
        matches!(self.watch, Watch::Reading { .. })
    }

    /// Records that a read is posted. `seen` is the progress before this read.
    pub(super) fn read_posted(&mut self, seen: Progress, now: Instant) {
        match self.watch {
            Watch::Off | Watch::OutOfMemory { .. } | Watch::Retrying { .. } => {
                self.watch = Watch::Reading {
                    check: now + self.timeout / 2,
                    seen,
                    still: false,
                }
            }
            Watch::Reading { .. } => {}
        }
    }

    /// Records that the system has no memory now. Returns [`Verdict::OutOfMemory`] if the system
    /// has had none for longer than the timeout.
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

    /// Records that an allocation succeeded.
    pub(super) fn memory_found(&mut self) {
        match self.watch {
            Watch::OutOfMemory { .. } | Watch::Retrying { .. } => self.watch = Watch::Off,
            Watch::Off | Watch::Reading { .. } => {}
        }
    }

    /// Records that the driver was asked to try again.
    pub(super) fn retrying(&mut self) {
        if let Watch::OutOfMemory { until, backoff, .. } = self.watch {
            self.watch = Watch::Retrying { until, backoff };
        }
    }

    /// Checks whether a deadline has passed. `progress` is the progress until `now`. `reading` is
    /// set if reads are in progress.
    pub(super) fn check(&mut self, progress: Progress, reading: bool, now: Instant) -> Verdict {
        match self.watch {
            Watch::Reading { check, seen, still } if check <= now => {
                self.watch = Watch::Off;
                let too_little = !progress.is_enough_since(seen);
                if reading && too_little && still {
                    return Verdict::Stalled;
                }
                if reading {
                    self.watch = Watch::Reading {
                        check: now + self.timeout / 2,
                        seen: progress,
                        still: too_little,
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
            wanted: 0,
        }
    }

    /// Calls `check` at each deadline, until the verdict is not `Fine`. `came` returns the number
    /// of chunks that have arrived by a check. Returns the number of checks, the last verdict and
    /// its time.
    fn checks(
        read_watchdog: &mut ReadWatchdog,
        came: impl Fn(u32) -> u64,
        reading: bool,
    ) -> (u32, Verdict, Instant) {
        let mut last = Instant::now();
        for count in 0..20 {
            let Some(now) = read_watchdog.deadline() else {
                return (count, Verdict::Fine, last);
            };
            last = now;
            let verdict = read_watchdog.check(chunks(came(count)), reading, now);
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
        let came = |check: u32| u64::from(check.div_ceil(2));
        assert_eq!(checks(&mut read_watchdog, came, true).1, Verdict::Fine);
        assert_eq!(checks(&mut read_watchdog, came, false).1, Verdict::Fine);
        assert_eq!(read_watchdog.deadline(), None, "until the next one");
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
                    wanted: bytes,
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
            let now = read_watchdog.deadline().expect("it is tried again");
            match read_watchdog.check(chunks(0), false, now) {
                Verdict::Retry => tries.push(now - start),
                Verdict::OutOfMemory(why) => break (now - start, why),
                other => panic!("{other:?}"),
            }
            assert_eq!(read_watchdog.deadline(), None, "an answer comes first");
            assert_eq!(read_watchdog.out_of_memory(error, now), Verdict::Fine);
        };
        assert_eq!(end, (TIMEOUT, error));
        assert_eq!(tries[..3], [10, 30, 70].map(Duration::from_millis));
        assert!(tries.len() < 20, "ever more seldom");

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
