//! Execution of a guest's instructions, and the guest's clock.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Accel {
    /// Emulated in parallel, with this machine's clock.
    Tcg,
    /// Emulated one after the other, with a clock that counts instructions.
    Counted,
}

impl Accel {
    /// Returns QEMU's options. A counted guest has one processor, because two would take turns
    /// differently in each run. While it idles, its clock follows this machine's. With `sleep=off`
    /// the clock would jump to the next timer even while the guest waits for a file on this
    /// machine, and a limit of a minute could pass before a program has started.
    pub(crate) fn options(self, cpus: usize) -> String {
        match self {
            Self::Tcg => format!("-accel tcg,thread=multi -cpu qemu64 -smp {cpus}"),
            Self::Counted => {
                "-accel tcg,thread=single -cpu qemu64 -icount shift=0,sleep=on -smp 1".into()
            }
        }
    }

    /// Returns the frequency of the guest's time stamp counter in kHz, which the guest cannot
    /// query. A guest on a busy machine may measure it wrong by any factor, because it compares
    /// emulated clocks.
    pub(crate) fn tsc_khz(self) -> Option<u32> {
        match self {
            Self::Tcg => khz(),
            // A tick is a nanosecond.
            Self::Counted => Some(1_000_000),
        }
    }

    /// Returns the limit for a boot, which is longer than any successful boot takes.
    pub(crate) fn boot_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Tcg => 120,
            Self::Counted => 600,
        })
    }
}

/// Returns the frequency in kHz of this machine's time stamp counter, which an emulated guest
/// reads. It compares the counter with the system's clock, independently of other load.
#[cfg(target_arch = "x86_64")]
fn khz() -> Option<u32> {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    /// Time between two readings, each of which is exact to about 100 ns.
    const SPAN: Duration = Duration::from_millis(50);

    /// Returns the fastest of many readings, because interrupts make a reading less exact.
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

/// On other architectures the guest reads a counter that QEMU derives from the system's clock, and
/// measures its frequency itself.
#[cfg(not(target_arch = "x86_64"))]
fn khz() -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_guest_has_one_processor_and_counting_clock() {
        assert_eq!(
            Accel::Counted.options(2),
            "-accel tcg,thread=single -cpu qemu64 -icount shift=0,sleep=on -smp 1"
        );
        assert_eq!(Accel::Counted.tsc_khz(), Some(1_000_000));
        assert_eq!(
            Accel::Tcg.options(2),
            "-accel tcg,thread=multi -cpu qemu64 -smp 2"
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn frequency_is_the_same_each_time() {
        let [first, second] = [khz(), khz()].map(|khz| f64::from(khz.unwrap()));
        assert!((first / second - 1.0).abs() < 0.002, "{first} {second}");
    }
}
