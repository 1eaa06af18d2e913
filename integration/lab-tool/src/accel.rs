//! How a guest's instructions are executed, and what its clock is.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    cli::{AccelChoice, MachineArgs},
    kernel::Kernel,
    lab::Lab,
    qemu::Machines,
    tsc,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Accel {
    /// Emulated, with this machine's clock.
    Tcg,
    /// Emulated one after the other, with a clock that counts them.
    Counted,
    /// By the processor.
    Kvm,
}

impl Accel {
    /// QEMU's options for it. Where instructions are counted there is one processor: two would take
    /// turns, and no longer the same ones each time. While it idles its clock follows this
    /// machine's. With `sleep=off` it would jump to the next timer, also while the guest waits for
    /// a file on this machine: then a limit of a minute may be over before a program has started.
    pub(crate) fn options(self, cpus: usize) -> Vec<String> {
        let (options, cpus) = match self {
            Self::Tcg => ("-accel tcg,thread=multi -cpu qemu64", cpus),
            Self::Counted => (
                "-accel tcg,thread=single -cpu qemu64 -icount shift=0,sleep=on",
                1,
            ),
            Self::Kvm => ("-accel kvm -cpu host", cpus),
        };
        let options = options.split(' ').map(str::to_owned);
        options.chain(["-smp".into(), cpus.to_string()]).collect()
    }

    /// The frequency of the guest's time stamp counter, where the guest cannot ask for it. What it
    /// measures itself, against other emulated clocks, may be wrong by any factor on a busy
    /// machine.
    pub(crate) fn tsc_khz(self) -> Option<u32> {
        match self {
            Self::Tcg => tsc::khz(),
            // A tick is a nanosecond.
            Self::Counted => Some(1_000_000),
            Self::Kvm => None,
        }
    }

    /// Longer than any boot takes that comes to an end.
    pub(crate) fn boot_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Tcg | Self::Kvm => 120,
            Self::Counted => 600,
        })
    }
}

/// What `guest/init` prints first.
const SIGN_OF_LIFE: &str = "lab: init";

/// A working KVM needs a tenth of it; one that does not work may hang for ever.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn choose(lab: &Lab, kernel: &Kernel, args: &MachineArgs) -> Result<Accel> {
    let AccelChoice::Probe = args.accel else {
        return Ok(Accel::Tcg);
    };
    let finding = lab.dir().join("accel");
    let works = match fs::read_to_string(&finding) {
        Ok(finding) => finding.trim() == "kvm",
        Err(_) => {
            let works = kvm_works(lab, kernel, args)?;
            fs::write(&finding, if works { "kvm\n" } else { "tcg\n" })?;
            works
        }
    };
    Ok(if works { Accel::Kvm } else { Accel::Tcg })
}

/// That /dev/kvm exists proves nothing: only a guest that was seen to run does.
fn kvm_works(lab: &Lab, kernel: &Kernel, args: &MachineArgs) -> Result<bool> {
    let trial = lab.dir().join("kvm-trial");
    let mut args = args.clone();
    args.results = Some(trial.clone());
    let guests = Machines {
        lab,
        kernel,
        accel: Accel::Kvm,
        args: &args,
        terminals: None,
    }
    .start()?;
    let deadline = Instant::now() + TRIAL_LIMIT;
    let mut alive = false;
    while !alive && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
        alive = guests[0].console().contains(SIGN_OF_LIFE);
    }
    drop(guests);
    fs::remove_dir_all(trial)?;
    eprintln!(
        "lab: KVM {} here",
        if alive { "works" } else { "does not work" }
    );
    Ok(alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_guest_has_one_processor_and_a_clock_of_instructions() {
        assert_eq!(
            Accel::Counted.options(2).join(" "),
            "-accel tcg,thread=single -cpu qemu64 -icount shift=0,sleep=on -smp 1"
        );
        assert_eq!(Accel::Counted.tsc_khz(), Some(1_000_000));
        assert_eq!(
            Accel::Tcg.options(2).join(" "),
            "-accel tcg,thread=multi -cpu qemu64 -smp 2"
        );
    }
}
