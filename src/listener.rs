use std::{
    fmt,
    iter::{self, FusedIterator},
    net::{SocketAddr, ToSocketAddrs},
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, after, bounded, never, select};

use crate::{
    Config, Endpoint, Engine, Error,
    connector::{check_private_data, resolve, written},
    engine::{Backlog, Bound, Command, Established, Open, Reply, Request, wait_for_reply},
    proto::{REJECT_DATA_MAX, REPLY_DATA_MAX},
};

/// Takes connections on an address.
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let listener = rdmsg::Listener::bind("0.0.0.0:7471")?;
/// for endpoint in listener.incoming() {
///     let endpoint = endpoint?;
///     std::thread::spawn(move || {
///         while let Ok(message) = endpoint.recv() {
///             if endpoint.send(&message).is_err() {
///                 break;
///             }
///         }
///     });
/// }
/// # Ok(())
/// # }
/// ```
///
/// Either take established connections with [`accept`](Self::accept) or
/// [`incoming`](Self::incoming), or look at requests before accepting them with
/// [`requests`](Self::requests). Dropping the listener rejects what is still waiting; established
/// connections go on.
pub struct Listener {
    bound: Bound,
    engine: Engine,
    backlog: Arc<Backlog>,
}

impl Listener {
    /// Listens on an address with the default [`Config`], on the [shared engine](Engine::shared).
    /// Port 0 takes a free one: [`local_addr`](Self::local_addr) tells which.
    ///
    /// # Errors
    ///
    /// [`Error::AddressLookup`] for an unknown name, [`Error::Bind`] where the address is in use or
    /// no RDMA device has it, [`Error::NoRdma`] where this machine has no connection manager.
    pub fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, Error> {
        Self::bind_with(address, &Config::default(), &Engine::shared()?)
    }

    /// Listens on an address. Every connection that it takes gets this configuration and belongs to
    /// this engine.
    ///
    /// # Errors
    ///
    /// As [`Listener::bind`], and [`Error::InvalidConfig`].
    pub fn bind_with(
        address: impl ToSocketAddrs + fmt::Debug,
        config: &Config,
        engine: &Engine,
    ) -> Result<Self, Error> {
        config.check()?;
        let mut result = Err(Error::AddressLookup {
            address: written(&address),
            problem: "no address behind this name".into(),
        });
        for address in resolve(&address)? {
            result = Self::bind_one(address, config, engine);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn bind_one(address: SocketAddr, config: &Config, engine: &Engine) -> Result<Self, Error> {
        let (backlog, requests) = Backlog::new(config.backlog.into());
        let (reply, result) = bounded(1);
        let command = Command::Listen {
            address,
            config: config.clone(),
            requests,
            backlog: Arc::clone(&backlog),
            engine: Arc::clone(engine.handle()),
            reply,
        };
        engine.send(command)?;
        let bound = result.recv().unwrap_or(Err(Error::EngineShutDown))?;
        Ok(Self {
            bound,
            engine: engine.clone(),
            backlog,
        })
    }

    /// The address that is listened on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.bound.local
    }

    /// Accepts the next connection, waiting for as long as it takes.
    ///
    /// Requests that come in while it waits are accepted side by side, so that a peer which is slow
    /// to establish its connection holds up nobody. A connection that fails before it is
    /// established is skipped.
    ///
    /// # Errors
    ///
    /// [`Error::EngineShutDown`], and [`Error::ListenerEnded`] when the device that it listens on
    /// is gone.
    pub fn accept(&self) -> Result<Endpoint, Error> {
        self.accept_until(&never())
    }

    /// As [`accept`](Self::accept), waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept), and [`Error::TimedOut`] when no connection was established.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Endpoint, Error> {
        self.accept_until(&after(timeout))
    }

    fn accept_until(&self, deadline: &Receiver<Instant>) -> Result<Endpoint, Error> {
        let accepted = loop {
            select! {
                recv(deadline) -> _ => break Err(Error::TimedOut),
                recv(self.backlog.requests()) -> request => match request {
                    Ok(request) => self.start(request)?,
                    // What was established before the end is not lost.
                    Err(_) => {
                        let last = self.try_accept();
                        break last.and_then(|last| last.ok_or_else(|| self.end()));
                    }
                },
                recv(self.backlog.accepted()) -> accepted => {
                    // It does not end: the backlog holds a sender.
                    let accepted = accepted.ok();
                    if let Some(endpoint) = accepted.and_then(|one| self.established(one)) {
                        break Ok(endpoint);
                    }
                }
            }
        };
        self.backlog.update_readiness();
        accepted
    }

