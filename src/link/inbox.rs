//! The completions of one connection that the application has not taken.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{completion::Completion, message::Message};
use crate::os::{PerProcess, Process, lock_hot};

/// The value of `Queue::count` while the completions are in the channel.
const IN_CHANNEL: usize = usize::MAX;

/// Creates the queue of a connection's completions. Returns the two sides of the queue: the
/// connection's side and the application's side.
pub(crate) fn inbox() -> (Inlet, Inbox) {
    let queue = Arc::new(Queue {
        unread: Mutex::new(Unread::Listed {
            list: VecDeque::new(),
            is_complete: false,
        }),
        count: AtomicUsize::new(0),
        process: Process::this(),
    });
    let inbox = Inbox {
        queue: Arc::clone(&queue),
        channel: OnceLock::new(),
    };
    (Inlet(queue), inbox)
}

/// The queue that the connection and the application share. The queue needs no limit: the window
/// bounds the number of messages, and `max_ids` bounds the number of completions with ids.
///
/// A connection takes the lock of `unread` while it holds its own locks.
#[derive(Debug)]
struct Queue {
    unread: Mutex<Unread>,
    /// The length of the list, or [`IN_CHANNEL`]. Threads read this value without the lock of
    /// `unread`.
    count: AtomicUsize,
    /// The process that created the connection.
    process: Process,
}

/// The unread completions. A list costs less than a channel, because one lock covers all messages
/// of a frame. The completions move to a channel when the program requests the channel.
#[derive(Debug)]
enum Unread {
    Listed {
        list: VecDeque<Completion>,
        /// Whether the connection has dropped its side of the queue.
        is_complete: bool,
    },
    InChannel(Sender<Completion>),
    /// No completion can be added. Either the application dropped its side of the queue while the
    /// completions were in a list, or the connection dropped its side after the move to the
    /// channel.
    Closed,
}

impl Queue {
    /// Sets `count` after a change of the list.
    fn count(&self, list: &VecDeque<Completion>) {
        self.count.store(list.len(), Ordering::Release);
    }

    /// Returns whether this process inherited the queue through a fork. A thread of the parent
    /// process may have held the lock during the fork. The lock would then never be released in
    /// this process, so no method locks an inherited queue.
    #[inline]
    fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }

    fn lock(&self) -> MutexGuard<'_, Unread> {
        lock_hot(&self.unread)
    }
}

/// The connection's side of the queue, which adds completions. The connection drops this side when
/// the connection ends, or when its last handle is dropped. Unread messages own references to their
/// connection. A connection that kept this side might therefore never be freed.
#[derive(Debug)]
pub(crate) struct Inlet(Arc<Queue>);

impl Inlet {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        match self.0.count.load(Ordering::Acquire) {
            IN_CHANNEL => self.len() == 0,
            count => count == 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        match &*self.0.lock() {
            Unread::Listed { list, .. } => list.len(),
            Unread::InChannel(sender) => sender.len(),
            Unread::Closed => 0,
        }
    }

    /// Appends a completion. Returns the completion as an error if the application has dropped its
    /// side.
    pub(super) fn put(&self, completion: Completion) -> Result<(), Completion> {
        match &mut *self.0.lock() {
            Unread::Listed { list, .. } => {
                list.push_back(completion);
                self.0.count(list);
                Ok(())
            }
            Unread::InChannel(sender) => sender
                .try_send(completion)
                .map_err(|refused| refused.into_inner()),
            Unread::Closed => Err(completion),
        }
    }

    /// Appends messages, and takes the lock only once. Returns the number of messages appended, and
    /// the messages that could not be appended because the application has dropped its side.
    pub(super) fn put_messages(
        &self,
        messages: impl Iterator<Item = Message>,
    ) -> (u64, Vec<Completion>) {
        let mut messages = messages.map(Completion::Received);
        let (mut put, mut refused) = (0, Vec::new());
        match &mut *self.0.lock() {
            Unread::Listed { list, .. } => {
                let before = list.len();
                messages
                    .by_ref()
                    .for_each(|message| list.push_back(message));
                self.0.count(list);
                put = (list.len() - before) as u64;
            }
            Unread::InChannel(sender) => {
                for message in messages.by_ref() {
                    match sender.try_send(message) {
                        Ok(()) => put += 1,
                        Err(error) => refused.push(error.into_inner()),
                    }
                }
            }
            Unread::Closed => {}
        }
        refused.extend(messages);
        (put, refused)
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        if self.0.is_inherited() {
            return;
        }
        let mut unread = self.0.lock();
        let before = match &mut *unread {
            Unread::Listed { is_complete, .. } => {
                *is_complete = true;
                return;
            }
            Unread::InChannel(_) | Unread::Closed => mem::replace(&mut *unread, Unread::Closed),
        };
        // The sender is dropped after the lock is released. Dropping the sender may drop unread
        // messages, and their release takes the locks of the connection.
        drop(unread);
        drop(before);
    }
}

/// The application's side of the queue, which takes completions.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Arc<Queue>,
    channel: OnceLock<Receiver<Completion>>,
}

