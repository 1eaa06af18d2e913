use std::{io, thread};

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::mpsc::{Receiver, channel};

/// Receives the signals that end a bridge or request a report. A thread waits for the signals and
/// sends them to the bridge's task over a channel.
#[derive(Debug)]
pub(super) struct Signals(Receiver<Signal>);

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// End the bridge because of the signal with this number.
    End(u8),
    /// Print the counters.
    Report,
}

impl Signals {
    /// Blocks the signals in the calling thread and in all threads that it starts later, so that
    /// the signals no longer end the process. Then starts a thread that waits for the signals. Must
    /// be called while the process has only one thread.
    pub(super) fn install() -> io::Result<Self> {
        let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1];
        let signals: SigSet = signals.into_iter().collect();
        signals.thread_block()?;
        let (sender, receiver) = channel(1);
        thread::Builder::new()
            .name("rdmsg-signals".into())
            .spawn(move || {
                // The loop ends after the bridge has dropped the receiver.
                while let Ok(signal) = signals.wait()
                    && sender.blocking_send(signal).is_ok()
                {}
            })?;
        Ok(Self(receiver))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Request {
        match self.0.recv().await {
            Some(Signal::SIGUSR1) => Request::Report,
            Some(signal) => Request::End(signal as u8),
            // The signal thread has failed. End the bridge, because no further signal can reach it.
            None => Request::End(Signal::SIGTERM as u8),
        }
    }
}
