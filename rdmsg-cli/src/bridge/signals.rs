use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a bridge, or request a report.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    report: Signal,
}

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// A signal with this number, which ends the bridge.
    End(u8),
    /// A signal that requests the counters.
    Report,
}

impl Signals {
    /// Catches the signals, which then do not end the process.
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
