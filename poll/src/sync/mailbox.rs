use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use nix::sys::eventfd::EventFd;
use rdma_status::OsError;
use rdmsg_os::lock;

use super::readiness::eventfd;

/// A queue that one thread reads, with an eventfd that wakes this thread. The queue never frees its
/// memory, so sending allocates nothing until the queue is longer than ever before.
#[derive(Debug)]
pub struct Mailbox<T> {
    /// The queue, or `None` after the reading thread has ended.
    queue: Mutex<Option<Queue<T>>>,
    /// The eventfd, or `None` if [`Mailbox::closed`] created the mailbox.
    waker: Option<EventFd>,
}

#[derive(Debug)]
struct Queue<T> {
    letters: VecDeque<T>,
    /// Whether the reading thread reads the queue soon without a wake-up.
    is_expected: bool,
}

/// A request to the engine's thread that concerns one connection. The engine ignores a notice that
/// arrives after the connection's end.
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
    /// Execute the queued outputs of the connection's state machine, and set its timer.
    Drive,
    /// The memory that the connection waits for may be available: try to allocate it again.
    Feed,
    /// Threads or an event loop of the application own the connection now: check every 10 ms
    /// whether they poll.
    Acquired,
    /// A message is held back until the next poll: check the connection every millisecond.
    HeldBack,
    /// Become the owner of the connection.
    TakeOver,
}

impl<T> Mailbox<T> {
    /// Creates an empty mailbox.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
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

    /// Queues a letter and wakes the reading thread. Returns `false` if the reading thread has
    /// ended.
    pub fn send(&self, letter: T) -> bool {
        let is_read = self.queue(letter).is_some();
        if is_read {
            self.wake();
        }
        is_read
    }

    /// Queues a letter that is not urgent. Wakes the reading thread only if it would not read the
    /// queue soon by itself.
    pub fn leave(&self, letter: T) {
        if self.queue(letter) == Some(false) {
            self.wake();
        }
    }

    /// Queues a letter. Returns whether the reading thread reads the queue soon by itself, or
    /// `None` if that thread has ended.
    fn queue(&self, letter: T) -> Option<bool> {
        let mut queue = lock(&self.queue);
        let queue = queue.as_mut()?;
        queue.letters.push_back(letter);
        Some(queue.is_expected)
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            // The write fails only if the counter is at its maximum, and then the descriptor is
            // readable already.
            let _ = waker.write(1);
        }
    }

    /// Records that the reading thread will read the queue soon by itself, until a call of
    /// [`end_expectation`](Self::end_expectation) returns false.
    pub fn expect(&self) {
        if let Some(queue) = &mut *lock(&self.queue) {
            queue.is_expected = true;
        }
    }

    /// Ends the effect of [`expect`](Self::expect) if the queue is empty. Otherwise returns true:
    /// the reading thread reads the queue once more.
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

    /// Returns whether the reading thread still runs.
    pub fn is_read(&self) -> bool {
        lock(&self.queue).is_some()
    }

    /// Drops the letters in the mailbox, and refuses later ones. Dropping a letter tells a thread
    /// that waits for a reply to it that no reply follows.
    pub fn abandon(&self) {
        let left = lock(&self.queue).take();
        drop(left);
    }

    /// Returns the descriptor that wakes the reading thread, or `None` in a closed mailbox.
    pub fn waker(&self) -> Option<&EventFd> {
        self.waker.as_ref()
    }

    /// Resets the descriptor, so that it is not readable until the next wake-up.
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
