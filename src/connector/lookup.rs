//! Looks up host names in separate threads, so that no task blocks while a name server answers.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    thread,
};

use crate::{
    addresses::{Addresses, ToAddresses},
    engine::{Promise, PromiseSender},
    os::{PerProcess, lock},
};

/// The maximum number of concurrent lookups. Further names wait.
const MAX_THREADS: usize = 8;

/// The names that wait for a lookup thread, and the number of these threads.
#[derive(Default)]
struct Lookups {
    waiting: VecDeque<(String, PromiseSender<Addresses>)>,
    threads: usize,
}

static LOOKUPS: PerProcess<Mutex<Lookups>> = PerProcess::new(Mutex::default);

/// Looks up a host name in another thread. [`Promise::give_up`] cancels a lookup that has not
/// begun.
pub(super) fn look_up(name: String) -> Arc<Promise<Addresses>> {
    let (promise, promise_sender) = Promise::new();
    let mut lookups = lock(LOOKUPS.get());
    lookups.waiting.push_back((name, promise_sender));
    if lookups.threads < MAX_THREADS {
        let thread = thread::Builder::new().name("rdmsg-lookup".into());
        match thread.spawn(work) {
            Ok(_) => lookups.threads += 1,
            Err(_) if lookups.threads > 0 => {}
            // If there is no lookup thread and none can be started, this thread looks up the name,
            // which blocks the task.
            Err(_) => {
                lookups.threads += 1;
                drop(lookups);
                work();
            }
        }
    }
    promise
}

/// Looks up waiting names until none is left.
fn work() {
    loop {
        let next = {
            let mut lookups = lock(LOOKUPS.get());
            let next = lookups.waiting.pop_front();
            if next.is_none() {
                lookups.threads -= 1;
            }
            next
        };
        let Some((name, promise_sender)) = next else {
            return;
        };
        if promise_sender.has_waiter() {
            // If the task's waker panics, the task may never take the result. Unlike a connection,
            // addresses need no cleanup, so the second argument does nothing.
            promise_sender.keep(name.to_addresses(), || ());
        }
    }
}

/// Converts `target` to addresses. Looks up a host name in another thread, without blocking the
/// task.
#[cfg(feature = "tokio")]
pub(crate) async fn addresses(target: impl ToAddresses) -> Result<Addresses, crate::error::Error> {
    match target.name() {
        Some(name) => {
            let promise = look_up(name);
            std::future::poll_fn(|cx| promise.poll(cx)).await
        }
        None => target.to_addresses(),
    }
}
