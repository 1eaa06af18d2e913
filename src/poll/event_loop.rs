//! How an event loop waits: on a file descriptor of the connection's.
//!
//! An event loop sleeps on the completion events themselves, and polls when it comes by, so that no
//! other thread stands between it and the device. It need not come by: it may be busy, or have no
//! interest in what arrives. So the engine's thread looks now and then whether there are events
//! that nobody takes, and takes them: what keeps the connection alive is among them. And it polls
//! at all times while a loop waits for room, which it may do by the writable fd alone.

use super::{
    completions::{Answers, Completions, Events, Progress},
    poller::Poller,
    word::{Owner, Reliance},
};

impl Poller {
    /// For a call that does not wait: returns what `ready` returns, polling for that if it is
    /// nothing yet. `waits_for_room` says whether a loop waits for room.
    ///
    /// `ready` is called after everything that may have changed its answer, with no lock held.
    pub(crate) fn try_once<T>(
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
        // Over TCP a look costs a system call, and the engine's thread polls for loops.
        if !is_loop || queue.stays_readable() {
            return None;
        }
        // The loop sleeps next, and may own the connection: there is nothing that it does not know.
        if self.owner() != Owner::Loop {
            if waits_for_room() {
                return None;
            }
            self.visit_as_loop(&[Reliance::Group, Reliance::Tasks]);
            if self.owner() != Owner::Loop {
                return None;
            }
        }
        if waits_for_room() {
            // That began meanwhile.
            self.take_over();
        }
        let (events, _) = queue.events()?;
        events.clear();
        queue.arm();
        if queue.poll(1, Answers::AtOnce) == Progress::More {
            self.take_over();
        }
        ready()
    }
}
