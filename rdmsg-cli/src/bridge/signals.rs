use std::{io, thread};

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::mpsc::{Receiver, channel};

/// The signals that end a bridge, or request a report. A thread receives the signals and sends them
/// to the tasks.
#[derive(Debug)]
pub(super) struct Signals(Receiver<Signal>);

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The bridge ends because of the signal with this number.
    End(u8),
    /// The bridge prints its counters.
    Report,
}

impl Signals {
    /// Blocks the signals in this thread and in all threads that it starts later, so that the
    /// signals no longer end the process. Call this while the process has only one thread.
    pub(super) fn install() -> io::Result<Self> {
        let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1];
        let signals: SigSet = signals.into_iter().collect();
        signals.thread_block()?;
        let (sender, receiver) = channel(1);
        thread::Builder::new()
            .name("rdmsg-signals".into())
            .spawn(move || {
                // The thread ends if the bridge no longer receives.
                while let Ok(signal) = signals.wait()
                    && sender.blocking_send(signal).is_ok()
                {}
            })?;
        Ok(Self(receiver))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Told {
        match self.0.recv().await {
            Some(Signal::SIGUSR1) => Told::Report,
            Some(signal) => Told::End(signal as u8),
            // The thread has failed, so that no signal could end the bridge.
            None => Told::End(Signal::SIGTERM as u8),
        }
    }
}
