use std::{
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, OnceLock},
    task::Waker,
    time::Instant,
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::{
    Endpoint, Engine, Error, Request,
    engine::{Established, Incoming, LogLimit},
    foreign::{self, Errand, Owed},
    sync::{Readiness, Seat, Wakers, lock},
};

/// What comes out of the channel of connections.
type Accepted = Result<Endpoint, Error>;

/// The tasks that accept.
#[derive(Debug, Default)]
struct Tasks {
    wakers: Wakers,
    /// The address for the log, once it listens.
    local: OnceLock<SocketAddr>,
    /// Whether the engine's thread has to wake them.
    owed: Owed<()>,
}

/// What a listener's program may take: requests, connections that were accepted and established,
/// and at last the listener's end.
#[derive(Debug)]
pub(super) struct Backlog {
    requests: Receiver<Request>,
    accepted: Receiver<Accepted>,
    /// Of the same channel, until the end.
    accept: Mutex<Option<Sender<Accepted>>>,
    /// Why nothing more will come.
    end: OnceLock<Error>,
    readiness: Readiness,
    tasks: Arc<Tasks>,
    /// Of the connections.
    engine: Engine,
    /// For the log.
    failures: Mutex<LogLimit>,
}

impl Backlog {
    /// With room for this many requests. The sender is the engine's.
    pub(super) fn new(requests: usize, engine: &Engine) -> (Arc<Self>, Sender<Request>) {
        let (sender, requests) = bounded(requests);
        let (accept, accepted) = unbounded();
        let backlog = Self {
            requests,
            accepted,
            accept: Mutex::new(Some(accept)),
            end: OnceLock::new(),
            readiness: Readiness::default(),
            tasks: Arc::default(),
            engine: engine.clone(),
            failures: Mutex::default(),
        };
        (Arc::new(backlog), sender)
    }

    /// It listens here, as the log says.
    pub(super) fn listens(&self, local: SocketAddr) {
        self.tasks.local.get_or_init(|| local);
    }

    /// The requests as they come; the channel ends with the listener.
    pub(super) fn requests(&self) -> &Receiver<Request> {
        &self.requests
    }

    /// The connections of requests that were accepted. The channel ends with the listener, behind
    /// the error with which that ended.
    pub(super) fn accepted(&self) -> &Receiver<Accepted> {
        &self.accepted
    }

    /// Why nothing more will come, once that is so.
    pub(super) fn ended(&self) -> Option<Error> {
        self.end.get().cloned()
    }

    /// Why nothing more will come, where that is known. The engine may have gone without a word.
    pub(super) fn end(&self) -> Error {
        self.ended().unwrap_or(Error::EngineShutDown)
    }

    /// The fd for event loops.
    pub(super) fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let fd = self.readiness.fd().map_err(Error::from_os)?;
        self.announce();
        Ok(fd)
    }

    /// Makes the fd readable if there is anything to take. To be called by the thread that took
    /// something.
    pub(super) fn update_readiness(&self) {
        self.readiness.update(|| self.is_ready());
    }

    /// As [`update_readiness`](Self::update_readiness), by the thread that brought something.
    fn announce(&self) {
        self.readiness.announce(|| self.is_ready());
        if !foreign::collects() {
            self.tasks.wake();
        } else if self.tasks.owed.add(|()| ()) {
            foreign::leave(Arc::<Tasks>::clone(&self.tasks));
        }
    }

    /// A seat for a task that waits in a future of its own.
    #[cfg(feature = "tokio")]
    pub(super) fn seat(&self) -> Seat {
        self.tasks.wakers.seat()
    }

    /// Has the task woken when there is something to take. Look once more afterwards.
    pub(super) fn wait(&self, seat: Seat, waker: &Waker) {
        self.tasks.wakers.wait(seat, 1, waker);
    }

    /// The task in this seat waits no more.
    pub(super) fn leave(&self, seat: Seat) {
        self.tasks.wakers.leave(seat);
    }

    fn is_ready(&self) -> bool {
        let nothing = self.requests.is_empty() && self.accepted.is_empty();
        !nothing || self.end.get().is_some()
    }
}

impl Tasks {
    fn wake(&self) {
        if self.wakers.wake(u8::MAX).is_err() {
            // The listener goes on: the panic is no connection's, and another task may accept.
            error!("listener on {}: the waker of a task panicked", self.place());
        }
    }

    /// The address for the log; empty before it listens.
    fn place(&self) -> String {
        let local = self.local.get().map(SocketAddr::to_string);
        local.unwrap_or_default()
    }
}

impl Errand for Tasks {
    fn run(self: Arc<Self>) {
        while let Some(()) = self.owed.next() {
            self.wake();
        }
    }
}

impl Incoming for Backlog {
    fn bring_request(&self, requests: &Sender<Request>, request: Request) {
        // Where nobody takes any more, it is dropped, which rejects it.
        let _ = requests.try_send(request);
        self.announce();
    }

    fn bring_accepted(&self, accepted: Result<Established, Error>) {
        let endpoint = match accepted {
            Ok(established) => Endpoint::new(established, self.engine.clone()),
            Err(error) => {
                let report = lock(&self.failures).report(Instant::now());
                if let Some(others) = report {
                    warn!(
                        "listener on {}: a connection was not established ({others} others before \
                         it): {error}",
                        self.tasks.place()
                    );
                }
                return;
            }
        };
        // What comes too late is dropped without the lock, which closes it.
        let late = match &*lock(&self.accept) {
            Some(accept) => accept
                .send(Ok(endpoint))
                .err()
                .map(|late| late.into_inner()),
            None => Some(Ok(endpoint)),
        };
        drop(late);
        self.announce();
    }

    fn waiting(&self) -> usize {
        self.accepted.len()
    }

    fn finish(&self, why: Error) {
        let accept = lock(&self.accept).take();
        // A second reason changes nothing.
        let _ = self.end.set(why.clone());
        if let Some(accept) = accept
            && !matches!(why, Error::ListenerClosed)
        {
            // It cannot fail: the receiver is here.
            let _ = accept.send(Err(why));
        }
        for request in self.requests.try_iter() {
            request.turn_away();
        }
        self.announce();
    }
}
