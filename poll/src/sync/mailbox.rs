use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use nix::sys::eventfd::EventFd;
use rdma_status::OsError;
use rdmsg_os::lock;

use super::readiness::eventfd;

/// A queue that one thread reads, and the eventfd that wakes it. The queue never frees its memory,
/// so that a send to a queue that was longer before allocates nothing.
#[derive(Debug)]
pub struct Mailbox<T> {
    /// `None` when the reading thread has ended.
    queue: Mutex<Option<Queue<T>>>,
    /// `None` in a closed mailbox.
    waker: Option<EventFd>,
}

#[derive(Debug)]
struct Queue<T> {
    letters: VecDeque<T>,
    /// Whether the reading thread will read soon, even without a wake-up.
    is_expected: bool,
}

/// A request to the engine's thread about one connection. A notice that arrives after the
/// connection's end is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The connection's number in its process.
    pub key: u64,
    /// The request.
    pub kind: NoticeKind,
}

/// A request to the engine's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Execute the queued outputs of the state machine, and set its timer.
    Drive,
    /// The memory that the connection waits for is available, or may be.
    Feed,
    /// Threads or a loop of the application have acquired the connection: check whether they poll.
    Acquired,
    /// Threads or a loop hold a message back: check the connection within 1 ms.
    HeldBack,
    /// Take the connection over.
    TakeOver,
}

impl<T> Mailbox<T> {
    /// # Errors
    ///
    /// When the process has no file descriptor left.
    pub fn new() -> Result<Arc<Self>, OsError> {
        Ok(Arc::new(Self {
            queue: Mutex::new(Some(Queue {
                letters: VecDeque::with_capacity(64),
                is_expected: false,
            })),
            waker: Some(eventfd()?),
        }))
    }

    /// Returns a mailbox that refuses all letters.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(None),
            waker: None,
        })
    }

    /// Queues a letter and wakes the reading thread. Returns `false` if that has ended.
    pub fn send(&self, letter: T) -> bool {
        let is_read = self.queue(letter).is_some();
        if is_read {
            self.wake();
        }
        is_read
    }

    /// Queues a letter that can wait until the reading thread reads by itself. Wakes the thread
    /// only if it is not expected to.
    pub fn leave(&self, letter: T) {
        if self.queue(letter) == Some(false) {
            self.wake();
        }
    }

    /// Returns whether the reading thread will read by itself, or `None` if it has ended.
    fn queue(&self, letter: T) -> Option<bool> {
        let mut queue = lock(&self.queue);
        let queue = queue.as_mut()?;
        queue.letters.push_back(letter);
        Some(queue.is_expected)
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            // The write fails only when the counter is full, and then the thread is awake anyway.
            let _ = waker.write(1);
        }
    }

    /// Records that the reading thread will read by itself, until
    /// [`end_expectation`](Self::end_expectation).
    pub fn expect(&self) {
        if let Some(queue) = &mut *lock(&self.queue) {
            queue.is_expected = true;
        }
    }

    /// Ends the effect of [`expect`](Self::expect), unless letters are left. Returns whether the
    /// reading thread has to read once more, because letters are left.
    pub fn end_expectation(&self) -> bool {
        lock(&self.queue).as_mut().is_some_and(|queue| {
            queue.is_expected &= !queue.letters.is_empty();
            queue.is_expected
        })
    }

    /// Takes the next letter.
    pub fn take(&self) -> Option<T> {
        lock(&self.queue).as_mut()?.letters.pop_front()
    }

    /// Whether the reading thread still runs.
    pub fn is_read(&self) -> bool {
        lock(&self.queue).is_some()
    }

    /// Drops all letters, those in the mailbox and later ones. The drop of a letter notifies a
    /// thread that waits for a reply.
    pub fn abandon(&self) {
        let left = lock(&self.queue).take();
        drop(left);
    }

    /// Returns the descriptor that wakes the reading thread.
    pub fn waker(&self) -> Option<&EventFd> {
        self.waker.as_ref()
    }

    /// Resets the descriptor.
    pub fn clear(&self) {
        if let Some(waker) = &self.waker {
            let _ = waker.read();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn wakes<T>(mailbox: &Mailbox<T>) -> bool {
        let mut fds = [PollFd::new(
            mailbox.waker().unwrap().as_fd(),
            PollFlags::POLLIN,
        )];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn deferrable_letter_wakes_unexpected_reader_only() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.expect();
        mailbox.leave(1);
        assert!(!wakes(&mailbox));
        assert!(mailbox.end_expectation(), "there is a letter");
        assert_eq!(mailbox.take(), Some(1));
        assert!(!mailbox.end_expectation());
        mailbox.leave(2);
        assert!(wakes(&mailbox));
    }

    #[test]
    fn urgent_letter_wakes_expected_reader() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.expect();
        assert!(mailbox.send(1));
        assert!(wakes(&mailbox));
    }

    #[test]
    fn a_reader_that_has_ended_is_not_expected() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.expect();
        mailbox.abandon();
        assert!(!mailbox.send(1));
        mailbox.leave(2);
        assert!(!mailbox.end_expectation());
        assert_eq!(mailbox.take(), None);
    }
}
