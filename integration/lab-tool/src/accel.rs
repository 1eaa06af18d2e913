//! Whether to use the processor's virtualisation.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    cli::{AccelChoice, MachineArgs},
    kernel::Kernel,
    lab::Lab,
    qemu::{Accel, Machines},
};

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
