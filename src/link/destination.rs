use std::{
    collections::VecDeque,
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{
    completion::Completion, inbox::Inlet, inflow::Inflow, members::Members, message::Message,
};
use crate::os::lock;

/// The destination of a connection's completions: its own queue, or the queue of its group.
#[derive(Debug)]
pub(crate) struct Destination {
    own: Inlet,
    /// The queue for the messages of a stream; `None` if the connection is not a stream.
    inflow: Option<Arc<Inflow>>,
    /// The total number of completions ever put into the connection's own queue.
    put: u64,
    member: Option<Member>,
    /// The positions of the completions with ids, in ascending order. The position of a completion
    /// is the number of completions that were put into the queue before it. The method
    /// `reports()` removes the positions of completions that the application has taken.
    reports: VecDeque<u64>,
    /// The position of the last [`Completion::Room`]; `None` if there was none in this queue.
    room: Option<u64>,
    /// The position of the last [`Completion::Suspended`] or [`Completion::Resumed`]; `None` if
    /// there was none in this queue.
    session: Option<u64>,
    /// Whether the last `Suspended` was not reported. If so, the following `Resumed` is not
    /// reported either.
    skips_resumed: bool,
}

/// The group of a connection, and the connection's key in this group.
#[derive(Debug)]
struct Member {
    queue: Arc<GroupQueue>,
    key: u64,
    /// The number of the connection in its process.
    connection: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.queue.members.remove(self.connection);
    }
}

impl Destination {
    pub(super) fn new(own: Inlet) -> Self {
        Self {
            own,
            inflow: None,
            put: 0,
            member: None,
            reports: VecDeque::new(),
            room: None,
            session: None,
            skips_resumed: false,
        }
    }