impl Inbox {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        if self.queue.is_inherited() {
            return true;
        }
        match self.queue.count.load(Ordering::Acquire) {
            IN_CHANNEL => self.channel().is_empty(),
            count => count == 0,
        }
    }

    /// Returns the channel of the completions. The first call moves all unread completions to the
    /// channel. Later completions are added to the channel. The channel of an inherited connection
    /// is empty and disconnected.
    pub(crate) fn channel(&self) -> &Receiver<Completion> {
        static ENDED: PerProcess<Receiver<Completion>> = PerProcess::new(|| unbounded().1);
        if self.queue.is_inherited() {
            return ENDED.get();
        }
        self.channel.get_or_init(|| {
            let (sender, receiver) = unbounded();
            let mut unread = self.queue.lock();
            if let Unread::Listed { list, is_complete } = &mut *unread {
                for completion in list.drain(..) {
                    // The receiver still exists, so the channel accepts every completion.
                    let _ = sender.try_send(completion);
                }
                *unread = if *is_complete {
                    Unread::Closed
                } else {
                    Unread::InChannel(sender)
                };
                self.queue.count.store(IN_CHANNEL, Ordering::Release);
            }
            receiver
        })
    }

    /// Takes the oldest completion.
    pub(crate) fn take(&self) -> Option<Completion> {
        if self.queue.is_inherited() {
            return None;
        }
        if let Unread::Listed { list, .. } = &mut *self.queue.lock() {
            let completion = list.pop_front();
            self.queue.count(list);
            return completion;
        }
        self.channel().try_recv().ok()
    }

    /// Takes the oldest completion if it is a message in the list and another completion follows
    /// it.
    #[inline]
    pub(crate) fn take_message_before_others(&self) -> Option<Message> {
        if self.queue.is_inherited() {
            return None;
        }
        let mut unread = self.queue.lock();
        let Unread::Listed { list, .. } = &mut *unread else {
            return None;
        };
        if list.len() < 2 || !matches!(list.front(), Some(Completion::Received(_))) {
            return None;
        }
        let Some(Completion::Received(message)) = list.pop_front() else {
            return None;
        };
        self.queue.count(list);
        Some(message)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if self.queue.is_inherited() {
            return;
        }
        let mut unread = self.queue.lock();
        let before = match &mut *unread {
            Unread::Listed { .. } => mem::replace(&mut *unread, Unread::Closed),
            // The program may still receive from the channel through a clone of the receiver.
            Unread::InChannel(_) | Unread::Closed => return,
        };
        // The unread messages are dropped after the lock is released. Their release takes the locks
        // of the connection, which a thread must take before this lock.
        drop(unread);
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::TryRecvError;

    use super::*;

    fn messages(numbers: std::ops::Range<u8>) -> impl Iterator<Item = Message> {
        numbers.map(|number| Message::from(&[number]))
    }

    fn number(completion: Completion) -> u8 {
        match completion {
            Completion::Received(message) => message[0],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn channel_has_the_completions_in_order_and_then_ends() {
        let (inlet, inbox) = inbox();
        assert_eq!(inlet.put_messages(messages(0..3)).0, 3);
        assert_eq!(inbox.take().map(number), Some(0));
        let channel = inbox.channel().clone();
        assert_eq!((channel.len(), inlet.len()), (2, 2));
        assert_eq!(inlet.put_messages(messages(3..5)).0, 2);
        inlet.put(Completion::Finished).unwrap();
        assert!(!inbox.is_empty() && !inlet.is_empty());
        assert_eq!(
            inbox.take_message_before_others(),
            None,
            "completions in the channel must not be taken"
        );
        assert_eq!(inbox.take().map(number), Some(1));
        drop(inlet);
        for expected in 2..5 {
            assert_eq!(channel.try_recv().map(number), Ok(expected));
        }
        assert!(matches!(channel.try_recv(), Ok(Completion::Finished)));
        assert!(matches!(
            channel.try_recv(),
            Err(TryRecvError::Disconnected)
        ));
        assert!(inbox.is_empty());
    }

    #[test]
    fn channel_that_is_requested_after_the_end_has_what_is_left() {
        let (inlet, inbox) = inbox();
        inlet.put_messages(messages(0..2));
        drop(inlet);
        assert_eq!(inbox.take().map(number), Some(0));
        assert_eq!(inbox.channel().try_recv().map(number), Ok(1));
        assert!(matches!(
            inbox.channel().try_recv(),
            Err(TryRecvError::Disconnected)
        ));
    }

    #[test]
    fn nothing_can_be_put_after_the_application_dropped_its_side() {
        let (inlet, inbox) = inbox();
        inlet.put(Completion::Sent(1)).unwrap();
        drop(inbox);
        assert_eq!(inlet.len(), 0);
        assert!(inlet.put(Completion::Sent(2)).is_err());
        let (put, refused) = inlet.put_messages(messages(0..2));
        assert_eq!((put, refused.len()), (0, 2));
    }

    #[test]
    fn only_a_message_before_others_is_taken_without_the_rest() {
        let (inlet, inbox) = inbox();
        inlet.put_messages(messages(0..2));
        assert!(inbox.take_message_before_others().is_some());
        assert_eq!(
            inbox.take_message_before_others(),
            None,
            "a message that no completion follows must not be taken"
        );
        inlet.put(Completion::Sent(1)).unwrap();
        assert!(inbox.take_message_before_others().is_some());
        inlet.put(Completion::Sent(2)).unwrap();
        assert_eq!(
            inbox.take_message_before_others(),
            None,
            "a completion that is not a message must not be taken"
        );
    }
}
