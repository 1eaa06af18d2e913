use std::{mem, task::Waker};

use rdmsg_os::foreign::{self, Panicked};

use super::primitives::{AtomicU8, AtomicU64, Mutex, Ordering, fence, lock};

/// The maximum number of wakers that `wake` removes from the list each time it holds the lock.
/// `wake` calls these wakers after releasing the lock.
const BATCH: usize = 4;

/// The wakers of waiting tasks. Each task waits for a set of events. The set is a `u8` with one bit
/// per kind of event.
///
/// A task first checks its condition. If the condition is not met, the task calls
/// [`wait`](Self::wait), checks once more, and only then returns `Pending`. A thread that causes an
/// event calls [`wake`](Self::wake) afterwards. The task and the thread each write before a
/// sequentially consistent fence and read after it. Therefore at least one of them sees the other's
/// write.
///
/// Wakers are foreign code: they are cloned, called and dropped while the lock is not held. Each of
/// these calls may poll or drop a task, and therefore call [`wait`](Self::wait) or
/// [`unregister`](Self::unregister).
#[derive(Debug)]
pub struct Wakers {
    /// The union of the events that the tasks await. If no task awaits an event, `wake` returns
    /// after a single load.
    awaited: AtomicU8,
    waiting: Mutex<Vec<Waiting>>,
    waiter_ids: AtomicU64,
}

/// Identifies the registration of a waiting task. At most one task at a time is registered under an
/// id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(u64);

#[derive(Debug)]
struct Waiting {
    waiter_id: WaiterId,
    /// The events that the task awaits, one bit for each kind.
    awaited: u8,
    waker: Waker,
}

impl WaiterId {
    /// Returns the waiter id shared by all tasks that wait for the same events and have no waiter
    /// id of their own. Of these tasks, only the one that registered last is woken.
    #[inline]
    pub const fn common(awaited: u8) -> Self {
        Self(awaited as u64)
    }
}

impl Default for Wakers {
    fn default() -> Self {
        Self {
            awaited: AtomicU8::new(0),
            // The memory is allocated here, because the first task may wait hours later, and
            // registering its waker should not allocate memory.
            waiting: Mutex::new(Vec::with_capacity(BATCH)),
            waiter_ids: AtomicU64::new(0),
        }
    }
}

impl Wakers {
    /// Returns a unique waiter id.
    pub fn new_waiter_id(&self) -> WaiterId {
        let number = self.waiter_ids.fetch_add(1, Ordering::Relaxed);
        // The numbers 0 to 255 belong to the common waiter ids.
        WaiterId(number + u64::from(u8::MAX) + 1)
    }

    /// Registers the task's waker for the `awaited` events. The first of these events wakes the
    /// task and ends the registration. The registration replaces an earlier one under the same
    /// waiter id.
    pub fn wait(&self, waiter_id: WaiterId, awaited: u8, waker: &Waker) {
        if self.awaited.load(Ordering::Relaxed) != 0 && self.has(waiter_id, awaited, waker) {
            return fence(Ordering::SeqCst);
        }
        let waker = waker.clone();
        let replaced = {
            let mut waiting = lock(&self.waiting);
            let replaced = match waiting
                .iter_mut()
                .find(|other| other.waiter_id == waiter_id)
            {
                Some(here) => {
                    here.awaited = awaited;
                    Some(mem::replace(&mut here.waker, waker))
                }
                None => {
                    waiting.push(Waiting {
                        waiter_id,
                        awaited,
                        waker,
                    });
                    None
                }
            };
            self.store_awaited(&waiting);
            replaced
        };
        drop(replaced);
        fence(Ordering::SeqCst);
    }

    /// Returns whether this waker is registered under this waiter id for these events. Comparing
    /// two wakers calls no foreign code.
    fn has(&self, waiter_id: WaiterId, awaited: u8, waker: &Waker) -> bool {
        let is_it = |other: &Waiting| other.waiter_id == waiter_id && other.awaited == awaited;
        let waiting = lock(&self.waiting);
        let here = waiting.iter().find(|other| is_it(other));
        here.is_some_and(|here| here.waker.will_wake(waker))
    }

