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

/// A connection that handles share. Its drop closes the connection.
pub(crate) struct Connection {
    pub(crate) waiting: Arc<Waiting>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    linger: Duration,
    /// The timeouts of reading and writing.
    pub(crate) timeouts: Mutex<[Option<Duration>; 2]>,
    /// Dropped to end the thread of the connection.
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

    /// Starts the thread that sends keepalives. It also takes the commands of the peer, and posts
    /// their receives again, while no other thread calls.
    ///
    /// On an accepted connection it exchanges the first commands, for which the client waits.
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
                // A client that takes longer is served when it goes on, by the program's calls.
                let _ = waiting.wait(deadline(Some(handshake)), |link| {
                    is_over(link).then_some(())
                });
            }
            while let Some(interval) = keepalive
                && ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout)
            {
                waiting.with(|link| {
                    // Events wake the threads and tasks that wait, so they alone read them.
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

    /// Waits until written bytes have arrived, for at most the linger time, and closes.
    pub(crate) fn close(&self) -> io::Result<()> {
        let drained = self.waiting.wait(deadline(Some(self.linger)), |link| {
            link.is_drained().then_some(())
        });
        self.waiting.with(Link::close);
        drained
    }

    /// Returns the timeout with this index.
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
            // The connection is the parent's, and a thread of the parent may hold these locks.
            leak(Arc::clone(&self.waiting));
            leak(self.background.take());
            return;
        }
        self.background = None;
        if let Err(error) = self.close() {
            let name = self.waiting.with(|link| link.name().to_owned());
            warn_sparsely!(
                Valkey,
                "{name}: closed before all written bytes had arrived: {error}"
            );
        }
    }
}
