use std::{
    collections::VecDeque,
    fmt, mem,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;
use rdma_status::OsError;
use rdmsg_os::lock;

use super::readiness::eventfd;

/// A queue that one thread reads, with an eventfd that wakes this thread. The queue never frees its
/// memory, so a send allocates memory only if the queue becomes longer than ever before.
///
/// A mailbox can have a [`Reader`] instead of a reading thread. In this case, each thread that
/// sends a message calls [`serve`](Self::serve) afterwards.
#[derive(Debug)]
pub struct Mailbox<T> {
    /// The queue, or `None` if the mailbox refuses messages, because the reading thread has ended
    /// or the mailbox was created by [`Mailbox::closed`].
    queue: Mutex<Option<Queue<T>>>,
    /// The eventfd, or `None` if the mailbox has a `reader` or was created by [`Mailbox::closed`].
    waker: Option<EventFd>,
    /// The reader, which runs on the threads that send messages.
    reader: Option<Weak<dyn Reader>>,
}

/// The interval at which a waiting thread checks whether a deadline of a [`Reader`] has passed.
const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Handles the messages of mailboxes that no thread reads. Each thread that has sent a message
/// calls the reader.
pub trait Reader: fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Takes the messages from the mailboxes and handles them. When this call returns, this thread
    /// or another thread has handled each message that was sent before the call. There are two
    /// exceptions. A call from within another call may return at once, and the outer call then
    /// handles the messages. While other threads send messages faster than the reader handles them,
    /// some messages may remain. The caller holds no lock.
    fn serve(&self);

    /// Returns the time at which [`serve`](Self::serve) must be called even if no message arrives,
    /// or `None` if there is no such time.
    fn due(&self) -> Option<Instant>;
}

#[derive(Debug)]
struct Queue<T> {
    messages: VecDeque<T>,
    /// Whether the reading thread will read the queue soon, even if no sender wakes it.
    is_expected: bool,
    /// Whether a sender has woken the reading thread since that thread last found the queue empty.
    /// A woken thread reads until the queue is empty, so further senders do not wake the thread.
    is_woken: bool,
}

impl<T> Queue<T> {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            messages: VecDeque::with_capacity(capacity),
            is_expected: false,
            is_woken: false,
        }
    }
}

/// A request to the engine's thread about one connection. The engine ignores a notice that arrives
/// after the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The connection's number, unique in the process.
    pub key: u64,
    /// The request.
    pub kind: NoticeKind,
}

/// A request to the engine's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Execute the queued outputs of the connection's state machine, and set its timer.
    Drive,
    /// Try again to allocate memory for the connection, because memory may be available now.
    RetryMemory,
    /// Check every 10 ms whether the connection's new owner polls. The new owner is a thread or an
    /// event loop of the application.
    Acquired,
    /// Check the connection every millisecond, because the connection holds back a message until
    /// the next poll.
    HeldBack,
    /// Become the owner of the connection.
    TakeOver,
    /// Poll the connection, because its peer, which is in the same process, has added completions
    /// to the connection's queue.
    Poll,
}

/// Whether a message must wake the reading thread. A deferrable message wakes that thread only if
/// the thread will not read the queue soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Urgent,
    Deferrable,
}

impl<T> Mailbox<T> {
    /// Creates an empty mailbox.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
    pub fn new() -> Result<Arc<Self>, OsError> {
        Ok(Arc::new(Self {
            queue: Mutex::new(Some(Queue::with_capacity(64))),
            waker: Some(eventfd()?),
            reader: None,
        }))
    }

