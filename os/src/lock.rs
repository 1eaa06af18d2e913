use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Condvar, LockResult, Mutex, MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

use crate::foreign::Pause;

/// A held lock. Until the thread has released all its locks, the lines that it logs wait: the
/// application's logger may call functions of the library, which may need the same lock.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a, T> {
    // Declared first, because fields are dropped in this order.
    held: MutexGuard<'a, T>,
    pause: Pause,
}

/// Acquires a lock, even if a thread panicked while it held the lock.
///
/// Poisoning can be ignored, because the state behind a lock is consistent even after a panic: each
/// state machine of the library applies an input completely or not at all.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
    Guard {
        held: unpoisoned(mutex.lock()),
        pause: Pause::begin(),
    }
}

/// Acquires a lock of the hot path: as [`lock`] does, but without a [`Pause`], which saves
/// instructions in each message. Until the caller has released the lock, it must log only with
/// [`error_elsewhere!`](crate::error_elsewhere) and the function
/// [`log_elsewhere`](crate::foreign::log_elsewhere).
#[inline]
pub fn lock_hot<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Acquires a lock as [`lock`] does, but without waiting. Returns `None` if the lock is held.
#[inline]
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<Guard<'_, T>> {
    let held = match mutex.try_lock() {
        Ok(held) => held,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let pause = Pause::begin();
    Some(Guard { held, pause })
}

impl<'a, T> Guard<'a, T> {
    /// Returns whether the release of this lock calls the logger.
    #[must_use]
    pub fn has_lines(&self) -> bool {
        self.pause.ends_with_lines()
    }

    /// Releases the lock, waits until `changed` is notified, for at most the time `limit` if there
    /// is one, and acquires the lock again. May also return earlier. `mutex` is the lock's mutex.
    pub fn wait(self, mutex: &'a Mutex<T>, changed: &Condvar, limit: Option<Duration>) -> Self {
        if self.has_lines() {
            // Without this, the lines would wait until this thread wakes up.
            drop(self);
            return lock(mutex);
        }
        let Self { held, pause } = self;
        let held = match limit {
            Some(limit) => unpoisoned(changed.wait_timeout(held, limit)).0,
            None => unpoisoned(changed.wait(held)),
        };
        Self { held, pause }
    }

    /// Waits as [`wait`](Self::wait) does, while `condition` returns true. After the time `limit`,
    /// returns even if `condition` is still true.
    pub fn wait_while(
        mut self,
        mutex: &'a Mutex<T>,
        changed: &Condvar,
        limit: Option<Duration>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Self {
        if self.has_lines() && condition(&mut self.held) {
            self = self.wait(mutex, changed, limit);
        }
        let Self { held, pause } = self;
        let held = match limit {
            Some(limit) => unpoisoned(changed.wait_timeout_while(held, limit, condition)).0,
            None => unpoisoned(changed.wait_while(held, condition)),
        };
        Self { held, pause }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}

impl<T: fmt::Debug> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Returns the result of a lock operation, a guard or the locked value, even if a thread panicked
/// while it held the lock.
pub fn unpoisoned<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use log::{LevelFilter, Log, Metadata, Record};

    use super::*;

    static OUTER: Mutex<()> = Mutex::new(());
    static INNER: Mutex<()> = Mutex::new(());
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// A logger that needs the locks of the thread that logs.
    struct Needy;

    impl Log for Needy {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            let line = record.args().to_string();
            if line.starts_with("needy: ") {
                let are_free = try_lock(&OUTER).is_some() && try_lock(&INNER).is_some();
                assert!(are_free, "{line}");
                lock(&LINES).push(line);
            }
        }

        fn flush(&self) {}
    }

    fn lines() -> usize {
        lock(&LINES).len()
    }

    #[test]
    fn lines_wait_until_their_thread_holds_no_lock() {
        log::set_logger(&Needy).unwrap();
        log::set_max_level(LevelFilter::Info);
        let outer = lock(&OUTER);
        let inner = lock(&INNER);
        info!(Process, "needy: with two locks");
        drop(outer);
        assert_eq!(lines(), 0);
        drop(inner);
        assert_eq!(lines(), 1);
        info!(Process, "needy: without a lock");
        assert_eq!(lines(), 2);
        // A thread that sleeps releases its lock, so it also logs.
        let (outer, changed) = (lock(&OUTER), Condvar::new());
        info!(Process, "needy: before a sleep");
        let outer = outer.wait_while(&OUTER, &changed, Some(Duration::from_secs(60)), |()| {
            lines() < 3
        });
        info!(Process, "needy: before another sleep");
        drop(outer.wait(&OUTER, &changed, None));
        assert_eq!(lines(), 4);
    }

    #[test]
    fn locks_outlive_a_panic_of_their_holder() {
        let mutex = Mutex::new(7);
        thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = mutex.lock();
                panic!("the holder fails");
            });
            assert!(holder.join().is_err());
        });
        assert!(mutex.is_poisoned());
        assert_eq!(try_lock(&mutex).as_deref(), Some(&7));
        let guard = lock(&mutex);
        assert_eq!(*guard, 7);
        assert!(
            try_lock(&mutex).is_none(),
            "`try_lock` must not acquire a held lock"
        );
    }
}
