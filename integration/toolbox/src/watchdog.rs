use std::{
    panic::Location,
    process,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use crate::Deadline;

/// Ends the program unless the watchdog is dropped in time. A test that hangs thereby fails, and
/// the failure names the caller.
#[derive(Debug)]
pub struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    /// Starts a watchdog for the caller and the running test, with a limit in seconds of an idle
    /// machine. The limit should be generous, because the lab is slow.
    #[must_use]
    #[track_caller]
    pub fn new(seconds: u64) -> Self {
        let (stop, stopped) = channel::<()>();
        let place = Location::caller();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            let mut deadline = Deadline::after(Duration::from_secs(seconds));
            while !deadline.is_over() {
                if stopped.recv_timeout(deadline.left()) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
            eprintln!("{test} ({place}): still not done after {seconds} s");
            process::abort();
        });
        Self { _stop: stop }
    }
}
