use std::{io, thread, time::Duration};

use nix::{
    libc,
    sys::signal::{SigSet, Signal},
};
use rdmsg::crossbeam_channel::{Receiver, Select, bounded};

/// A request to stop, by SIGINT or SIGTERM. A thread receives the signals and sends them to a
/// channel, so that other threads can wait for the channel.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Receiver<Signal>);

impl Stop {
    /// Blocks both signals in this thread and in all threads that it starts later, so that the
    /// signals no longer end the process. Call this while the process has only one thread.
    pub(crate) fn install() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        // The channel holds the first signal. A second signal finds the channel full, and then the
        // process exits at once.
        let (sender, receiver) = bounded(1);
        thread::Builder::new()
            .name("rdmsg-signals".into())
            .spawn(move || {
                while let Ok(signal) = signals.wait() {
                    if sender.try_send(signal).is_err() {
                        // This is the second signal.
                        std::process::exit(128 + signal as libc::c_int);
                    }
                }
            })?;
        Ok(Self(receiver))
    }

    /// Returns the channel that becomes readable when a signal arrives.
    pub(crate) fn channel(&self) -> &Receiver<Signal> {
        &self.0
    }

    /// Waits for this time, or until a signal arrives.
    pub(crate) fn wait(&self, time: Duration) {
        let mut select = Select::new();
        select.recv(&self.0);
        // `ready_timeout` does not receive the signal from the channel, so later calls return at
        // once.
        let _ = select.ready_timeout(time);
    }

    /// Whether a signal has arrived.
    pub(crate) fn is_requested(&self) -> bool {
        !self.0.is_empty()
    }
}
