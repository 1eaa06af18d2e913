//! The items of a listener: connections or requests.
//!
//! If the kernel's queue of requests is full, the kernel drops a new request, and the peer repeats
//! the request only four seconds later. So the engine requests the longest queue that the kernel
//! allows, reads requests from it immediately, and manages the backlog itself. The engine rejects a
//! request as busy if `ListenerBuilder::backlog` items wait or `ListenerBuilder::half_open`
//! connections are not established yet. It checks the backlog again when it establishes the
//! connection, so the limit is exact. When the program drops the listener, or the engine shuts
//! down, each connection that the program has not taken ends with a Failure. The code of the
//! Failure tells the peer that the program has received none of its messages.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, OnceLock},
    task::Waker,
};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::{
    endpoint::Endpoint,
    engine::{Engine, Established, Incoming, Request},
    error::Error,
    local::StandIn,
    os::{
        PerProcess,
        foreign::{self, ForeignCall, PendingWork},
        lock,
    },
    poll::{Readiness, WaiterId, Wakers},
};

/// An item of the channel of connections.
pub(super) type Accepted = Result<Endpoint, Error>;

/// A listener's items that the program has not taken, followed by the end of the listener.
///
/// The engine's thread appends items and limits their number. Any thread can take items.
#[derive(Debug)]
pub(super) struct Arrivals<T> {
    items: Receiver<T>,
    /// The sender of the channel; `None` after the end.
    sender: Mutex<Option<Sender<T>>>,
    /// The reason why the listener ended.
    end: OnceLock<Error>,
    readiness: Readiness,
    tasks: Arc<Tasks>,
}

/// The tasks that wait for an item.
#[derive(Debug, Default)]
struct Tasks {
    wakers: Wakers,
    /// The listener's name for the log; unset until the listener is bound.
    name: OnceLock<String>,
    /// Whether the tasks must be woken.
    pending_work: PendingWork<()>,
}

/// The established connections that the program has not taken.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) arrivals: Arrivals<Accepted>,
    /// The engine that serves the connections.
    engine: Engine,
}

impl<T> Arrivals<T> {
    pub(super) fn new() -> Self {
        let (sender, items) = unbounded();
        Self {
            items,
            sender: Mutex::new(Some(sender)),
            end: OnceLock::new(),
            readiness: Readiness::default(),
            tasks: Arc::default(),
        }
    }

    /// Returns the `Arrivals` of a listener that has ended with [`Error::Forked`]. A forked child
    /// uses it instead of an inherited one.
    fn forked() -> Self {
        let arrivals = Self::new();
        arrivals.close(Error::Forked, None);
        arrivals
    }

    /// Sets the listener's name for the log.
    pub(super) fn listens(&self, name: String) {
        self.tasks.name.get_or_init(|| name);
    }

    /// Returns the channel of the items. The channel ends when the listener ends.
    pub(super) fn items(&self) -> &Receiver<T> {
        &self.items
    }

    /// Returns the reason why the listener ended, or `None` while it is open.
    pub(super) fn ended(&self) -> Option<Error> {
        self.end.get().cloned()
    }

    /// Returns the reason why the listener ended. If none was stored, the engine was shut down.
    pub(super) fn end(&self) -> Error {
        self.ended().unwrap_or(Error::EngineShutDown)
    }

    /// Returns the fd for event loops.
    pub(super) fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let fd = self.readiness.fd().map_err(Error::from_os)?;
        self.announce();
        Ok(fd)
    }

    /// Makes the fd readable if there is an item or the listener has ended, and unreadable if not.
    /// Called by a thread that has tried to take an item.
    pub(super) fn update_readiness(&self) {
        self.readiness.update(|| self.is_ready());
    }

    /// Makes the fd readable if there is an item or the listener has ended, and wakes tasks. Called
    /// by the thread that added an item, ended the listener, or created the fd.
    fn announce(&self) {
        self.readiness.announce(|| self.is_ready());
        if !foreign::collects() {
            self.tasks.wake();
        } else if self.tasks.wakers.is_awaited(u8::MAX) && self.tasks.pending_work.add(|()| ()) {
            foreign::defer(Arc::<Tasks>::clone(&self.tasks));
        }
    }

    /// Returns a new waiter id for a future, so that its task waits independently of other tasks.
    #[cfg(feature = "tokio")]
    pub(super) fn new_waiter_id(&self) -> WaiterId {
        self.tasks.wakers.new_waiter_id()
    }

    /// Registers the task to be woken when there is an item or the listener ends. Afterwards the
    /// caller must try to take an item again, because one may have arrived before the registration.
    pub(super) fn wait(&self, waiter_id: WaiterId, waker: &Waker) {
        self.tasks.wakers.wait(waiter_id, 1, waker);
    }

    /// Removes the task with this waiter id.
    pub(super) fn unregister(&self, waiter_id: WaiterId) {
        self.tasks.wakers.unregister(waiter_id);
    }

    fn is_ready(&self) -> bool {
        !self.items.is_empty() || self.end.get().is_some()
    }

    /// Appends an item. Returns it to the caller if the listener has ended.
    fn append(&self, item: T) -> Result<(), T> {
        let appended = match &*lock(&self.sender) {
            Some(sender) => sender.send(item).map_err(|refused| refused.into_inner()),
            None => Err(item),
        };
        self.announce();
        appended
    }

    /// Appends `last`, if there is one, and ends the channel. Stores `why` as the reason for the
    /// end.
    fn close(&self, why: Error, last: Option<T>) {
        let sender = lock(&self.sender).take();
        // Only the first reason is stored.
        let _ = self.end.set(why);
        if let (Some(sender), Some(last)) = (sender, last) {
            // The send cannot fail, because the receiver exists.
            let _ = sender.send(last);
        }
    }
}

