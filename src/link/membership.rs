//! A connection goes into a group, and out of it.

use std::{iter, sync::Arc};

use super::{
    completion::Completion, core::Core, deferred::Later, group_queue::GroupQueue, link::Link,
};
use crate::error::Error;

impl Link {
    /// Has everything that happens from now on go to a group's queue, under this key, behind what
    /// `unread` takes out of the own channel. The engine's thread watches the connection from now
    /// on.
    pub(crate) fn join(
        self: &Arc<Self>,
        queue: &Arc<GroupQueue>,
        key: u64,
        unread: impl FnMut() -> Option<Completion>,
    ) -> Result<(), Error> {
        self.with_core(|core| {
            core.join(queue, key, unread)?;
            self.set_grouped(core.is_grouped());
            Ok::<_, Error>(())
        })?;
        // For threads that wait for what will not come.
        self.wake();
        self.poller.call_engine();
        Ok(())
    }

    /// Puts what a thread had taken out of the own channel when the connection joined.
    pub(crate) fn put_late(self: &Arc<Self>, unread: impl FnMut() -> Option<Completion>) {
        self.with_core(|core| {
            if core.is_grouped() {
                core.put_all(unread);
            }
        });
    }

    /// Has everything that happens from now on go to the own channel again. Returns whether it went
    /// to this group.
    pub(crate) fn leave(self: &Arc<Self>, queue: &Arc<GroupQueue>) -> bool {
        self.with_core(|core| {
            let outbox = core.completions.as_mut();
            let Some(outbox) = outbox.filter(|outbox| outbox.is_in(queue)) else {
                return false;
            };
            outbox.leave();
            self.set_grouped(false);
            true
        })
    }

    /// Whether what happens goes to a group, and not to those who ask the connection.
    pub(crate) fn is_grouped(&self) -> bool {
        if !self.may_be_grouped() {
            return false;
        }
        // Groups do not know their members: one that is gone is noticed here.
        let core = self.core();
        let grouped = core.is_grouped();
        self.set_grouped(grouped);
        grouped
    }

    /// A send that does not wait was refused: [`Completion::Room`] comes when another may succeed,
    /// unless the application watches the fd that says so.
    pub(crate) fn tell_of_room(self: &Arc<Self>) {
        if self.leave_room_to_engine() {
            return;
        }
        self.with_core(|core| {
            core.room_wanted = true;
            if !core.conn.is_blocked() {
                // It came between the refusal and this.
                core.room_came();
            }
        });
    }
}

impl Core {
    fn is_grouped(&self) -> bool {
        let outbox = self.completions.as_ref();
        outbox.is_some_and(|outbox| outbox.is_grouped())
    }

    fn join(
        &mut self,
        queue: &Arc<GroupQueue>,
        key: u64,
        mut unread: impl FnMut() -> Option<Completion>,
    ) -> Result<(), Error> {
        if let Some(outbox) = &mut self.completions {
            if outbox.is_grouped() {
                return Err(Error::Grouped);
            }
            outbox.join(queue, key);
            self.put_all(unread);
            return Ok(());
        }
        // It has ended; what was not taken by then is what there is.
        let Some(first) = unread() else {
            return Err(Error::Disconnected(self.reason()));
        };
        for completion in iter::once(first).chain(iter::from_fn(unread)) {
            if let Err(refused) = queue.put(key, completion) {
                self.deferred.later.push(Later::Drop(refused));
            }
        }
        Ok(())
    }

    fn put_all(&mut self, unread: impl FnMut() -> Option<Completion>) {
        for completion in iter::from_fn(unread) {
            let Some(outbox) = &mut self.completions else {
                self.deferred.later.push(Later::Drop(completion));
                continue;
            };
            if let Completion::Room = completion {
                outbox.put_room();
            } else if let Err(refused) = outbox.put(completion) {
                self.deferred.later.push(Later::Drop(refused));
            }
        }
    }

    /// There is room: tells who wanted to know.
    pub(super) fn room_came(&mut self) {
        if std::mem::take(&mut self.room_wanted)
            && let Some(outbox) = &mut self.completions
            && outbox.put_room()
        {
            self.deferred.arrived = true;
            self.deferred.wake = true;
        }
    }
}
