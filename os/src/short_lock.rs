//! A lock for short critical sections on the hot path.
//!
//! It is a mutex with two differences from that of the standard library. It is not poisoned if its
//! holder panics, because [`lock`](crate::lock()) ignores poisoning as well. So an uncontended
//! acquisition is one atomic exchange, and so is a release, without a check for panics. And it has
//! no condition variable.
//!
//! `state` decides:
//!
//! * `FREE` → `HELD`: a thread acquires the lock.
//! * `HELD` or `FREE` → `AWAITED`: a thread that finds the lock held notes that it is about to
//!   sleep. If it replaces `FREE` it has acquired the lock instead, and `AWAITED` stays, because
//!   other threads may sleep.
//! * any → `FREE`: the holder releases the lock. If it replaces `AWAITED`, it wakes one thread,
//!   which notes again that threads may sleep.
//!
//! A thread sleeps in futex(2) only while `state` is `AWAITED`, which the kernel checks under a
//! lock of its own. So the release that replaces `AWAITED` finds each thread asleep or awake, and
//! no wake-up is lost.
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    fmt, hint,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    panic::{RefUnwindSafe, UnwindSafe},
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and threads may sleep until it is released.
const AWAITED: u32 = 2;

/// The number of looks at a held lock before a thread sleeps.
const SPINS: u32 = 100;

/// A mutex without poisoning, as described at the top of this file.
pub struct ShortLock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock accesses the value, so threads hand the value to each other,
// for which `T: Send` suffices.
unsafe impl<T: Send> Sync for ShortLock<T> {}

// As for the mutex of the standard library after its poisoning is ignored.
impl<T> UnwindSafe for ShortLock<T> {}
impl<T> RefUnwindSafe for ShortLock<T> {}

/// The access to the value of a [`ShortLock`]. Dropping it releases the lock.
#[must_use = "the lock is released at once if the guard is not used"]
pub struct ShortGuard<'a, T> {
    lock: &'a ShortLock<T>,
    /// The guard stays in its thread, as that of the standard library does.
    here: PhantomData<*const ()>,
}

impl<T> ShortLock<T> {
    /// Creates a lock that is free.
    pub const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Acquires the lock. Waits while another thread holds it.
    #[inline(always)]
    pub fn lock(&self) -> ShortGuard<'_, T> {
        if !self.acquire() {
            self.wait();
        }
        self.guard()
    }

    /// Acquires the lock. Returns `None` if another thread holds it.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<ShortGuard<'_, T>> {
        self.acquire().then(|| self.guard())
    }

    #[inline(always)]
    fn acquire(&self) -> bool {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Returns a guard to the thread that has acquired the lock.
    #[inline(always)]
    fn guard(&self) -> ShortGuard<'_, T> {
        ShortGuard {
            lock: self,
            here: PhantomData,
        }
    }

    /// Acquires a lock that another thread holds.
    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            match self.state.load(Ordering::Relaxed) {
                FREE if self.acquire() => return,
                // Other threads wait already.
                AWAITED => break,
                _ => hint::spin_loop(),
            }
        }
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            self.sleep();
        }
    }

    /// Sleeps until a release wakes this thread, unless the lock has been released already. May
    /// return early.
    fn sleep(&self) {
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let no_limit = ptr::null::<libc::timespec>();
        // SAFETY: the address is that of a living atomic, and the kernel writes nothing. The result
        // does not matter, because the caller checks the state again.
        unsafe { libc::syscall(libc::SYS_futex, self.state.as_ptr(), op, AWAITED, no_limit) };
    }

    /// Wakes one thread that sleeps.
    #[cold]
    fn wake_one(&self) {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel only compares the address with those on which threads sleep. It
        // accesses no memory there, which may have been freed if no thread sleeps.
        unsafe { libc::syscall(libc::SYS_futex, self.state.as_ptr(), op, 1) };
    }
}

impl<T> Deref for ShortGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock while the guard exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ShortGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ShortGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == AWAITED {
            self.lock.wake_one();
        }
    }
}

impl<T> fmt::Debug for ShortLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShortLock").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ShortGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShortGuard").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{self, AssertUnwindSafe},
        thread,
    };

    use super::*;

    /// More threads than processors, so that many find the lock held, and sleep.
    #[test]
    fn threads_hold_the_lock_one_at_a_time() {
        const THREADS: u64 = 8;
        const TURNS: u64 = 5_000;
        let lock = ShortLock::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for number in 0..THREADS {
                let lock = &lock;
                scope.spawn(move || {
                    for turn in 0..TURNS {
                        let mut pair = match lock.try_lock() {
                            Some(guard) if turn % 2 == 0 => guard,
                            guard => {
                                drop(guard);
                                lock.lock()
                            }
                        };
                        assert_eq!(pair.0, pair.1, "no other thread is between the two");
                        pair.0 += 1;
                        if turn % 64 == number {
                            thread::yield_now();
                        }
                        pair.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (THREADS * TURNS, THREADS * TURNS));
        assert_eq!(lock.state.load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn sleeping_threads_are_all_woken() {
        let lock = ShortLock::new(0);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| *lock.lock() += 1);
            }
            while lock.state.load(Ordering::Relaxed) != AWAITED {
                thread::yield_now();
            }
            drop(guard);
        });
        assert_eq!(*lock.lock(), 4);
    }

    #[test]
    fn panic_of_the_holder_releases_the_lock() {
        let lock = ShortLock::new(7);
        let failed = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut guard = lock.lock();
            *guard = 8;
            panic!("the holder fails");
        }));
        assert!(failed.is_err());
        assert_eq!(lock.try_lock().as_deref(), Some(&8));
    }
}
