//! The modes in which QEMU executes a guest's instructions, and the guest's clock in each mode.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Accel {
    /// QEMU emulates the processors in parallel, and the guest uses this machine's clock.
    Tcg,
    /// QEMU emulates one processor, and the guest's clock counts instructions.
    Counted,
}

impl Accel {
    /// Returns QEMU's options. A counted guest has only one processor, because QEMU would switch
    /// between two processors at different instructions in each run. With `sleep=on`, the clock of
    /// an idle guest follows this machine's clock. With `sleep=off`, the clock of an idle guest
    /// would jump to the next timer, even while the guest waits for a file on this machine. A time
    /// limit of one minute could then expire before a program has started.
    ///
    /// A parallel guest always has a socket for a second processor. Without it, QEMU 9.0 and older
    /// emit no memory barriers, so a virtual device can miss a request of its driver. The network
    /// or the file system of the guest would then stall.
    pub(crate) fn options(self, cpus: usize) -> String {
        match self {
            Self::Tcg => {
                let most = cpus.max(2);
                format!("-accel tcg,thread=multi -cpu qemu64 -smp {cpus},maxcpus={most}")
            }
            Self::Counted => {
                "-accel tcg,thread=single -cpu qemu64 -icount shift=0,sleep=on -smp 1".into()
            }
        }
    }

    /// Returns the frequency in kHz of the guest's time stamp counter. The lab passes this value to
    /// the guest's kernel, which cannot query the frequency. Without this value, the kernel would
    /// compare two emulated clocks to measure the frequency, and the result could be completely
    /// wrong on a busy machine.
    pub(crate) fn tsc_khz(self) -> Option<u32> {
        match self {
            Self::Tcg => khz(),
            // One tick is 1 ns.
            Self::Counted => Some(1_000_000),
        }
    }

    /// Returns the time limit for a boot, which is longer than any successful boot takes.
    pub(crate) fn boot_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Tcg => 120,
            Self::Counted => 600,
        })
    }
}

/// Returns the frequency in kHz of this machine's time stamp counter, which an emulated guest
/// reads. Measures the counter against the system's clock, which runs independently of the load on
/// this machine.
#[cfg(target_arch = "x86_64")]
fn khz() -> Option<u32> {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    /// The time between the two readings. Each reading is accurate to about 100 ns.
    const SPAN: Duration = Duration::from_millis(50);

    /// Reads the clock and then the counter, 1000 times. Returns the fastest of these readings,
    /// because an interrupt between the clock and the counter makes a reading inaccurate.
    #[allow(unsafe_code)]
    fn read() -> (Duration, Instant, u64) {
        let tries = (0..1000).map(|_| {
            let clock = Instant::now();
            // SAFETY: `_rdtsc` only reads the time stamp counter, which every x86-64 processor has,
            // and accesses no memory.
            let counter = unsafe { std::arch::x86_64::_rdtsc() };
            (clock.elapsed(), clock, counter)
        });
        tries.min().expect("there must be at least one reading")
    }

    let (_, start, first) = read();
    thread::sleep(SPAN);
    let (_, end, last) = read();
    let ticks = u128::from(last.checked_sub(first)?);
    u32::try_from(ticks * 1_000_000 / (end - start).as_nanos()).ok()
}

/// Returns `None`: on architectures other than x86-64, the guest itself measures the frequency. The
/// guest reads a counter that QEMU derives from the clock of this machine.
#[cfg(not(target_arch = "x86_64"))]
fn khz() -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_processors_depends_on_the_mode() {
        assert_eq!(
            Accel::Counted.options(2),
            "-accel tcg,thread=single -cpu qemu64 -icount shift=0,sleep=on -smp 1"
        );
        assert_eq!(Accel::Counted.tsc_khz(), Some(1_000_000));
        let parallel = |cpus: usize| Accel::Tcg.options(cpus);
        assert!(parallel(1).ends_with("-smp 1,maxcpus=2"));
        assert!(parallel(2).ends_with("-smp 2,maxcpus=2"));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn frequency_is_the_same_each_time() {
        let [first, second] = [khz(), khz()].map(|khz| f64::from(khz.unwrap()));
        assert!((first / second - 1.0).abs() < 0.002, "{first} {second}");
    }
}
