//! Runs the reactor of an engine without a thread.

use std::time::Instant;

use super::Reactor;
use crate::transport_choice::Transport;

/// The maximum number of iterations in one call. Other threads can add work faster than this thread
/// handles it, so without a limit the call might never return. The other threads then handle the
/// remaining work that they added.
const MAX_ROUNDS: u32 = 64;

impl Reactor {
    /// Does all pending work without waiting, in at most [`MAX_ROUNDS`] iterations. Returns the
    /// next deadline.
    pub(in crate::engine) fn settle(&mut self) -> Option<Instant> {
        for _ in 0..MAX_ROUNDS {
            self.more = false;
            self.handle_cm_events(Transport::Memory);
            self.take_commands();
            self.take_notices();
            self.handle_deadlines();
            self.start_attempts();
            for key in std::mem::take(&mut self.unfinished) {
                self.poll(key);
            }
            let is_idle = self.commands.is_empty()
                && self.notices.is_empty()
                && self.unfinished.is_empty()
                && !self.manager.has_memory_reports();
            if is_idle && !self.more {
                return self.timers.next();
            }
        }
        // Work remains, so the next call is due now.
        Some(Instant::now())
    }
}
