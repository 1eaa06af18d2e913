use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use crate::{Choice, Result, suite};

/// Starts this program on both hosts of the lab, in place of this process.
pub(crate) fn launch(choice: &Choice) -> Result<ExitCode> {
    // What cannot work needs no hosts.
    suite::chosen(choice)?;
    let seed = choice.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("faults: seed {seed}");
    let mut lab = Command::new("integration/lab");
    // In virtual machines, whatever devices there are: the wire and a host are to fail.
    lab.args(["exec", "--hosts", "2", "--memory", "2G", "--may-die", "b"]);
    lab.args(["--timeout", "1500", "--"]);
    lab.arg(env::current_exe()?);
    lab.arg(format!("--seed={seed}"));
    if choice.quick {
        lab.arg("--quick");
    }
    lab.args(choice.only.iter().map(|name| format!("--only={name}")));
    Err(format!("cannot run integration/lab: {}", lab.exec()).into())
}
