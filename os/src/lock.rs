use std::sync::{LockResult, Mutex, MutexGuard, PoisonError, TryLockError};

/// Acquires a lock, even if a thread panicked while it held the lock.
///
/// Poisoning can be ignored, because the state behind a lock is consistent even after a panic: each
/// state machine of the library applies an input completely or not at all.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Acquires a lock as [`lock`] does, but without waiting. Returns `None` if the lock is held.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
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

    use super::*;

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
