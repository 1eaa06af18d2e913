//! The rounds of an engine without a thread.

use std::time::Instant;

use super::Reactor;
use crate::transport_choice::Transport;

/// The rounds of one call. Other threads may add work faster than a call does it. The thread that
/// adds work serves the engine after this call.
const MAX_ROUNDS: u32 = 64;

impl Reactor {
    /// Does all work that there is, in [`MAX_ROUNDS`] at most, without waiting. Returns the next
    /// deadline.
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
        // The work that is left is due now.
        Some(Instant::now())
    }
}
