//! How fast this machine is at the moment: bounds are multiples of that, so that no case depends on
//! what else it has to do.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use crate::Result;

/// What starting and ending a program that does nothing takes in the lab on an idle machine,
/// rounded up.
const USUAL: Duration = Duration::from_millis(60);
/// Times that it is done: the worst counts.
const TRIES: u32 = 3;
/// No machine on which anything works is slower by more.
const SLOWEST: f64 = 10.0;

/// By how much longer everything takes here than on an idle machine; at least 1.
pub(crate) fn slowness() -> Result<f64> {
    let mut worst = Duration::ZERO;
    for _ in 0..TRIES {
        let start = Instant::now();
        Command::new("true").status()?;
        worst = worst.max(start.elapsed());
    }
    Ok((worst.as_secs_f64() / USUAL.as_secs_f64()).clamp(1.0, SLOWEST))
}

/// A bound of so many seconds of an idle machine, on this one.
pub(crate) fn bound(seconds: u64) -> Result<Duration> {
    Ok(Duration::from_secs(seconds).mul_f64(slowness()?))
}
