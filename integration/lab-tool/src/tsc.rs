//! The frequency of this machine's time stamp counter, which is the one that an emulated guest
//! reads.

/// Returns it in kHz, measured by the system's clock. Other load does not change it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn khz() -> Option<u32> {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    /// The time between two readings, of which each is exact to some 100 ns.
    const SPAN: Duration = Duration::from_millis(50);

    /// The quickest of many tries, because an interrupt makes a reading less exact.
    #[allow(unsafe_code)]
    fn read() -> (Duration, Instant, u64) {
        let tries = (0..1000).map(|_| {
            let clock = Instant::now();
            // SAFETY: the instruction reads a counter, and every x86-64 processor has it.
            let counter = unsafe { std::arch::x86_64::_rdtsc() };
            (clock.elapsed(), clock, counter)
        });
        tries.min().expect("there is more than one")
    }

    let (_, start, first) = read();
    thread::sleep(SPAN);
    let (_, end, last) = read();
    let ticks = u128::from(last.checked_sub(first)?);
    u32::try_from(ticks * 1_000_000 / (end - start).as_nanos()).ok()
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
