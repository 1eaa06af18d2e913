//! The members of a group. A thread that waits for the group's completions polls each member that
//! has an event.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam_channel::Receiver;

use super::{completion::Completion, link::Link};
use crate::{
    os::lock,
    poll::{
        Answers, Completions, Deadline, GroupEvents, Mailbox, NoticeSender, Poller, Polling,
        Progress, TimedOut,
    },
    status::OsError,
};

/// The connections in a group. Each is identified by its number in the process, because the keys
/// that the application chooses need not be unique.
#[derive(Debug)]
pub(crate) struct Members {
    /// Decides which of the threads that wait for the group's completions polls the members.
    poller: Poller,
    /// The events of the members. Created when a thread first waits for a completion.
    events: OnceLock<Arc<GroupEvents>>,
    /// Whether threads that wait for the group's completions poll the members. If not, the engine's
    /// thread polls the members for the users of the group's channel.
    are_polled: AtomicBool,
    /// A thread may take this lock while it holds the locks of a connection. While it holds this
    /// lock, the thread takes no locks except those of `events`.
    links: Mutex<HashMap<u64, Weak<Link>>>,
}

/// A view of the group's queue, for one call of the application.
#[derive(Clone, Copy)]
struct Queue<'a> {
    members: &'a Members,
    events: &'a Arc<GroupEvents>,
    completions: &'a Receiver<(u64, Completion)>,
}

impl Default for Members {
    fn default() -> Self {
        Self {
            // No engine receives notices from a group's poller, so the mailbox is closed.
            poller: Poller::new(Polling::Event, NoticeSender::new(0, Mailbox::closed())),
            events: OnceLock::new(),
            are_polled: AtomicBool::new(false),
            links: Mutex::default(),
        }
    }
}

impl Members {
    /// Adds a connection. The next thread that waits for the group's completions takes over the
    /// polling of the connection.
    pub(super) fn add(&self, link: &Arc<Link>) {
        lock(&self.links).insert(link.key, Arc::downgrade(link));
        if let Some(events) = self.events.get() {
            events.mark_absent(link.key);
        }
    }

    pub(super) fn remove(&self, key: u64) {
        lock(&self.links).remove(&key);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.links).len()
    }

    /// Wakes the threads that wait for the group, after a completion was put into the group's
    /// queue.
    #[inline]
    pub(super) fn wake(&self) {
        self.poller.wake();
    }

    /// If the threads that wait for the group poll the members, ends this, and makes the engine's
    /// thread poll them. The caller holds no lock.
    pub(crate) fn release(&self) {
        // A program that uses only the channel may call this function often. The load is then
        // cheaper than a swap.
        if !self.are_polled.load(Ordering::Acquire)
            || !self.are_polled.swap(false, Ordering::AcqRel)
        {
            return;
        }
        let links: Vec<_> = lock(&self.links)
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for link in links {
            link.poller.leave_group();
        }
    }

    /// Waits until `take` returns a value. The calling thread polls the members if no other thread
    /// does. `completions` is the channel of the group.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
    pub(crate) fn wait_until<T>(
        &self,
        completions: &Receiver<(u64, Completion)>,
        deadline: &Deadline,
        take: impl FnMut() -> Option<T>,
    ) -> Result<Result<T, TimedOut>, OsError> {
        let queue = Queue {
            members: self,
            events: self.watch()?,
            completions,
        };
        Ok(self.poller.wait_until(&queue, deadline, take))
    }

    /// Makes the threads that wait for the group's completions poll the members, and returns the
    /// events of the members. Before such a thread next sleeps, it takes over the members from the
    /// engine's thread.
    fn watch(&self) -> Result<&Arc<GroupEvents>, OsError> {
        let events = match self.events.get() {
            Some(events) => events,
            None => {
                let events = self.poller.watch_members()?;
                self.events.get_or_init(|| events)
            }
        };
        if !self.are_polled.load(Ordering::Acquire) && !self.are_polled.swap(true, Ordering::AcqRel)
        {
            for key in lock(&self.links).keys() {
                events.mark_absent(*key);
            }
        }
        Ok(events)
    }

    fn link(&self, key: u64) -> Option<Arc<Link>> {
        lock(&self.links).get(&key)?.upgrade()
    }

    /// Makes the threads of the group the owner of a member, and polls the member. Does neither if
    /// the member has no transport.
    fn take_over(&self, key: u64, events: &Arc<GroupEvents>) {
        let Some(link) = self.link(key) else { return };
        self.are_polled.store(true, Ordering::Release);
        link.poller.enter_group(events);
        // A member without a transport has no events. When its next transport is registered,
        // `GroupEvents::mark_absent` makes a waiting thread take over the member.
        if link.has_events() {
            if link.poller.take_for_group() {
                link.poll_as_member();
            } else if !link.poller.needs_engine() {
                // The engine's thread became the owner at the same time, because of an earlier
                // request. The next thread that waits for the group tries again.
                events.mark_absent(key);
            }
        }
        // A thread that removes a connection from the group first removes it from `links`, and then
        // calls `leave_group`. If the connection is no longer in `links`, that thread may have
        // called `leave_group` before this thread called `enter_group` above. So this thread calls
        // `leave_group`, too.
        if !lock(&self.links).contains_key(&key) {
            link.poller.leave_group();
        }
    }
}

impl Completions for Queue<'_> {
    type Events = GroupEvents;

    /// Polls the members that have an event, until the channel contains a completion or no such
    /// member remains.
    fn poll(&self, _: u32, _: Answers) -> Progress {
        while self.completions.is_empty() {
            let Some(key) = self.events.next_ready() else {
                return Progress::Nothing;
            };
            if let Some(link) = self.members.link(key) {
                link.poll_as_member();
            }
        }
        Progress::Some
    }

    fn arm_and_poll(&self, answers: Answers) -> Progress {
        self.poll(1, answers)
    }

    fn events(&self) -> Option<(impl Deref<Target = GroupEvents>, bool)> {
        for key in self.events.take_absent() {
            self.members.take_over(key, self.events);
        }
        Some((&**self.events, false))
    }

    fn is_level_triggered(&self) -> bool {
        true
    }

    fn was_polled(&self) -> bool {
        false
    }

    fn delivering_to_channel(&self) -> Self {
        *self
    }

    fn awaits_large(&self) -> bool {
        false
    }

    fn receive(&self, _: &GroupEvents, _: &Deadline, _: impl Fn() -> bool) -> bool {
        false
    }
}