    /// Returns whether both the connection's own queue and the queue of a stream are empty.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.inflow.as_ref().is_none_or(|inflow| inflow.is_empty())
    }

    /// Returns true if a message can be handed directly to the thread that waits for a message.
    /// This requires that the connection is in no group, and that no earlier completion is unread.
    pub(super) fn may_hand_over(&self) -> bool {
        self.member.is_none() && self.is_empty()
    }

    /// Does the same as [`may_hand_over`](Self::may_hand_over), but returns false for a stream.
    #[inline]
    pub(super) fn hands_over(&self) -> bool {
        self.member.is_none() && self.inflow.is_none() && self.own.is_empty()
    }

    /// Makes the connection a stream. Returns the [`Inflow`], to which later messages go.
    pub(super) fn carry_bytes(&mut self) -> Arc<Inflow> {
        Arc::clone(self.inflow.get_or_insert_default())
    }

    /// Returns the queue of a stream. Returns `None` if the connection is not a stream or is in a
    /// group.
    pub(super) fn inflow(&self) -> Option<&Inflow> {
        let inflow = self.inflow.as_deref();
        inflow.filter(|_| self.member.is_none())
    }

    /// Appends a completion. Returns it as an error if the receiver was dropped.
    pub(super) fn put(&mut self, completion: Completion) -> Result<(), Completion> {
        let completion = match (completion, self.inflow()) {
            (Completion::Received(message), Some(inflow)) => {
                inflow.put(message);
                return Ok(());
            }
            (completion, _) => completion,
        };
        let has_id = completion.id().is_some();
        let at = self.put_at(completion)?;
        if has_id {
            self.reports.push_back(at);
        }
        Ok(())
    }

    /// Appends a completion, and returns its position: the number of completions that were put into
    /// the same queue before it. Returns the completion as an error if the receiver was dropped.
    fn put_at(&mut self, mut completion: Completion) -> Result<u64, Completion> {
        if let Some(member) = &mut self.member {
            match member.queue.put(member.key, completion) {
                Ok(at) => return Ok(at),
                Err(refused) => completion = refused,
            }
            // The group has been dropped.
            self.leave();
        }
        let at = self.put;
        self.own.put(completion)?;
        self.put += 1;
        Ok(at)
    }

    /// Appends the messages of one frame. If the receiver was dropped, returns the messages that
    /// were not appended.
    pub(super) fn put_messages(
        &mut self,
        messages: impl Iterator<Item = Message>,
    ) -> Vec<Completion> {
        if self.member.is_some() || self.inflow.is_some() {
            return messages
                .filter_map(|message| self.put(Completion::Received(message)).err())
                .collect();
        }
        let (put, refused) = self.own.put_messages(messages);
        self.put += put;
        refused
    }

    /// Appends [`Completion::Room`], unless an earlier `Room` is unread. Returns whether `Room` was
    /// appended.
    pub(super) fn put_room(&mut self) -> bool {
        let taken = self.taken();
        if self.room.is_some_and(|at| at >= taken) {
            return false;
        }
        self.room = self.put_at(Completion::Room).ok();
        self.room.is_some()
    }

    /// Appends [`Completion::Suspended`], unless the previous `Suspended` or `Resumed` is unread.
    /// Appends [`Completion::Resumed`] only if the preceding `Suspended` was appended. A stream
    /// reports neither. Returns whether the completion was appended.
    pub(super) fn put_session_event(&mut self, completion: Completion) -> bool {
        if let Completion::Suspended { .. } = completion {
            let taken = self.taken();
            self.skips_resumed =
                self.inflow.is_some() || self.session.is_some_and(|at| at >= taken);
        }
        if self.skips_resumed {
            return false;
        }
        self.session = self.put_at(completion).ok();
        self.session.is_some()
    }

    /// Returns the number of completions with ids that the application has not taken. Received
    /// messages are not included, because the peer's credit limits their number.
    pub(super) fn reports(&mut self) -> usize {
        if !self.reports.is_empty() {
            let taken = self.taken();
            while self.reports.front().is_some_and(|at| *at < taken) {
                self.reports.pop_front();
            }
        }
        self.reports.len()
    }

    /// Returns the number of completions that were taken from the current queue, which is the
    /// group's queue or the connection's own queue.
    fn taken(&self) -> u64 {
        match &self.member {
            Some(member) => member.queue.taken(),
            None => self.put - self.own.len() as u64,
        }
    }

    /// Returns true if the last thread that took completions from the group is not the calling
    /// thread. Returns `None` if the connection is in no group.
    pub(super) fn is_group_taken_by_other(&self) -> Option<bool> {
        let member = self.member.as_ref()?;
        Some(member.queue.taker.is_other_thread())
    }

    // Functions for groups.

    /// Returns whether the connection is in a group that still exists.
    pub(super) fn is_grouped(&self) -> bool {
        let member = self.member.as_ref();
        member.is_some_and(|member| !member.queue.is_closed())
    }

    /// Returns whether the connection is in this group.
    pub(super) fn is_in(&self, queue: &Arc<GroupQueue>) -> bool {
        let member = self.member.as_ref();
        member.is_some_and(|member| Arc::ptr_eq(&member.queue, queue))
    }

    /// Directs later completions of the connection to the queue of a group, with this key.
    pub(super) fn join(&mut self, queue: &Arc<GroupQueue>, key: u64, connection: u64) {
        self.member = Some(Member {
            queue: Arc::clone(queue),
            key,
            connection,
        });
        self.reports.clear();
        self.room = None;
        self.session = None;
    }

    /// Directs later completions to the connection's own queue.
    pub(super) fn leave(&mut self) {
        self.member = None;
        self.reports.clear();
        self.room = None;
        self.session = None;
    }
}

thread_local! {
    /// A variable whose address identifies the thread. In any two threads that exist at the same
    /// time, the variables have different addresses.
    static HERE: u8 = const { 0 };
}

/// The last thread that took completions or tried to take them.
///
/// While the number of untaken completions is `max_ids`, a blocking call in another thread can wait
/// until the taking thread takes a completion. A call in the taking thread must not wait, because
/// the wait would never end. Until a thread has taken completions, no call in any thread may wait.
#[derive(Debug, Default)]
pub(crate) struct Taker(AtomicUsize);

