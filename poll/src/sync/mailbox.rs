use std::{
    collections::VecDeque,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;
use rdma_status::OsError;
use rdmsg_os::lock;

use super::readiness::eventfd;

/// A queue that one thread reads, with an eventfd that wakes this thread. The queue never frees its
/// memory, so sending allocates nothing until the queue is longer than ever before.
///
/// A mailbox may have a [`Reader`] instead of a thread: the senders call [`serve`](Self::serve).
#[derive(Debug)]
pub struct Mailbox<T> {
    /// The queue, or `None` after the reading thread has ended.
    queue: Mutex<Option<Queue<T>>>,
    /// The eventfd, or `None` in a mailbox with a `reader`, and in one that [`Mailbox::closed`]
    /// created.
    waker: Option<EventFd>,
    /// The reader that runs in the threads of the senders.
    reader: Option<Weak<dyn Reader>>,
}

/// The time between two looks of a waiting thread for deadlines of a [`Reader`].
const LOOK: Duration = Duration::from_millis(20);

/// Handles the letters of mailboxes. The thread that sends a letter calls it, so that no thread is
/// needed for reading.
pub trait Reader: fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Takes the letters. When the call returns, this thread or another one has acted on each
    /// letter that was sent before, unless other threads send letters faster than they are
    /// handled. The caller holds no lock.
    fn serve(&self);

    /// Returns the time of the next call of [`serve`](Self::serve) that is due without a letter.
    fn due(&self) -> Option<Instant>;
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
    /// The peer, in the same process, has added completions to the connection's queue.
    Poll,
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
            reader: None,
        }))
    }

    /// Returns a mailbox without an eventfd, which this reader reads while it exists.
    pub fn with_reader(reader: Weak<dyn Reader>) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Some(Queue {
                letters: VecDeque::new(),
                is_expected: false,
            })),
            waker: None,
            reader: Some(reader),
        })
    }

    /// Returns a mailbox that refuses all letters.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(None),
            waker: None,
            reader: None,
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

    /// Has the reader take the letters, if there is a reader instead of a thread. The caller holds
    /// no lock.
    pub fn serve(&self) {
        if let Some(reader) = self.reader.as_ref().and_then(Weak::upgrade) {
            reader.serve();
        }
    }

    /// Returns `left`, or `LOOK` if there is a reader instead of a thread and `left` is longer.
    /// After a sleep of this time the caller calls [`serve_due`](Self::serve_due).
    pub fn shorten(&self, left: Option<Duration>) -> Option<Duration> {
        if self.reader.is_none() {
            return left;
        }
        Some(left.map_or(LOOK, |left| left.min(LOOK)))
    }

    /// Has the reader handle a deadline that has passed. The caller holds no lock.
    pub fn serve_due(&self) {
        let reader = self.reader.as_ref().and_then(Weak::upgrade);
        if let Some(reader) = reader
            && reader.due().is_some_and(|at| at <= Instant::now())
        {
            reader.serve();
        }
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

    /// Whether no letter waits.
    pub fn is_empty(&self) -> bool {
        lock(&self.queue)
            .as_ref()
            .is_none_or(|queue| queue.letters.is_empty())
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
    use std::{
        os::fd::AsFd,
        sync::atomic::{AtomicU32, Ordering},
    };

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
    fn sender_serves_mailbox_without_thread() {
        #[derive(Debug, Default)]
        struct Counter(AtomicU32);

        impl Reader for Counter {
            fn serve(&self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }

            fn due(&self) -> Option<Instant> {
                Some(Instant::now())
            }
        }

        let counter = Arc::new(Counter::default());
        let weak = Arc::downgrade(&counter);
        let mailbox = Mailbox::with_reader(weak);
        assert!(mailbox.send(1));
        assert_eq!(counter.0.load(Ordering::Relaxed), 0, "a send calls no code");
        mailbox.serve();
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(!mailbox.is_empty());
        assert_eq!(mailbox.take(), Some(1));
        assert!(mailbox.is_empty());
        assert_eq!(mailbox.shorten(Some(10 * LOOK)), Some(LOOK));
        assert_eq!(mailbox.shorten(Some(LOOK / 2)), Some(LOOK / 2));
        mailbox.serve_due();
        assert_eq!(counter.0.load(Ordering::Relaxed), 2);
        drop(counter);
        mailbox.serve();
        mailbox.serve_due();
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