    /// Removes the registration with this waiter id.
    pub fn unregister(&self, waiter_id: WaiterId) {
        if self.awaited.load(Ordering::Relaxed) == 0 {
            return;
        }
        let left = {
            let mut waiting = lock(&self.waiting);
            let at = waiting
                .iter()
                .position(|other| other.waiter_id == waiter_id);
            let left = at.map(|at| waiting.remove(at));
            self.store_awaited(&waiting);
            left
        };
        drop(left);
    }

    /// Returns whether a task awaits an event in the set `happened`. The caller must have made the
    /// event visible before this call. A task that registers later then sees the event when the
    /// task checks its condition.
    #[inline]
    pub fn is_awaited(&self, happened: u8) -> bool {
        fence(Ordering::SeqCst);
        self.awaited.load(Ordering::Relaxed) & happened != 0
    }

    /// Wakes each task that awaits an event in the set `happened`, and removes the task's
    /// registration. If a waker panics, calls all other wakers nevertheless, and then returns an
    /// error.
    #[inline]
    pub fn wake(&self, happened: u8) -> Result<(), Panicked> {
        if !self.is_awaited(happened) {
            return Ok(());
        }
        let mut all = Ok(());
        // This call looks only at the first `unseen` entries. A task that registers again during
        // this call is appended behind these entries, so the task is not woken twice.
        let mut unseen = usize::MAX;
        while unseen > 0 {
            let mut woken = [const { None }; BATCH];
            {
                let mut waiting = lock(&self.waiting);
                unseen = unseen.min(waiting.len());
                let mut slots = woken.iter_mut();
                let mut at = 0;
                while at < unseen {
                    if waiting[at].awaited & happened == 0 {
                        at += 1;
                        continue;
                    }
                    let Some(slot) = slots.next() else { break };
                    *slot = Some(waiting.remove(at).waker);
                    unseen -= 1;
                }
                if at == unseen {
                    unseen = 0;
                }
                self.store_awaited(&waiting);
            }
            for waker in woken.into_iter().flatten() {
                all = foreign::call(|| waker.wake()).and(all);
            }
        }
        all
    }

    /// Stores the union of the events in `waiting`. The caller holds the lock.
    fn store_awaited(&self, waiting: &[Waiting]) {
        let awaited = waiting.iter().fold(0, |all, one| all | one.awaited);
        self.awaited.store(awaited, Ordering::Relaxed);
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        let waiting = mem::take(&mut *lock(&self.waiting));
        // If a waker panics while it is dropped, the panic is ignored. Usually a panic of a waker
        // ends the connection, but this connection has already ended.
        for Waiting { waker, .. } in waiting {
            foreign::call_once(|| drop(waker));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicU32},
        },
        task::Wake,
        thread,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counts(many: usize) -> Vec<Arc<Count>> {
        (0..many).map(|_| Arc::default()).collect()
    }

    fn seen(counts: &[Arc<Count>]) -> Vec<u32> {
        let seen = |count: &Arc<Count>| count.0.load(Ordering::SeqCst);
        counts.iter().map(seen).collect()
    }

    #[test]
    fn tasks_awaiting_the_event_are_woken_once() {
        let wakers = Wakers::default();
        let counts = counts(9);
        for (number, count) in counts.iter().enumerate() {
            let awaited = if number % 3 == 0 { 1 } else { 2 };
            wakers.wait(
                wakers.new_waiter_id(),
                awaited,
                &Waker::from(Arc::clone(count)),
            );
        }
        wakers.wake(4).unwrap();
        assert_eq!(seen(&counts), [0; 9]);
        wakers.wake(2).unwrap();
        assert_eq!(seen(&counts), [0, 1, 1, 0, 1, 1, 0, 1, 1]);
        wakers.wake(3).unwrap();
        assert_eq!(seen(&counts), [1; 9]);
        wakers.wake(u8::MAX).unwrap();
        assert_eq!(seen(&counts), [1; 9], "no task may be woken twice");
    }

    #[test]
    fn id_wakes_last_task_and_not_after_unregister() {
        let wakers = Wakers::default();
        let counts = counts(3);
        let common = WaiterId::common(1);
        for count in &counts[..2] {
            wakers.wait(common, 1, &Waker::from(Arc::clone(count)));
        }
        let own = wakers.new_waiter_id();
        wakers.wait(own, 1, &Waker::from(Arc::clone(&counts[2])));
        wakers.unregister(own);
        wakers.wake(1).unwrap();
        assert_eq!(seen(&counts), [0, 1, 0]);
    }

