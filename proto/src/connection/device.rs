//! Handles device events: a lost or restored link, and the failure of an object that the connection
//! uses.

use std::time::{Duration, Instant};

use super::{Connection, open::Open, side::Side};
use crate::{CloseReason, DeviceFault};

impl Connection {
    /// Ends the connection, because the device reports the failure of one of its objects.
    pub fn handle_device_fault(&mut self, fault: DeviceFault, now: Instant) {
        self.fail(CloseReason::DeviceFault(fault), now);
    }

    /// Sends a Ping to the peer immediately, because the path to the peer might be interrupted. The
    /// peer is considered dead if no sign of life arrives on this connection within the shorter of
    /// `timeout` and `keepalive_timeout`.
    ///
    /// Before this call, the caller must report all available completions. If the keepalive is off,
    /// the Ping still detects an interruption, because the device retransmits the Ping and finally
    /// reports it as failed.
    pub fn suspect_path(&mut self, timeout: Duration, now: Instant) {
        if let Some((open, side)) = self.open() {
            open.suspect_path(side, timeout, now);
        }
    }

    /// Stops suspecting the path. The keepalive timer restarts at `now`, with its usual timeout.
    pub fn trust_path(&mut self, now: Instant) {
        if let Some((open, _)) = self.open()
            && let Some(keepalive) = &mut open.transfer.timers.keepalive
        {
            keepalive.trust(now);
        }
    }
}

impl Open {
    fn suspect_path(&mut self, side: &mut Side, timeout: Duration, now: Instant) {
        if !self.is_connected() {
            return;
        }
        let transfer = &mut self.transfer;
        let activity = transfer.activity;
        if let Some(keepalive) = &mut transfer.timers.keepalive {
            keepalive.suspect(timeout, activity, now);
        }
        self.transfer.probe.request();
        self.send_control(side);
    }
}
