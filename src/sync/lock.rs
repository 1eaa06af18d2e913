use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, whether or not a thread panicked while holding it. State machines apply each input
/// whole, so no half-done state is left behind that matters more than going on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