    /// As [`accept`](Self::accept), without waiting: `None` when no connection is established yet.
    /// Requests that have come in are accepted meanwhile.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn try_accept(&self) -> Result<Option<Endpoint>, Error> {
        while let Ok(request) = self.backlog.requests().try_recv() {
            self.start(request)?;
        }
        let mut endpoint = None;
        while let Ok(accepted) = self.backlog.accepted().try_recv() {
            endpoint = self.established(accepted);
            if endpoint.is_some() {
                break;
            }
        }
        self.backlog.update_readiness();
        match (endpoint, self.backlog.end()) {
            (None, Some(error)) => Err(error.clone()),
            (endpoint, _) => Ok(endpoint),
        }
    }

    /// Starts accepting a request; what comes of it comes back through the backlog.
    fn start(&self, mut request: Request) -> Result<(), Error> {
        match request.take() {
            Some(open) => start_accepting(open, &[], Reply::Backlog(Arc::clone(&self.backlog))),
            None => Ok(()),
        }
    }

    /// A connection that was established; one that was not is skipped.
    fn established(&self, accepted: Result<Established, Error>) -> Option<Endpoint> {
        accepted
            .map(|established| Endpoint::new(established, self.engine.clone()))
            .inspect_err(|error| {
                let local = self.bound.local;
                if let Some(others) = self.backlog.report_failure() {
                    log::warn!(
                        "listener on {local}: a connection was not established ({others} others \
                         before it): {error}"
                    );
                }
            })
            .ok()
    }

    /// Why nothing more comes.
    fn end(&self) -> Error {
        self.backlog.end().cloned().unwrap_or(Error::EngineShutDown)
    }

    /// The connections as they are accepted, until the listener can go on no longer: the error that
    /// says so comes once, as the last item.
    pub fn incoming(&self) -> impl FusedIterator<Item = Result<Endpoint, Error>> + '_ {
        let mut ended = false;
        iter::from_fn(move || {
            if ended {
                return None;
            }
            let accepted = self.accept();
            // Whatever `accept` fails with stays so.
            ended = accepted.is_err();
            Some(accepted)
        })
        .fuse()
    }

    /// The requests for connections as they come, as a channel: for [`crossbeam_channel::select!`],
    /// and to look at the peer and its private data before accepting. Requests taken here are not
    /// accepted by [`accept`](Self::accept).
    #[must_use]
    pub fn requests(&self) -> &Receiver<Request> {
        self.backlog.requests()
    }

    /// The next request, without waiting: as from [`requests`](Self::requests), for event loops.
    #[must_use]
    pub fn try_request(&self) -> Option<Request> {
        let request = self.backlog.requests().try_recv().ok();
        self.backlog.update_readiness();
        request
    }

    /// A file descriptor for event loops, as [`Endpoint::event_fd`]: readable while
    /// [`try_accept`](Self::try_accept) has something to do or to return: a request, an established
    /// connection, or the listener's end, and that for good. Register it for reading, never read
    /// it, and after an event call `try_accept` until it returns `None`. It is for level-triggered
    /// loops, and for edge-triggered ones: whatever comes is a new edge.
    ///
    /// Programs that look at requests before they accept them call
    /// [`try_request`](Self::try_request) instead. What is taken from [`requests`](Self::requests)
    /// is not seen here at once: the fd may stay readable until the next `try_accept` or
    /// `try_request`.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no file descriptor left.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.backlog.event_fd().map_err(Error::from_os)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local", &self.bound.local)
            .finish_non_exhaustive()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.engine.send(Command::Unlisten(self.bound.key));
    }
}

/// Answering a request.
impl Request {
    /// The longest private data in bytes that fits an acceptance.
    pub const ACCEPT_DATA_MAX: usize = REPLY_DATA_MAX;
    /// The longest private data in bytes that fits a rejection.
    pub const REJECT_DATA_MAX: usize = REJECT_DATA_MAX;

    /// Accepts, and waits until the connection is established, for no longer than the listener's
    /// [`connect_timeout`](Config::connect_timeout).
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] where the peer is gone, [`Error::LockedMemory`] and [`Error::Os`] where
    /// resources are lacking.
    pub fn accept(self) -> Result<Endpoint, Error> {
        self.accept_with(&[])
    }

    /// Accepts with private data for the peer's program, which reads it with
    /// [`Endpoint::peer_data`], and waits until the connection is established.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept), and [`Error::PrivateDataTooLong`] above
    /// [`Request::ACCEPT_DATA_MAX`] bytes.
    pub fn accept_with(mut self, private_data: &[u8]) -> Result<Endpoint, Error> {
        check_private_data(private_data, REPLY_DATA_MAX, "an acceptance")?;
        // Answering takes the request, so it is open.
        let open = self.take().ok_or(Error::EngineShutDown)?;
        let engine = Engine::of(Arc::clone(&open.engine));
        let (peer, deadline) = (self.peer_addr(), Instant::now() + open.timeout);
        let (reply, result) = bounded(1);
        start_accepting(open, private_data, Reply::Caller(reply))?;
        let established = wait_for_reply(&result, peer, deadline)?;
        Ok(Endpoint::new(established, engine))
    }

    /// Rejects, with private data for the peer's program, whose connect fails with
    /// [`CloseReason::Rejected`](crate::CloseReason::Rejected).
    ///
    /// # Errors
    ///
    /// [`Error::PrivateDataTooLong`] above [`Request::REJECT_DATA_MAX`] bytes,
    /// [`Error::EngineShutDown`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data, REJECT_DATA_MAX, "a rejection")?;
        match self.take() {
            Some(open) => open.engine.send(Command::Reject {
                key: open.link.key,
                data: private_data.to_vec(),
            }),
            None => Ok(()),
        }
    }
}

/// Has the engine accept; what comes of it is sent as a reply.
fn start_accepting(open: Open, data: &[u8], reply: Reply) -> Result<(), Error> {
    let Open { link, engine, .. } = open;
    engine.send(Command::Accept {
        link,
        data: data.to_vec(),
        at: Instant::now(),
        reply,
    })
}
