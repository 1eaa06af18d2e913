//! Measures how late this machine wakes threads, to derive the delay that a test permits.

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

/// The duration of each short wait. Short waits detect stalls of the machine around the end of the
/// long waits.
const SHORT: Duration = Duration::from_millis(10);

/// The short waits begin this long before the end of the long waits.
const BEFORE: Duration = Duration::from_millis(500);

/// The processor time that one thread uses after its long wait. When the long waits end, all
/// connections of the test end too, and the engine's thread needs a similar amount of processor
/// time.
const WORK: Duration = Duration::from_millis(50);

/// The measured wake-up delay, multiplied by this factor, extends the permitted delay. The factor
/// is above 1, because a call needs several wake-ups, one after the other.
const FACTOR: u32 = 4;

/// Threads that measure how late they wake. One of the threads also measures how long it waits for
/// a processor.
pub(crate) struct Lateness {
    /// The processor time that this process had used when the measurement started.
    used_before: Duration,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Duration>>,
}

impl Lateness {
    /// Starts measuring. Some of the threads wait once, for `length`.
    pub(crate) fn of(length: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let long = (0..4).map(|_| thread::spawn(move || wake_delay(length)));
        let short = (0..2).map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut worst = Duration::ZERO;
                wake_delay(length.saturating_sub(BEFORE));
                while !stop.load(Ordering::Relaxed) {
                    worst = worst.max(wake_delay(SHORT));
                }
                worst
            })
        });
        let busy = thread::spawn(move || wake_delay(length) + scheduling_delay(WORK));
        Self {
            used_before: processor_time(ClockId::CLOCK_PROCESS_CPUTIME_ID),
            threads: long.chain(short).chain([busy]).collect(),
            stop,
        }
    }

    /// Stops the threads. Returns the delay that a test permits, if it permits `on_idle` on an idle
    /// machine.
    ///
    /// All waits of the test end at about the same time. The last one may therefore be delayed by
    /// the processor time that this process has used since the measurement started.
    pub(crate) fn permitted(self, on_idle: Duration) -> Duration {
        let used = processor_time(ClockId::CLOCK_PROCESS_CPUTIME_ID) - self.used_before;
        self.stop.store(true, Ordering::Relaxed);
        let late = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap());
        on_idle + FACTOR * late.max().unwrap_or_default() + used
    }
}

/// Waits for the time `length`. Returns the delay of the wake-up.
fn wake_delay(length: Duration) -> Duration {
    let started = Instant::now();
    loop {
        // The thread may wake before the time has passed.
        let elapsed = started.elapsed();
        match length.checked_sub(elapsed) {
            Some(left) if !left.is_zero() => thread::park_timeout(left),
            _ => return elapsed.saturating_sub(length),
        }
    }
}

/// Spins until this thread has used `work` of processor time. Returns the time for which the thread
/// waited for a processor.
fn scheduling_delay(work: Duration) -> Duration {
    let processor_time = || processor_time(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let (started, begun) = (Instant::now(), processor_time());
    while processor_time() - begun < work {
        hint::spin_loop();
    }
    started.elapsed().saturating_sub(work)
}

fn processor_time(clock: ClockId) -> Duration {
    clock_gettime(clock).unwrap().into()
}
