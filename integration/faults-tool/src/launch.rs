use std::time::Duration;

use anyhow::{Error, Result};
use toolbox::Launch;

use crate::{Choice, suite};

/// Starts this program on both hosts of the lab, in place of this process.
pub(crate) fn launch(choice: &Choice) -> Result<Error> {
    // What cannot work needs no hosts.
    suite::chosen(choice)?;
    let seed = choice.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("faults: seed {seed}");
    // In virtual machines, whatever devices there are: the wire and a host are to fail.
    let mut launch = Launch::new(2, Duration::from_secs(1500))
        .option("--memory", "2G")
        .option("--may-die", "b")
        .device(choice.device)
        .argument(format!("--seed={seed}"));
    if choice.quick {
        launch = launch.argument("--quick");
    }
    for name in &choice.only {
        launch = launch.argument(format!("--only={name}"));
    }
    Ok(launch.exec())
}
