use std::{
    fmt, io,
    ops::Deref,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{endpoint::Endpoint, error::Error, os::lock};

/// The endpoint that carries a stream, shared by all handles and halves. Dropping the last
/// reference ends the stream.
pub(crate) struct StreamEnd {
    endpoint: Endpoint,
    linger: Mutex<Option<Duration>>,
    /// Whether the reading direction has been shut down. Reads then return the bytes that have
    /// arrived, or 0 if there are none, without waiting.
    stopped: AtomicBool,
    /// The value that was last passed to `set_nodelay`, initially false. Only `nodelay` uses it.
    nodelay: AtomicBool,
}

/// The abort code that resets a stream.
const RESET: u32 = 0;

impl StreamEnd {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            linger: Mutex::new(None),
            stopped: AtomicBool::new(false),
            nodelay: AtomicBool::new(false),
        }
    }

    /// Returns the error that ended the connection. Returns `None` while the connection is open,
    /// and after a clean close by either side.
    pub(crate) fn end_error(&self) -> Option<io::Error> {
        let reason = self.endpoint.close_reason();
        reason
            .filter(|reason| !reason.is_clean())
            .map(|reason| Error::Disconnected(reason).into())
    }

    pub(crate) fn ttl(&self) -> io::Result<u32> {
        self.endpoint.hop_limit().map_err(option_error)
    }

    pub(crate) fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.endpoint.set_hop_limit(ttl).map_err(option_error)
    }

    pub(crate) fn linger(&self) -> Option<Duration> {
        *lock(&self.linger)
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) {
        *lock(&self.linger) = linger;
    }

    /// Shuts down the reading direction. Reads that are waiting now, and all later reads, return
    /// the bytes that have arrived, or 0 if there are none, without waiting any longer.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake_waiting();
    }

    pub(crate) fn stopped(&self) -> &AtomicBool {
        &self.stopped
    }

    pub(crate) fn nodelay(&self) -> bool {
        self.nodelay.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nodelay(&self, nodelay: bool) {
        self.nodelay.store(nodelay, Ordering::Relaxed);
    }
}

fn option_error(error: Error) -> io::Error {
    match error {
        Error::Disconnected(_) => io::Error::new(io::ErrorKind::NotConnected, error),
        error => error.into(),
    }
}

impl Deref for StreamEnd {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        if self.endpoint.is_inherited() {
            return;
        }
        if self.linger() == Some(Duration::ZERO) {
            return self.endpoint.abort(RESET);
        }
        // `finish` ends only the sending direction. The connection closes when the field `endpoint`
        // is dropped after this function.
        if let Err(error) = self.endpoint.finish() {
            let name = self.endpoint.name();
            debug!(Connection, "{name}: cannot finish sending: {error}");
        }
    }
}

impl fmt::Debug for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}
