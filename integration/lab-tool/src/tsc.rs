//! The frequency of this machine's time stamp counter, which is the one that an emulated guest
//! reads.

#[cfg(target_arch = "x86_64")]
use std::{
    arch::x86_64::_rdtsc,
    thread,
    time::{Duration, Instant},
};

/// How far apart the two readings are from which the frequency is made.
#[cfg(target_arch = "x86_64")]
const SPAN: Duration = Duration::from_millis(50);

/// How many times a reading is tried, of which the most exact one counts.
#[cfg(target_arch = "x86_64")]
const TRIES: u32 = 1000;

/// The counter and the clock at the same moment, as far as they can be read at once.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Reading {
    clock: Instant,
    counter: u64,
    /// How long it took.
    gap: Duration,
}

#[cfg(target_arch = "x86_64")]
impl Reading {
    #[allow(unsafe_code)]
    fn take() -> Self {
        let once = || {
            let clock = Instant::now();
            // SAFETY: the instruction reads a counter, and every x86-64 processor has it.
            let counter = unsafe { _rdtsc() };
            let gap = clock.elapsed();
            Self {
                clock,
                counter,
                gap,
            }
        };
        // One that was interrupted takes longer, so a busy machine makes none of them less exact.
        let first = once();
        (1..TRIES).map(|_| once()).fold(
            first,
            |best, next| if next.gap < best.gap { next } else { best },
        )
    }
}

/// In kHz, measured by the system's clock. Other load does not change it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn khz() -> Option<u32> {
    let first = Reading::take();
    thread::sleep(SPAN);
    let last = Reading::take();
    let ticks = u128::from(last.counter.checked_sub(first.counter)?);
    let nanos = (last.clock - first.clock).as_nanos();
    u32::try_from(ticks * 1_000_000 / nanos).ok()
}

/// Elsewhere what a guest reads is made of the system's clock, and it has to find out.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn khz() -> Option<u32> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_is_the_same_each_time() {
        let [first, second] = [khz(), khz()].map(|khz| f64::from(khz.unwrap()));
        assert!((first / second - 1.0).abs() < 0.002, "{first} {second}");
    }
}