impl Connections {
    pub(super) fn new(engine: &Engine) -> Arc<Self> {
        Arc::new(Self {
            arrivals: Arrivals::new(),
            engine: engine.clone(),
        })
    }

    /// Ends the channel of a dropped listener, and rejects the connections in the channel.
    pub(super) fn abandon(&self) {
        self.finish(Error::ListenerClosed);
        self.reject_untaken();
    }

    /// Rejects the connections that the program has not taken. Their peers get `PeerBusy`.
    fn reject_untaken(&self) {
        for endpoint in self.arrivals.items.try_iter().flatten() {
            endpoint.reject_untaken();
        }
    }
}

impl StandIn for Connections {
    fn stand_in() -> &'static Self {
        static ENDED: PerProcess<Connections> = PerProcess::new(|| Connections {
            arrivals: Arrivals::forked(),
            engine: Engine::forked(),
        });
        ENDED.get()
    }
}

impl StandIn for Arrivals<Request> {
    fn stand_in() -> &'static Self {
        static ENDED: PerProcess<Arrivals<Request>> = PerProcess::new(Arrivals::forked);
        ENDED.get()
    }
}

impl Incoming<Result<Established, Error>> for Connections {
    fn bring(&self, accepted: Result<Established, Error>) {
        let endpoint = match accepted {
            Ok(established) => Endpoint::new(established, self.engine.clone()),
            Err(error) => {
                let name = self.arrivals.tasks.name();
                warn_sparsely!(
                    Listener,
                    "{name}: a connection was not established: {error}"
                );
                return;
            }
        };
        if let Err(Ok(late)) = self.arrivals.append(Ok(endpoint)) {
            late.reject_untaken();
        }
    }

    fn waiting(&self) -> usize {
        self.arrivals.items.len()
    }

    fn finish(&self, why: Error) {
        if self.arrivals.end.get().is_some() {
            return;
        }
        if matches!(why, Error::EngineShutDown) {
            // An engine that shuts down closes its connections. But the connections that the
            // program has not taken must be rejected, so that their peers get `PeerBusy`.
            self.reject_untaken();
        }
        let last = (!matches!(why, Error::ListenerClosed)).then(|| Err(why.clone()));
        self.arrivals.close(why, last);
        self.arrivals.announce();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.reject_untaken();
    }
}

impl Incoming<Request> for Arrivals<Request> {
    fn bring(&self, request: Request) {
        if let Err(late) = self.append(request) {
            late.reject_untaken();
        }
    }

    fn waiting(&self) -> usize {
        self.items.len()
    }

    fn finish(&self, why: Error) {
        self.close(why, None);
        for request in self.items.try_iter() {
            request.reject_untaken();
        }
        self.announce();
    }
}

impl Tasks {
    fn wake(&self) {
        if self.wakers.wake(u8::MAX).is_err() {
            // The listener stays open, because no connection was lost, and another task can accept.
            error!(
                Listener,
                "{}: the waker of a waiting task panicked; the listener continues",
                self.name()
            );
        }
    }

    /// Returns the listener's name for the log, or the word `listener` until the name is set.
    fn name(&self) -> &str {
        self.name.get().map_or("listener", String::as_str)
    }
}

impl ForeignCall for Tasks {
    fn run(self: Arc<Self>) {
        while let Some(()) = self.pending_work.next() {
            self.wake();
        }
    }
}
