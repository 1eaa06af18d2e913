use std::{
    mem,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use crate::{
    error::Error,
    os::{foreign, lock},
};

/// The reply that a task awaits: a connection, or the addresses of a host.
#[derive(Debug)]
pub(crate) struct Promise<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    Open {
        /// The key of the connection, after its attempt has begun.
        key: Option<u64>,
        waker: Option<Waker>,
    },
    Kept(Result<T, Error>),
    /// The task has received the result, or has cancelled the attempt.
    Over,
}

/// The sending side of a promise. Dropping it fails the promise with [`Error::EngineShutDown`].
#[derive(Debug)]
pub(crate) struct PromiseSender<T>(Arc<Promise<T>>);

impl<T> Promise<T> {
    pub(crate) fn new() -> (Arc<Self>, PromiseSender<T>) {
        let state = State::Open {
            key: None,
            waker: None,
        };
        let promise = Arc::new(Self(Mutex::new(state)));
        (Arc::clone(&promise), PromiseSender(promise))
    }

    /// Returns the reply if it has arrived. If not, registers the task, so that the reply wakes it.
    /// Panics if an earlier poll has returned the reply, or if the promise was cancelled.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, Error>> {
        let mine = cx.waker().clone();
        let mut state = lock(&self.0);
        match &mut *state {
            State::Open { waker, .. } => {
                // The lock is released first, because dropping a waker runs foreign code.
                let replaced = waker.replace(mine);
                drop(state);
                drop(replaced);
                Poll::Pending
            }
            State::Kept(_) => match mem::replace(&mut *state, State::Over) {
                State::Kept(result) => Poll::Ready(result),
                State::Open { .. } | State::Over => Poll::Pending,
            },
            State::Over => panic!("a promise must not be polled after its reply was taken"),
        }
    }

    /// Cancels the promise. Returns the key of the connection attempt to cancel, if the attempt has
    /// begun and has no result yet.
    pub(crate) fn give_up(&self) -> Option<u64> {
        let state = mem::replace(&mut *lock(&self.0), State::Over);
        match state {
            State::Open { key, .. } => key,
            State::Kept(_) | State::Over => None,
        }
    }
}

impl<T> PromiseSender<T> {
    /// Returns whether the task still waits for the reply.
    pub(crate) fn has_waiter(&self) -> bool {
        matches!(*lock(&self.0.0), State::Open { .. })
    }

    /// Stores the key of the connection that this attempt establishes. Returns whether the task
    /// still waits.
    pub(super) fn begin(&self, number: u64) -> bool {
        match &mut *lock(&self.0.0) {
            State::Open { key, .. } => {
                *key = Some(number);
                true
            }
            State::Kept(_) | State::Over => false,
        }
    }

    /// Completes the promise. Calls `on_panic` if the task's waker panics, because the task might
    /// then never take the result.
    pub(crate) fn keep(self, result: Result<T, Error>, on_panic: impl FnOnce() + Send + 'static) {
        self.set(result, on_panic);
    }

    fn set(&self, result: Result<T, Error>, on_panic: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0.0);
        let State::Open { waker, .. } = &mut *state else {
            // The promise has been kept already, or the task has cancelled the attempt. The lock is
            // released first, because dropping the result closes its connection.
            drop(state);
            return drop(result);
        };
        let waker = waker.take();
        *state = State::Kept(result);
        drop(state);
        if let Some(waker) = waker {
            foreign::call_once(|| {
                if foreign::call(|| waker.wake()).is_err() {
                    on_panic();
                }
            });
        }
    }
}

impl<T> Drop for PromiseSender<T> {
    fn drop(&mut self) {
        // The error contains no connection that would have to be closed, so `on_panic` does
        // nothing.
        self.set(Err(Error::EngineShutDown), || ());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn kept_promise_wakes_task_and_is_taken_once() {
        let (promise, promise_sender) = Promise::<()>::new();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        assert!(promise.poll(&cx).is_pending());
        assert!(promise_sender.begin(7));
        promise_sender.keep(Err(Error::TimedOut), || ());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(matches!(
            promise.poll(&cx),
            Poll::Ready(Err(Error::TimedOut))
        ));
        assert_eq!(promise.give_up(), None);
    }

    #[test]
    fn dropped_sender_fails_the_promise() {
        let (promise, promise_sender) = Promise::<()>::new();
        drop(promise_sender);
        let cx = Context::from_waker(Waker::noop());
        assert!(matches!(
            promise.poll(&cx),
            Poll::Ready(Err(Error::EngineShutDown))
        ));
    }

    #[test]
    fn abandoned_command_is_cancelled_or_never_begun() {
        let (promise, promise_sender) = Promise::<()>::new();
        assert!(promise_sender.begin(7));
        assert_eq!(promise.give_up(), Some(7));
        promise_sender.keep(Err(Error::TimedOut), || ());

        let (promise, promise_sender) = Promise::<()>::new();
        assert_eq!(promise.give_up(), None);
        assert!(!promise_sender.begin(8));
    }
}
