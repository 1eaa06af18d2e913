use std::{io, thread, time::Duration};

use nix::{
    libc,
    sys::signal::{SigSet, Signal},
};
use rdmsg::crossbeam_channel::{Receiver, Select, bounded};

/// A request to stop by SIGINT or SIGTERM. A thread receives the signals, so that other threads can
/// wait for the request.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Receiver<Signal>);

impl Stop {
    /// From now on they end nothing by themselves. To be called while there is one thread.
    pub(crate) fn install() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        // One for each thread that waits in turn; more than one is impatience.
        let (sender, receiver) = bounded(1);
        thread::Builder::new()
            .name("rdmsg-signals".into())
            .spawn(move || {
                while let Ok(signal) = signals.wait() {
                    if sender.try_send(signal).is_err() {
                        // This is a second signal, and the program has not reacted to the first
                        // one.
                        std::process::exit(128 + signal as libc::c_int);
                    }
                }
            })?;
        Ok(Self(receiver))
    }

    /// Returns the channel of the signal.
    pub(crate) fn channel(&self) -> &Receiver<Signal> {
        &self.0
    }

    /// Waits for this time, or until one comes.
    pub(crate) fn wait(&self, time: Duration) {
        let mut select = Select::new();
        select.recv(&self.0);
        // The signal stays there for later calls.
        let _ = select.ready_timeout(time);
    }

    /// Whether one has come.
    pub(crate) fn is_requested(&self) -> bool {
        !self.0.is_empty()
    }
}
