//! Reports of the device: about its port, and about objects of the connection.

use std::time::{Duration, Instant};

use super::{Connection, open::Open, side::Side};
use crate::{CloseReason, DeviceFault};

impl Connection {
    /// Ends the connection, because an object of it failed.
    pub fn handle_device_fault(&mut self, fault: DeviceFault, now: Instant) {
        self.fail(CloseReason::DeviceFault(fault), now);
    }

    /// Probes the peer at once, because the path to it may be interrupted. Without a sign of life
    /// on this connection the peer is dead after `timeout`, or after the `keepalive_timeout` if
    /// that is shorter.
    ///
    /// Before this call the caller passes in all completions that have arrived. Without keepalive
    /// only the ping detects a dead path, because the device fails it after its own retries.
    pub fn suspect_path(&mut self, timeout: Duration, now: Instant) {
        if let Some((open, side)) = self.open() {
            open.suspect_path(side, timeout, now);
        }
    }

    /// Stops suspecting the path: the keepalive timer restarts at `now`, with its usual timeout.
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
        self.transfer.probe.wanted();
        self.send_control(side);
    }
}
