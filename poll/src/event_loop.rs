//! Implements waiting in an event loop, on a file descriptor of the connection.
//!
//! An event loop sleeps on the completion events themselves, and its thread polls when the fd is
//! readable, without a switch to another thread. The loop may be busy, or ignore the fd. So the
//! engine's thread regularly checks for events that the loop leaves, and handles them, because they
//! may be pings and grants. While a loop waits for room, the engine's thread is the owner, because
//! the loop may watch only the writable fd.

use super::{
    completions::{Answers, Completions, Events, Progress},
    poller::Poller,
    word::{Owner, Reliance},
};

impl Poller {
    /// Returns the result of `ready`. If that is `None`, polls once and calls `ready` again. It is
    /// for calls that do not wait. `waits_for_room` returns whether an event loop waits for room.
    ///
    /// It calls `ready` after each event that may change the result, and holds no lock then.
    pub fn try_once<T>(
        &self,
        queue: &impl Completions,
        waits_for_room: impl Fn() -> bool,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let is_loop = self.relies(Reliance::Readable);
        if is_loop {
            self.visit_as_thread();
        }
        if let Some(value) = ready() {
            return Some(value);
        }
        if !is_loop {
            self.visit_as_thread();
        }
        queue.poll(1, Answers::AtOnce);
        if let Some(value) = ready() {
            return Some(value);
        }
        // Over TCP a poll costs a system call, and the engine's thread polls for loops.
        if !is_loop || queue.stays_readable() {
            return None;
        }
        // The loop has taken all completions and sleeps next, so it may own the connection.
        if self.owner() != Owner::Loop {
            if waits_for_room() {
                return None;
            }
            // The request for an event follows.
            let _ = self.visit_as_loop(&[Reliance::Group, Reliance::Tasks]);
            if self.owner() != Owner::Loop {
                return None;
            }
        }
        if waits_for_room() {
            // The wait began after the first check.
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
