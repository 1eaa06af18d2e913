//! Implements waiting for groups. A group has a poller of its own, whose leader sleeps on the
//! completion events of all members, and polls the members that have an event.
//!
//! The group's threads own a member in the same way as an event loop does. If they do not poll, the
//! engine's thread takes the member over. The next thread that waits for the group takes it back.
//! Each thread that puts a completion into the queue of the group wakes the group's leader.

use std::{mem, sync::Arc};

use rdma_status::OsError;

use super::{
    completions::{Answers, Completions, Events, Progress},
    group_events::GroupEvents,
    poller::Poller,
    sys::lock,
    word::{Owner, Reliance},
};

/// The maximum number of polls of a member after one event. The limit keeps a busy member from
/// delaying others.
const MAX_POLLS_PER_TURN: u32 = 8;

/// The users that need the engine's thread to poll even if the threads of a group poll.
const ENGINE_USERS: &[Reliance] = &[
    Reliance::Peer,
    Reliance::Readable,
    Reliance::Writable,
    Reliance::Tasks,
];

/// Methods of the poller of a group.
impl Poller {
    /// Creates the events of the members on which the group's leader sleeps.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
    pub fn watch_members(&self) -> Result<Arc<GroupEvents>, OsError> {
        let alarm = self.prepare(None)?;
        Ok(Arc::new(GroupEvents::new(alarm)?))
    }
}

/// Methods of the poller of a member.
impl Poller {
    /// Stores the events of the connection's group.
    pub fn enter_group(&self, group: &Arc<GroupEvents>) {
        self.set_group(Some(Arc::clone(group)));
    }

    /// Makes the threads of the group the owner, unless a user relies on the engine's thread.
    /// Returns whether they are the owner. If so, the caller calls
    /// [`poll_member`](Self::poll_member) next. The caller holds no lock.
    pub fn take_for_group(&self) -> bool {
        self.count_poll_as_loop(ENGINE_USERS);
        // An event loop may have been the owner, so the owner may not have changed.
        self.follow_owner();
        self.owner() == Owner::Loop
    }

    /// Makes the engine's thread the owner, because the connection leaves the group, or because no
    /// thread that waits for the group polls. The caller holds no lock.
    pub fn leave_group(&self) {
        if self.set_group(None).is_some() {
            self.hand_back();
        }
    }

    /// Polls a member after an event, in a thread that waits for the group.
    pub fn poll_member(&self, queue: &impl Completions) {
        self.count_poll_as_loop(ENGINE_USERS);
        if self.owner() != Owner::Loop {
            return;
        }
        let stays_readable = queue.stays_readable();
        if !stays_readable && let Some((events, _)) = queue.events() {
            events.clear();
        }
        let mut polls = 1..=MAX_POLLS_PER_TURN;
        if polls.all(|_| queue.arm_and_poll(Answers::AtOnce) == Progress::More) {
            self.call_engine();
        }
        if stays_readable && queue.events().is_some_and(|(_, has_ended)| has_ended) {
            // The events stay readable until the engine's thread ends the connection.
            self.hand_back();
        }
    }

    /// Stores the events of the connection's group, or removes them. Returns the previous ones.
    fn set_group(&self, group: Option<Arc<GroupEvents>>) -> Option<Arc<GroupEvents>> {
        mem::replace(&mut lock(&self.watched).group, group)
    }

    /// Returns the number of members that the threads of the connection's group have polled, modulo
    /// 2³², or 0 if the connection is in no group.
    pub(super) fn group_turns(&self) -> u32 {
        let watched = lock(&self.watched);
        watched.group.as_ref().map_or(0, |group| group.turns())
    }

    /// Makes the engine's thread the owner at once, so that no event remains in the epoll of the
    /// group.
    fn hand_back(&self) {
        self.expire();
        self.call_engine();
    }
}