    #[test]
    fn task_that_waits_again_is_woken_once_per_wake() {
        struct Again(Wakers, AtomicU32);

        impl Wake for Again {
            fn wake(self: Arc<Self>) {
                self.1.fetch_add(1, Ordering::SeqCst);
                let waker = Waker::from(Arc::clone(&self));
                self.0.wait(WaiterId::common(1), 1, &waker);
            }
        }

        let again = Arc::new(Again(Wakers::default(), AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&again));
        again.0.wait(WaiterId::common(1), 1, &waker);
        for round in 1..=3 {
            again.0.wake(1).unwrap();
            assert_eq!(again.1.load(Ordering::SeqCst), round);
        }
        again.0.unregister(WaiterId::common(1));
    }

    #[test]
    fn unregistering_in_waker_drop_does_not_deadlock() {
        struct Unregisters(Arc<Wakers>, WaiterId);

        impl Wake for Unregisters {
            fn wake(self: Arc<Self>) {}
        }

        impl Drop for Unregisters {
            fn drop(&mut self) {
                self.0.unregister(self.1);
            }
        }

        let wakers = Arc::new(Wakers::default());
        let waker = || {
            Waker::from(Arc::new(Unregisters(
                Arc::clone(&wakers),
                wakers.new_waiter_id(),
            )))
        };
        wakers.wait(WaiterId::common(1), 1, &waker());
        wakers.wait(WaiterId::common(1), 1, &waker());
        wakers.wake(1).unwrap();
        wakers.wait(WaiterId::common(1), 1, &waker());
        wakers.unregister(WaiterId::common(1));
    }

    /// A waker that panics when called if `in_wake` is true, and when dropped if `in_drop` is true.
    struct Fails {
        in_wake: bool,
        in_drop: bool,
    }

    impl Wake for Fails {
        fn wake(self: Arc<Self>) {
            assert!(!self.in_wake, "a waker that fails");
        }
    }

    impl Drop for Fails {
        fn drop(&mut self) {
            assert!(!self.in_drop, "a waker whose drop fails");
        }
    }

    #[test]
    fn waker_that_panics_keeps_no_other_from_waking() {
        let wakers = Wakers::default();
        let counts = counts(6);
        for (number, count) in counts.iter().enumerate() {
            wakers.wait(wakers.new_waiter_id(), 1, &Waker::from(Arc::clone(count)));
            let fails = Fails {
                in_wake: number == 1,
                in_drop: number == 3,
            };
            wakers.wait(wakers.new_waiter_id(), 1, &Waker::from(Arc::new(fails)));
        }
        assert_eq!(wakers.wake(1), Err(Panicked));
        assert_eq!(seen(&counts), [1; 6]);
        assert_eq!(wakers.wake(1), Ok(()), "no waker may be called twice");
    }

    #[test]
    fn waker_whose_drop_panics_is_dropped_quietly() {
        let wakers = Wakers::default();
        let fails = Fails {
            in_wake: false,
            in_drop: true,
        };
        wakers.wait(wakers.new_waiter_id(), 1, &Waker::from(Arc::new(fails)));
        drop(wakers);
    }

    #[test]
    fn no_wake_is_lost_between_producer_and_waiter() {
        struct Unpark(thread::Thread, AtomicBool);

        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.1.store(true, Ordering::SeqCst);
                self.0.unpark();
            }
        }

        const ITEMS: u32 = 20_000;
        let wakers = Wakers::default();
        let there = AtomicU32::new(0);
        thread::scope(|scope| {
            let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(false)));
            scope.spawn(|| {
                for _ in 0..ITEMS {
                    there.fetch_add(1, Ordering::Relaxed);
                    wakers.wake(1).unwrap();
                }
            });
            let waker = Waker::from(Arc::clone(&unpark));
            let mut taken = 0;
            while taken < ITEMS {
                wakers.wait(WaiterId::common(1), 1, &waker);
                let now = there.swap(0, Ordering::Relaxed);
                taken += now;
                while now == 0 && !unpark.1.swap(false, Ordering::SeqCst) {
                    thread::park();
                }
            }
        });
    }
}
