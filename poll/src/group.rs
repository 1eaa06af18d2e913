//! Lets threads wait for a group of connections. A group has a poller of its own. One of the
//! waiting threads, the leader, sleeps until a member has a completion event, and then polls this
//! member.
//!
//! The group's threads own a member as an event loop owns a connection. If they do not poll, the
//! engine's thread takes the member over. The next thread that waits for the group takes the member
//! back. Each thread that puts a completion into the group's channel wakes the group's leader.

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
/// delaying the other members.
const MAX_POLLS_PER_TURN: u32 = 8;

/// The users that need the engine's thread to poll even if the threads of a group poll.
const ENGINE_USERS: &[Reliance] = &[
    Reliance::Peer,
    Reliance::Readable,
    Reliance::Writable,
    Reliance::Tasks,
];

/// Methods that are called on the poller of a group.
impl Poller {
    /// Creates the epoll on which the group's leader sleeps. The epoll will report the completion
    /// events of all members.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
    pub fn watch_members(&self) -> Result<Arc<GroupEvents>, OsError> {
        let alarm = self.prepare(None)?;
        Ok(Arc::new(GroupEvents::new(alarm)?))
    }
}

/// Methods that are called on the poller of a member.
impl Poller {
    /// Stores the [`GroupEvents`] of the group that the connection has joined.
    pub fn enter_group(&self, group: &Arc<GroupEvents>) {
        self.set_group(Some(Arc::clone(group)));
    }

    /// Makes the group's threads the owner if no user in `ENGINE_USERS` relies on the engine's
    /// thread. Returns true if the group's threads are now the owner. In this case, the caller must
    /// call [`poll_member`](Self::poll_member) next. The caller holds no lock.
    pub fn take_for_group(&self) -> bool {
        self.count_poll_as_loop(ENGINE_USERS);
        // If an event loop was the owner, the call above did not move the events. This call moves
        // them from the loop's epoll to the group's epoll.
        self.follow_owner();
        self.owner() == Owner::Loop
    }

    /// Returns whether a user relies on the engine's thread even if the threads of a group poll.
    pub fn needs_engine(&self) -> bool {
        ENGINE_USERS.iter().any(|user| self.relies(*user))
    }

    /// If a [`GroupEvents`] is stored, removes it and makes the engine's thread the owner. Called
    /// when the connection leaves the group, or when threads no longer poll the group's members.
    /// The caller holds no lock.
    pub fn leave_group(&self) {
        if self.set_group(None).is_some() {
            self.hand_back();
        }
    }

    /// Polls this member after an event, if the group's threads are the owner or if this call makes
    /// them the owner. A thread that waits for the group calls this method.
    pub fn poll_member(&self, queue: &impl Completions) {
        self.count_poll_as_loop(ENGINE_USERS);
        if self.owner() != Owner::Loop {
            return;
        }
        let is_level_triggered = queue.is_level_triggered();
        if !is_level_triggered && let Some((events, _)) = queue.events() {
            events.clear();
        }
        let mut polls = 1..=MAX_POLLS_PER_TURN;
        if polls.all(|_| queue.arm_and_poll(Answers::AtOnce) == Progress::More) {
            self.call_engine();
        }
        if is_level_triggered && queue.events().is_some_and(|(_, has_ended)| has_ended) {
            // The events stay readable until the engine's thread ends the connection, so the
            // group's leader could not sleep on an epoll that contains them. This call removes them
            // from the group's epoll.
            self.hand_back();
        }
    }

    /// Stores the [`GroupEvents`] of the connection's group, or removes the stored one if `group`
    /// is `None`. Returns the previously stored [`GroupEvents`].
    fn set_group(&self, group: Option<Arc<GroupEvents>>) -> Option<Arc<GroupEvents>> {
        mem::replace(&mut lock(&self.watched).group, group)
    }

    /// Returns the number of times that the threads of the connection's group have polled any
    /// member, modulo 2³². Returns 0 if no [`GroupEvents`] is stored.
    pub(super) fn group_turns(&self) -> u32 {
        let watched = lock(&self.watched);
        watched.group.as_ref().map_or(0, |group| group.turns())
    }

    /// Makes the engine's thread the owner immediately, so that the group's epoll no longer
    /// contains the completion events. Then asks that thread to poll.
    fn hand_back(&self) {
        self.expire();
        self.call_engine();
    }
}
