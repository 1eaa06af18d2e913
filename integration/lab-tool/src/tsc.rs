//! The frequency of this machine's time stamp counter, which is the one that an emulated guest
//! reads.

/// Returns it in kHz, measured by the system's clock. Other load does not change it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn khz() -> Option<u32> {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    /// How far apart the two readings are.
    const SPAN: Duration = Duration::from_millis(50);
    /// The number of tries of a reading. The quickest one counts, because an interrupt makes a
    /// reading slower and less exact.
    const TRIES: u32 = 1000;

    #[allow(unsafe_code)]
    fn read() -> (Instant, u64) {
        let once = |_| {
            let clock = Instant::now();
            // SAFETY: the instruction reads a counter, and every x86-64 processor has it.
            let counter = unsafe { std::arch::x86_64::_rdtsc() };
            (clock.elapsed(), clock, counter)
        };
        let first = once(0);
        let tries = (1..TRIES).map(once);
        let (_, clock, counter) = tries.fold(
            first,
            |best, next| if next.0 < best.0 { next } else { best },
        );
        (clock, counter)
    }

    let first = read();
    thread::sleep(SPAN);
    let last = read();
    let ticks = u128::from(last.1.checked_sub(first.1)?);
    u32::try_from(ticks * 1_000_000 / (last.0 - first.0).as_nanos()).ok()
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
    fn frequency_is_the_same_each_time() {
        let [first, second] = [khz(), khz()].map(|khz| f64::from(khz.unwrap()));
        assert!((first / second - 1.0).abs() < 0.002, "{first} {second}");
    }
}