    /// Creates a mailbox without an eventfd. `reader` handles the messages of the mailbox as long
    /// as the reader exists.
    pub fn with_reader(reader: Weak<dyn Reader>) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Some(Queue::with_capacity(0))),
            waker: None,
            reader: Some(reader),
        })
    }

    /// Returns a mailbox that refuses all messages.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(None),
            waker: None,
            reader: None,
        })
    }

    /// Queues a message and wakes the reading thread. Returns `false` if the mailbox refuses
    /// messages, for example because the reading thread has ended.
    pub fn send(&self, message: T) -> bool {
        self.queue(message, Urgency::Urgent)
    }

    /// Queues a message that is not urgent. Does not wake the reading thread if that thread will
    /// read the queue soon anyway.
    pub fn send_deferrable(&self, message: T) {
        self.queue(message, Urgency::Deferrable);
    }

    /// Queues a message, and wakes the reading thread if necessary. Returns `false` if the mailbox
    /// refuses messages.
    fn queue(&self, message: T, urgency: Urgency) -> bool {
        let mut queue = lock(&self.queue);
        let Some(messages) = queue.as_mut() else {
            return false;
        };
        messages.messages.push_back(message);
        let may_wait = urgency == Urgency::Deferrable && messages.is_expected;
        if !may_wait && !mem::replace(&mut messages.is_woken, true) {
            drop(queue);
            self.wake();
        }
        true
    }

    /// Calls the mailbox's reader. Does nothing if the mailbox has no reader. The caller holds no
    /// lock.
    pub fn serve(&self) {
        if let Some(reader) = self.reader.as_ref().and_then(Weak::upgrade) {
            reader.serve();
        }
    }

    /// Returns the time limit for the caller's next sleep. If the mailbox has no reader, the result
    /// is `left`. If the mailbox has a reader, the result is the shorter of `left` and
    /// `DEADLINE_CHECK_INTERVAL`, and the caller must call [`serve_due`](Self::serve_due) after the
    /// sleep.
    pub fn shorten(&self, left: Option<Duration>) -> Option<Duration> {
        if self.reader.is_none() {
            return left;
        }
        Some(left.map_or(DEADLINE_CHECK_INTERVAL, |left| {
            left.min(DEADLINE_CHECK_INTERVAL)
        }))
    }

    /// Calls the reader if one of its deadlines has passed. The caller holds no lock.
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
            // The result is ignored: the write fails only if the counter is at its maximum, and in
            // that case the descriptor is already readable.
            let _ = waker.write(1);
        }
    }

    /// Records that the reading thread will read the queue soon, without being woken. The record
    /// stays in effect until [`end_expectation`](Self::end_expectation) returns false.
    pub fn expect(&self) {
        if let Some(queue) = &mut *lock(&self.queue) {
            queue.is_expected = true;
        }
    }

    /// If the queue is empty, ends the effect of [`expect`](Self::expect) and returns false.
    /// Otherwise returns true, and the reading thread must read the queue once more.
    pub fn end_expectation(&self) -> bool {
        lock(&self.queue).as_mut().is_some_and(|queue| {
            queue.is_expected &= !queue.messages.is_empty();
            queue.is_expected
        })
    }

    /// Takes the next message. After this method has returned `None`, the next urgent message wakes
    /// the reading thread.
    pub fn take(&self) -> Option<T> {
        let mut queue = lock(&self.queue);
        let queue = queue.as_mut()?;
        let message = queue.messages.pop_front();
        queue.is_woken &= message.is_some();
        message
    }

    /// Returns true if the mailbox contains no message.
    pub fn is_empty(&self) -> bool {
        lock(&self.queue)
            .as_ref()
            .is_none_or(|queue| queue.messages.is_empty())
    }

    /// Returns false if the reading thread has ended, or if the mailbox was created by
    /// [`Mailbox::closed`].
    pub fn is_read(&self) -> bool {
        lock(&self.queue).is_some()
    }

    /// Drops the messages in the mailbox, and makes the mailbox refuse later messages. If a thread
    /// waits for a reply to a dropped message, the drop wakes that thread. The thread then learns
    /// that no reply will arrive.
    pub fn abandon(&self) {
        let left = lock(&self.queue).take();
        drop(left);
    }

    /// Returns the eventfd that wakes the reading thread, or `None` if the mailbox has a reader or
    /// was created by [`Mailbox::closed`]. The reading thread never reads the counter, so the
    /// eventfd stays readable after the first wake-up. An epoll must therefore watch the eventfd
    /// with `EPOLLET`. Each wake-up raises a new edge.
    pub fn waker(&self) -> Option<&EventFd> {
        self.waker.as_ref()
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
    fn deferrable_message_wakes_unexpected_reader() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.expect();
        mailbox.send_deferrable(1);
        assert!(!wakes(&mailbox));
        assert!(
            mailbox.end_expectation(),
            "the reader must read the queued message"
        );
        assert_eq!(mailbox.take(), Some(1));
        assert!(!mailbox.end_expectation());
        mailbox.send_deferrable(2);
        assert!(wakes(&mailbox));
    }

    #[test]
    fn urgent_message_wakes_expected_reader() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.expect();
        assert!(mailbox.send(1));
        assert!(wakes(&mailbox));
    }

    #[test]
    fn messages_before_the_next_read_share_a_wake_up() {
        let mailbox = Mailbox::new().unwrap();
        let waker = mailbox.waker().unwrap();
        for message in 1..=3 {
            assert!(mailbox.send(message));
        }
        assert_eq!(waker.read(), Ok(1));
        assert_eq!(mailbox.take(), Some(1));
        assert!(mailbox.send(4));
        assert_eq!(
            waker.read(),
            Err(nix::Error::EAGAIN),
            "a sender must not wake a reader that is still reading"
        );
        assert!(std::iter::from_fn(|| mailbox.take()).eq(2..=4));
        assert!(mailbox.send(5));
        assert_eq!(waker.read(), Ok(1));
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
        assert_eq!(
            counter.0.load(Ordering::Relaxed),
            0,
            "a send must not call the reader"
        );
        mailbox.serve();
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(!mailbox.is_empty());
        assert_eq!(mailbox.take(), Some(1));
        assert!(mailbox.is_empty());
        assert_eq!(
            mailbox.shorten(Some(10 * DEADLINE_CHECK_INTERVAL)),
            Some(DEADLINE_CHECK_INTERVAL)
        );
        assert_eq!(
            mailbox.shorten(Some(DEADLINE_CHECK_INTERVAL / 2)),
            Some(DEADLINE_CHECK_INTERVAL / 2)
        );
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
        mailbox.send_deferrable(2);
        assert!(!mailbox.end_expectation());
        assert_eq!(mailbox.take(), None);
    }
}
