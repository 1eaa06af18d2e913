use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, OnceLock},
    time::Instant,
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::log_limit::LogLimit;
use crate::{
    error::Error,
    status::OsError,
    sync::{Readiness, lock},
};

/// Both ends of a channel.
type Channel<T> = (Sender<T>, Receiver<T>);

/// What a listener's program may take: requests `R`, connections `A` that were accepted, or why
/// they were not established, and at last the listener's end.
#[derive(Debug)]
pub(crate) struct Backlog<R, A> {
    requests: Receiver<R>,
    /// The sender is for the replies; it is here so that the channel never ends.
    accepted: Channel<Result<A, Error>>,
    /// Why nothing more will come.
    end: OnceLock<Error>,
    readiness: Readiness,
    /// For the log.
    failures: Mutex<LogLimit>,
}

impl<R, A> Backlog<R, A> {
    /// With room for this many requests. The sender is the engine's.
    pub(crate) fn new(requests: usize) -> (Arc<Self>, Sender<R>) {
        let (sender, requests) = bounded(requests);
        let backlog = Self {
            requests,
            accepted: unbounded(),
            end: OnceLock::new(),
            readiness: Readiness::default(),
            failures: Mutex::default(),
        };
        (Arc::new(backlog), sender)
    }

    /// The requests as they come; the channel ends with the listener.
    pub(crate) fn requests(&self) -> &Receiver<R> {
        &self.requests
    }

    /// What came of requests that were accepted.
    pub(crate) fn accepted(&self) -> &Receiver<Result<A, Error>> {
        &self.accepted.1
    }

    /// A connection was not established. Whether to tell, and of how many others.
    pub(crate) fn report_failure(&self) -> Option<u64> {
        lock(&self.failures).report(Instant::now())
    }

    /// Why nothing more will come, once that is so. The engine may have gone without a word.
    pub(crate) fn end(&self) -> Option<&Error> {
        self.end.get()
    }

    /// The fd for event loops.
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'_>, OsError> {
        let fd = self.readiness.fd()?;
        self.announce();
        Ok(fd)
    }

    /// Makes the fd readable if there is anything to take. To be called by the thread that took
    /// something.
    pub(crate) fn update_readiness(&self) {
        self.readiness.update(|| self.is_ready());
    }

    /// As [`update_readiness`](Self::update_readiness), by the thread that brought something.
    fn announce(&self) {
        self.readiness.announce(|| self.is_ready());
    }

    fn is_ready(&self) -> bool {
        let nothing = self.requests.is_empty() && self.accepted.1.is_empty();
        !nothing || self.end.get().is_some()
    }

    /// Brings a request, for which there is a place. Where nobody takes any more, it is dropped,
    /// which rejects it.
    pub(super) fn bring_request(&self, requests: &Sender<R>, request: R) {
        let _ = requests.try_send(request);
        self.update_readiness();
    }

    /// Brings what came of a request that was accepted.
    pub(super) fn bring_accepted(&self, accepted: Result<A, Error>) {
        // It cannot fail: the receiver is here.
        let _ = self.accepted.0.send(accepted);
        self.announce();
    }

    /// Nothing more will come, for this reason unless another was given before.
    pub(super) fn finish(&self, why: Error) {
        // A second reason changes nothing.
        let _ = self.end.set(why);
        self.announce();
    }
}
