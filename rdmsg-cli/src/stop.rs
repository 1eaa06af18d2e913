use std::{io, thread, time::Duration};

use nix::{
    libc,
    sys::signal::{SigSet, Signal},
};
use rdmsg::crossbeam_channel::{Receiver, Select, bounded};

/// A request to stop the program, made with SIGINT or SIGTERM. A thread receives the signals and
/// sends them to a channel, on which other threads can wait.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Receiver<Signal>);

impl Stop {
    /// Blocks SIGINT and SIGTERM in the calling thread and in all threads that the calling thread
    /// starts later, so that these signals do not kill the process. Then starts the thread that
    /// receives the signals. Call this function while the process has only one thread.
    pub(crate) fn install() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        // The channel holds one signal, and no thread removes the signal. When a second signal
        // arrives, the channel is full, so the process exits immediately.
        let (sender, receiver) = bounded(1);
        thread::Builder::new()
            .name("rdmsg-signals".into())
            .spawn(move || {
                while let Ok(signal) = signals.wait() {
                    if sender.try_send(signal).is_err() {
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

    /// Waits until the time has passed or a signal arrives.
    pub(crate) fn wait(&self, time: Duration) {
        let mut select = Select::new();
        select.recv(&self.0);
        // `ready_timeout` does not remove the signal from the channel, so later calls to `wait`
        // return immediately.
        let _ = select.ready_timeout(time);
    }

    /// Returns whether a signal has arrived.
    pub(crate) fn is_requested(&self) -> bool {
        !self.0.is_empty()
    }
}
