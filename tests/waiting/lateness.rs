//! A measure for how late this machine wakes threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The length of the short waits, which see a stall of the machine near the end of the long ones.
const SHORT: Duration = Duration::from_millis(10);

/// The time before that end from which the short waits count.
const BEFORE: Duration = Duration::from_millis(500);

/// Threads that do nothing but wait, and measure the time by which they wake up late.
pub(crate) struct Lateness {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Duration>>,
}

impl Lateness {
    /// Begins to measure. Some of the threads wait once, for this long.
    pub(crate) fn of(length: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let long = (0..4).map(|_| thread::spawn(move || late_by(length)));
        let short = (0..2).map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut worst = Duration::ZERO;
                late_by(length.saturating_sub(BEFORE));
                while !stop.load(Ordering::Relaxed) {
                    worst = worst.max(late_by(SHORT));
                }
                worst
            })
        });
        Self {
            threads: long.chain(short).collect(),
            stop,
        }
    }

    /// Returns the longest delay.
    pub(crate) fn worst(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let late = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap());
        late.max().unwrap_or_default()
    }
}

/// Waits, and returns the delay of the wake-up.
fn late_by(length: Duration) -> Duration {
    let started = Instant::now();
    loop {
        // A thread may be woken early.
        let elapsed = started.elapsed();
        match length.checked_sub(elapsed) {
            Some(left) if !left.is_zero() => thread::park_timeout(left),
            _ => return elapsed.saturating_sub(length),
        }
    }
}
