use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use rdmsg_os::{leak, lock, warn_sparsely};

use crate::{
    Config,
    link::Link,
    waiting::{Waiting, deadline},
};

/// The connection that the handles of a stream share. Dropping this value closes the connection.
pub(crate) struct Connection {
    pub(crate) waiting: Arc<Waiting>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    linger: Duration,
    /// The read timeout and the write timeout.
    pub(crate) timeouts: Mutex<[Option<Duration>; 2]>,
    /// Dropping this sender ends the connection's background thread, which waits on the channel.
    background: Option<Sender<()>>,
}

impl Connection {
    pub(crate) fn new(link: Link, config: &Config) -> io::Result<Self> {
        let mut this = Self {
            local: link.id().local_addr(),
            peer: link.id().peer_addr(),
            waiting: Arc::new(Waiting::new(link)),
            linger: config.linger,
            timeouts: Mutex::default(),
            background: None,
        };
        this.background = this.start(config)?;
        Ok(this)
    }

    /// Starts the thread that sends keepalives. Before each keepalive, this thread handles the
    /// peer's writes and commands, and reposts the receives that they consumed. Thus the connection
    /// handles commands even if the program makes no calls.
    ///
    /// On an accepted connection, the thread first exchanges the initial commands, for which the
    /// client waits. The thread does this even if keepalives are disabled, and then ends. A client
    /// without keepalives needs no thread, so this function starts none.
    fn start(&self, config: &Config) -> io::Result<Option<Sender<()>>> {
        let is_server = self.waiting.with(|link| link.is_server());
        let (keepalive, handshake) = (config.keepalive, config.connect_timeout);
        if keepalive.is_none() && !is_server {
            return Ok(None);
        }
        let (sender, ended) = channel();
        let waiting = Arc::clone(&self.waiting);
        let run = move || {
            if is_server {
                let is_over = |link: &mut Link| link.is_ready() || link.error().is_some();
                // If the handshake takes longer than this time limit, later calls of the program
                // continue the handshake.
                let _ = waiting.wait(deadline(Some(handshake)), |link| {
                    is_over(link).then_some(())
                });
            }
            while let Some(interval) = keepalive
                && ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout)
            {
                waiting.with(|link| {
                    // Leave connection-manager events unread, because they must wake the waiting
                    // threads and tasks.
                    link.progress(false);
                    link.keep_alive();
                });
            }
        };
        let thread = thread::Builder::new().name("valkey-alive".into());
        thread.spawn(run)?;
        Ok(Some(sender))
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.peer
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Waits for the written bytes to arrive, at most for the linger time. Then closes the
    /// connection.
    pub(crate) fn close(&self) -> io::Result<()> {
        let drained = self.waiting.wait(deadline(Some(self.linger)), |link| {
            link.is_drained().then_some(())
        });
        self.waiting.with(Link::close);
        drained
    }

    /// Returns the read timeout (index 0) or the write timeout (index 1).
    pub(crate) fn timeout(&self, index: usize) -> Option<Duration> {
        lock(&self.timeouts)[index]
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.waiting.check().is_err() {
            // The connection belongs to the parent process. A thread of the parent may have held
            // the connection's locks during the fork, so this process must not acquire them.
            leak(Arc::clone(&self.waiting));
            leak(self.background.take());
            return;
        }
        self.background = None;
        if let Err(error) = self.close() {
            let name = self.waiting.with(|link| link.name().to_owned());
            warn_sparsely!(
                Valkey,
                "{name}: closed the stream before all written bytes had arrived: {error}"
            );
        }
    }
}