impl Taker {
    /// The maximum time for which a sender waits for another thread to take completions. The wait
    /// is limited, because that thread may have exited, or the program may expect the sending
    /// thread to take the completions.
    pub(super) const TIME_LIMIT: Duration = Duration::from_secs(5);

    /// Records that the calling thread takes completions.
    pub(crate) fn note_taking_thread(&self) {
        self.0.store(here(), Ordering::Relaxed);
    }

    /// Returns true if the last thread that took completions is not the calling thread. Returns
    /// false if no thread has taken completions.
    pub(super) fn is_other_thread(&self) -> bool {
        ![0, here()].contains(&self.0.load(Ordering::Relaxed))
    }
}

fn here() -> usize {
    // The access fails if the thread is exiting and has already destroyed its thread-local
    // variables.
    HERE.try_with(|here| ptr::from_ref(here).addr())
        .unwrap_or(0)
}

/// The queue of a group: it contains the completions of all connections in the group, each with the
/// connection's key, and has one receiver.
///
/// The queue is unbounded, because connections join and leave at any time. The number of
/// completions of each connection is bounded as in the connection's own queue: the window bounds
/// messages, and `max_ids` bounds operations.
///
/// A connection takes the lock of the queue while it holds its own locks. The lock of the queue is
/// held only to append one completion, to read the state of the queue, or to take out the sender.
#[derive(Debug)]
pub(crate) struct GroupQueue {
    tail: Mutex<Option<GroupSender>>,
    pub(crate) taker: Taker,
    pub(crate) members: Members,
}

/// The sender of a group's channel. [`GroupQueue`] does not contain the receiver, because the
/// receiver would complete a cycle of references that is never freed: unread messages in the
/// channel refer to their connections, and connections refer to the queue.
#[derive(Debug)]
struct GroupSender {
    sender: Sender<(u64, Completion)>,
    /// The total number of completions ever put into the queue.
    put: u64,
}

impl GroupQueue {
    pub(crate) fn new() -> (Arc<Self>, Receiver<(u64, Completion)>) {
        let (sender, receiver) = unbounded();
        let tail = GroupSender { sender, put: 0 };
        let queue = Self {
            tail: Mutex::new(Some(tail)),
            taker: Taker::default(),
            members: Members::default(),
        };
        (Arc::new(queue), receiver)
    }

    /// Appends a completion, and returns the number of completions that were put into the queue
    /// before it. Returns the completion as an error if the group was dropped.
    pub(super) fn put(&self, key: u64, completion: Completion) -> Result<u64, Completion> {
        let at = {
            let mut tail = lock(&self.tail);
            let Some(tail) = &mut *tail else {
                return Err(completion);
            };
            tail.sender
                .send((key, completion))
                .map_err(|refused| refused.into_inner().1)?;
            tail.put += 1;
            tail.put - 1
        };
        self.members.wake();
        Ok(at)
    }

    /// Returns the total number of completions that were taken from the queue; `u64::MAX` if the
    /// queue is closed.
    pub(super) fn taken(&self) -> u64 {
        match &*lock(&self.tail) {
            Some(tail) => tail.put - tail.sender.len() as u64,
            None => u64::MAX,
        }
    }

