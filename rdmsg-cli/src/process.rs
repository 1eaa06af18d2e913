//! The process of a command: the signals that it handles, the limit on open files, and the export
//! of statistics.

use std::{io, thread, time::Duration};

use anyhow::{Context, Result};
use nix::{
    libc,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigSet, Signal},
    },
};
use rdmsg::{
    crossbeam_channel::{Receiver, Select, bounded},
    observe::Export,
};
use tokio::sync::mpsc;

/// Reports requests to stop the program: the signals SIGINT and SIGTERM. A thread receives the
/// signals and sends them to a channel, on which other threads can wait.
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
        // The channel has room for one signal, and no thread removes the signal. When a second
        // signal arrives, the channel is full, so the process exits immediately.
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

/// Receives the signals that end a bridge or request a report. A thread waits for the signals and
/// sends them to the bridge's task over a channel.
#[derive(Debug)]
pub(crate) struct BridgeSignals(mpsc::Receiver<Signal>);

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BridgeRequest {
    /// End the bridge because of the signal with this number.
    End(u8),
    /// Print the counters.
    Report,
}

impl BridgeSignals {
    /// Blocks the signals in the calling thread and in all threads that it starts later, so that
    /// the signals no longer end the process. Then starts a thread that waits for the signals. Must
    /// be called while the process has only one thread.
    pub(crate) fn install() -> io::Result<Self> {
        let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1];
        let signals: SigSet = signals.into_iter().collect();
        signals.thread_block()?;
        let (sender, receiver) = mpsc::channel(1);
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
    pub(crate) async fn next(&mut self) -> BridgeRequest {
        match self.0.recv().await {
            Some(Signal::SIGUSR1) => BridgeRequest::Report,
            Some(signal) => BridgeRequest::End(signal as u8),
            // The signal thread has failed. End the bridge, because no further signal can reach it.
            None => BridgeRequest::End(Signal::SIGTERM as u8),
        }
    }
}

/// Raises the soft limit on open files to the hard limit. Returns the resulting soft limit, or
/// `u64::MAX` if the limits cannot be read.
pub(crate) fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            log::warn!("cannot raise the limit on open files above {soft}: {error}");
            soft
        }
    }
}

/// If `is_wanted` is true, exports the statistics until the returned value is dropped.
pub(crate) fn export_statistics(is_wanted: bool) -> Result<Option<Export>> {
    let export = is_wanted.then(Export::start).transpose();
    export.context("--statistics: cannot export the statistics")
}
