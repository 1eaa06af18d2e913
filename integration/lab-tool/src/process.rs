//! What ties processes together: children die with us, and we hear of signals.

use std::{fs, os::unix::process::CommandExt, process::Command, thread};

use nix::sys::{
    prctl::set_pdeathsig,
    signal::{SigSet, Signal},
};

/// Has the kernel kill the child when this process ends, however it does, and keeps a terminal's
/// ^C from it: what that means is decided here. Spawn it from the main thread, whose end counts.
#[allow(unsafe_code)]
pub(crate) fn dies_with_us(command: &mut Command) {
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes one system call and does not allocate.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
}

/// Calls `tell` for each signal that asks this process to end. To be called before any thread is
/// started: threads inherit that these signals are held back from them.
pub(crate) fn on_signal(tell: impl Fn(Signal) + Send + 'static) -> nix::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    if !hangup_is_ignored() {
        signals.add(Signal::SIGHUP);
    }
    signals.thread_block()?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            tell(signal);
        }
    });
    Ok(())
}

/// As `nohup` arranges. Waiting for a signal would override that.
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (Signal::SIGHUP as u32 - 1) != 0)
}
