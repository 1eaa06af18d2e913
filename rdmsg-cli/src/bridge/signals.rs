use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a bridge, or request a report.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    report: Signal,
}

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The bridge ends because of the signal with this number.
    End(u8),
    /// The bridge prints its counters.
    Report,
}

impl Signals {
    /// Installs handlers for the signals, which then do not end the process.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            report: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.interrupt.recv() => Told::End(nix::libc::SIGINT as u8),
            _ = self.terminate.recv() => Told::End(nix::libc::SIGTERM as u8),
            _ = self.report.recv() => Told::Report,
        }
    }
}
