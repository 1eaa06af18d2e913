//! Implements waiting for event loops. An event loop watches a file descriptor of the connection.
//!
//! Completion events make this file descriptor readable. The loop's thread then polls the queue
//! itself, so no other thread has to wake it. A loop may be busy or ignore the fd. Therefore the
//! engine's thread regularly handles the events that the loop has not handled, such as keepalive
//! pings and memory grants. While a loop waits for room to send, the engine's thread polls the
//! connection, because the loop may watch the fd only for writability.

use super::{
    completions::{Answers, Completions, Events, Progress},
    poller::Poller,
    word::{Owner, Reliance},
};

impl Poller {
    /// Calls `ready`. If the result is `None`, polls the queue once and calls `ready` again.
    /// Returns the last result. Non-blocking operations such as `try_recv` use this method.
    /// `waits_for_room` returns whether an event loop waits for room to send.
    ///
    /// This method calls `ready` after each event that may change the result, and holds no lock
    /// during these calls.
    pub fn try_once<T>(
        &self,
        queue: &impl Completions,
        waits_for_room: impl Fn() -> bool,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let is_loop = self.relies(Reliance::Readable);
        if is_loop {
            self.count_poll_as_thread();
        }
        if let Some(value) = ready() {
            return Some(value);
        }
        if !is_loop {
            self.count_poll_as_thread();
        }
        queue.poll(1, Answers::AtOnce);
        if let Some(value) = ready() {
            return Some(value);
        }
        // Each poll of a TCP connection costs a system call, so the loop does not become the owner:
        // the engine's thread polls the connection.
        if !is_loop || queue.stays_readable() {
            return None;
        }
        // The loop has taken all completions and will sleep next, so it can become the owner now.
        if self.owner() != Owner::Loop {
            if waits_for_room() {
                return None;
            }
            // The result is ignored, because `arm_and_poll` below requests an event in any case.
            let _ = self.count_poll_as_loop(&[Reliance::Peer, Reliance::Group, Reliance::Tasks]);
            if self.owner() != Owner::Loop {
                return None;
            }
        }
        if waits_for_room() {
            // The application began to wait for room after `waits_for_room` was called above.
            self.call_engine();
        }
        let (events, _) = queue.events()?;
        events.clear();
        if queue.arm_and_poll(Answers::AtOnce) == Progress::More {
            self.call_engine();
        }
        ready()
    }
}
