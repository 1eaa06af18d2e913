//! Lets event loops wait for a connection. An event loop watches a file descriptor of the
//! connection.
//!
//! Completion events make this file descriptor readable. The loop's thread then polls the queue
//! itself, so no other thread has to wake the loop. A loop may be busy or ignore the fd. Some
//! events must be handled nevertheless, such as keepalive pings and memory grants. So the engine's
//! thread regularly handles the events that the loop has not handled. While a loop waits for room
//! to send, the engine's thread polls the connection, because the loop may watch the fd only for
//! writability.

use super::{
    completions::{Answers, Completions, Events, Progress},
    poller::Poller,
    word::{Owner, Reliance},
};

impl Poller {
    /// Calls `ready`, and returns its value if there is one. If not, polls the queue without
    /// waiting, and calls `ready` again. Non-blocking operations such as `try_recv` use this
    /// method. `waits_for_room` returns whether an event loop waits for room to send.
    ///
    /// If an event loop has taken all completions, this method may make the loop the owner. The
    /// method holds no lock while it calls `ready`.
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
        // The steps below make an event loop the owner. The loop of a TCP connection does not
        // become the owner, because each poll would cost a system call. The engine's thread polls
        // such a connection.
        if !is_loop || queue.is_level_triggered() {
            return None;
        }
        // The loop has taken all completions and will sleep next, so the loop can become the owner
        // now.
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
            // The loop is the owner, but the application has begun to wait for room. The loop may
            // now watch the fd only for writability, so the engine must become the owner.
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