    /// Closes the queue after the group was dropped.
    pub(crate) fn close(&self) {
        // Dropping the sender may drop unread completions, and their release takes the locks of
        // connections. So the sender is dropped after the lock is released.
        let tail = lock(&self.tail).take();
        drop(tail);
        self.members.release();
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.tail).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        link::inbox::{Inbox, inbox},
        proto::CloseReason,
        transport_choice::Transport,
    };

    fn destination() -> (Destination, Inbox) {
        let (own, receiver) = inbox();
        (Destination::new(own), receiver)
    }

    #[test]
    fn room_is_reported_once_until_it_is_taken() {
        let (mut destination, own) = destination();
        destination.put(Completion::Sent(1)).unwrap();
        assert!(destination.put_room());
        assert!(!destination.put_room());
        assert!(matches!(own.take(), Some(Completion::Sent(1))));
        assert!(
            !destination.put_room(),
            "an unread `Room` must not be repeated"
        );
        assert!(matches!(own.take(), Some(Completion::Room)));
        assert!(destination.put_room());

        let (queue, group) = GroupQueue::new();
        destination.join(&queue, 7, 7);
        queue.put(8, Completion::Sent(1)).unwrap();
        assert!(destination.put_room());
        assert!(!destination.put_room());
        assert!(matches!(group.recv(), Ok((8, _))));
        assert!(!destination.put_room());
        assert!(matches!(group.recv(), Ok((7, Completion::Room))));
        assert!(destination.put_room());
    }

    #[test]
    fn untaken_ids_of_a_group_are_counted() {
        let (mut destination, _own) = destination();
        let (queue, group) = GroupQueue::new();
        destination.join(&queue, 7, 7);
        for id in 0..3 {
            destination.put(Completion::Sent(id)).unwrap();
            queue.put(8, Completion::Read(id)).unwrap();
            let reason = CloseReason::PeerClosed;
            destination.put(Completion::Disconnected(reason)).unwrap();
        }
        assert_eq!(destination.reports(), 3);
        for left in [2, 2, 2, 1] {
            group.recv().unwrap();
            assert_eq!(destination.reports(), left);
        }
    }

    #[test]
    fn only_ids_in_the_own_channel_are_counted() {
        let (mut destination, own) = destination();
        destination.put(Completion::Finished).unwrap();
        destination.put(Completion::Sent(1)).unwrap();
        destination.put(Completion::Finished).unwrap();
        destination.put(Completion::Written(2)).unwrap();
        for left in [2, 1, 1, 0] {
            own.take().unwrap();
            assert_eq!(destination.reports(), left);
        }
    }

    #[test]
    fn one_pair_of_a_session_waits_to_be_taken() {
        let (mut destination, own) = destination();
        let suspended = || {
            let reason = CloseReason::PeerDisconnected;
            Completion::Suspended { reason }
        };
        let resumed = |number| Completion::Resumed {
            number,
            resent: 0,
            transport: Transport::Tcp,
        };
        assert!(destination.put_session_event(suspended()));
        assert!(destination.put_session_event(resumed(1)));
        assert!(matches!(own.take(), Some(Completion::Suspended { .. })));
        assert!(!destination.put_session_event(suspended()));
        assert!(matches!(
            own.take(),
            Some(Completion::Resumed { number: 1, .. })
        ));
        assert!(
            !destination.put_session_event(resumed(2)),
            "`Resumed` must not be reported without its `Suspended`"
        );
        assert!(destination.put_session_event(suspended()));
        assert!(matches!(own.take(), Some(Completion::Suspended { .. })));
        assert!(destination.put_session_event(resumed(3)));
        assert!(matches!(
            own.take(),
            Some(Completion::Resumed { number: 3, .. })
        ));
        destination.carry_bytes();
        assert!(
            !destination.put_session_event(suspended()),
            "a stream must not report session events"
        );
    }

    #[test]
    fn a_group_that_is_gone_is_left() {
        let (mut destination, own) = destination();
        let (queue, group) = GroupQueue::new();
        destination.join(&queue, 7, 7);
        assert!(
            destination.is_grouped() && destination.is_in(&queue) && !destination.may_hand_over()
        );
        destination.put(Completion::Sent(1)).unwrap();
        queue.close();
        assert!(!destination.is_grouped());
        destination.put(Completion::Sent(2)).unwrap();
        assert!(!destination.is_in(&queue));
        assert!(matches!(own.take(), Some(Completion::Sent(2))));
        assert!(matches!(group.recv(), Ok((7, Completion::Sent(1)))));
        assert!(
            group.recv().is_err(),
            "the receiver must detect that the queue is closed"
        );
    }

    #[test]
    fn only_another_thread_is_elsewhere() {
        let taker = Taker::default();
        assert!(
            !taker.is_other_thread(),
            "no thread has taken completions yet"
        );
        taker.note_taking_thread();
        assert!(!taker.is_other_thread());
        thread::scope(|scope| {
            let elsewhere = scope.spawn(|| taker.is_other_thread());
            assert!(elsewhere.join().unwrap());
        });
    }
}
