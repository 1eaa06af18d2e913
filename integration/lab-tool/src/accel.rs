//! How a guest's instructions are executed, and what its clock is.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Accel {
    /// Emulated, with this machine's clock.
    Tcg,
    /// Emulated one after the other, with a clock that counts them.
    Counted,
}

impl Accel {
    /// QEMU's options for it. Where instructions are counted there is one processor: two would take
    /// turns, and no longer the same ones each time. While it idles its clock follows this
    /// machine's. With `sleep=off` it would jump to the next timer, also while the guest waits for
    /// a file on this machine: then a limit of a minute may be over before a program has started.
    pub(crate) fn options(self, cpus: usize) -> String {
        match self {
            Self::Tcg => format!("-accel tcg,thread=multi -cpu qemu64 -smp {cpus}"),
            Self::Counted => {
                "-accel tcg,thread=single -cpu qemu64 -icount shift=0,sleep=on -smp 1".into()
            }
        }
    }

    /// The frequency of the guest's time stamp counter, where the guest cannot ask for it. What it
    /// measures itself, against other emulated clocks, may be wrong by any factor on a busy
    /// machine.
    pub(crate) fn tsc_khz(self) -> Option<u32> {
        match self {
            Self::Tcg => khz(),
            // A tick is a nanosecond.
            Self::Counted => Some(1_000_000),
        }
    }

    /// Longer than any boot takes that comes to an end.
    pub(crate) fn boot_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Tcg => 120,
            Self::Counted => 600,
        })
    }
}

/// Returns the frequency in kHz of this machine's time stamp counter, which an emulated guest
/// reads, measured by the system's clock. Other load does not change it.
#[cfg(target_arch = "x86_64")]
fn khz() -> Option<u32> {
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

/// On other machines a guest reads a counter that QEMU derives from the system's clock, and
/// measures it itself.
#[cfg(not(target_arch = "x86_64"))]
fn khz() -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_guest_has_one_processor_and_a_clock_of_instructions() {
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
