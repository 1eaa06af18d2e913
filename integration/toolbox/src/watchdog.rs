use std::{
    panic::Location,
    process,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use crate::Deadline;

/// Aborts the program unless this value is dropped within the time limit. A test that hangs
/// therefore fails, with a message that names the test.
#[derive(Debug)]
#[must_use]
pub struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    /// Starts a watchdog for the running test. `seconds` is the limit on an idle machine; a
    /// [`Deadline`] extends it on a busy one. Choose a long limit, because the lab is slow. If the
    /// limit expires, the watchdog prints the caller's source line and aborts the process.
    #[track_caller]
    pub fn new(seconds: u64) -> Self {
        let (stop, stopped) = channel::<()>();
        let location = Location::caller();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            let mut deadline = Deadline::after(Duration::from_secs(seconds));
            while !deadline.is_over() {
                if stopped.recv_timeout(deadline.left()) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
            eprintln!("{test} ({location}): still not done after {seconds} s");
            process::abort();
        });
        Self { _stop: stop }
    }
}
