//! Handles device events: a lost or restored link, and the failure of an object that the connection
//! uses.

use std::time::{Duration, Instant};

use super::{Connection, open::Open, side::Side};
use crate::{CloseReason, DeviceFault};

impl Connection {
    /// Ends the connection, because the device has reported the failure of an object that the
    /// connection uses.
    pub fn handle_device_fault(&mut self, fault: DeviceFault, now: Instant) {
        self.fail(CloseReason::DeviceFault(fault), now);
    }

    /// Suspects that the path to the peer is interrupted, and sends a Ping unless an earlier Ping
    /// is still unanswered. The peer is considered dead if no sign of life arrives on this
    /// connection within `timeout`. If the peer is already silent, `keepalive_timeout` can end this
    /// wait earlier.
    ///
    /// Before this call, the caller must report all available completions. If the keepalive is off,
    /// the Ping still detects an interruption, because the device retransmits the Ping and finally
    /// reports it as failed.
    pub fn suspect_path(&mut self, timeout: Duration, now: Instant) {
        if let Some((open, side)) = self.open() {
            open.suspect_path(side, timeout, now);
        }
    }

    /// Stops suspecting the path. If the path was suspected, the next keepalive check follows half
    /// a keepalive interval after `now`, as usual.
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
