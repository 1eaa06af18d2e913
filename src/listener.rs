use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select, unbounded};

use crate::{
    Config, Endpoint, Engine, Error,
    connector::{check_private_data, resolve},
    engine::{Command, Link},
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
/// Either take established connections with [`accept`](Self::accept) or [`incoming`](Self::incoming), or look at requests before
/// accepting them with [`requests`](Self::requests). Dropping the listener rejects what is still waiting; established
/// connections go on.
pub struct Listener {
    bound: Bound,
    engine: Engine,
    requests: Receiver<Request>,
    accepted: (Sender<Accepted>, Receiver<Accepted>),
}

/// A connection that was accepted, or why it was not established.
type Accepted = Result<Endpoint, Error>;

/// What the engine says of a listener that it made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) key: u64,
    pub(crate) local: SocketAddr,
}

impl Listener {
    /// Listens on an address with the default [`Config`], on the [shared engine](Engine::shared). Port 0 takes a free one:
    /// [`local_addr`](Self::local_addr) tells which.
    ///
    /// # Errors
    ///
    /// [`Error::AddressLookup`] for an unknown name, [`Error::Bind`] where the address is in use or no RDMA device has it,
    /// [`Error::NoRdma`] where this machine has no connection manager.
    pub fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, Error> {
        Self::bind_with(address, &Config::default(), &Engine::shared()?)
    }

    /// Listens on an address. Every connection that it takes gets this configuration and belongs to this engine.
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
            address: format!("{address:?}"),
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
        let (sender, requests) = bounded(usize::from(config.backlog));
        let (reply, result) = bounded(1);
        let command = Command::Listen {
            address,
            config: config.clone(),
            requests: sender,
            engine: engine.clone(),
            reply,
        };
        engine.send(command)?;
        let bound = result.recv().unwrap_or(Err(Error::EngineShutDown))?;
        Ok(Self {
            bound,
            engine: engine.clone(),
            requests,
            accepted: unbounded(),
        })
    }

    /// The address that is listened on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.bound.local
    }

    /// Accepts the next connection, waiting for as long as it takes.
    ///
    /// Requests that come in while it waits are accepted side by side, so that a peer which is slow to establish its connection
    /// holds up nobody. A connection that fails before it is established is skipped.
    ///
    /// # Errors
    ///
    /// [`Error::EngineShutDown`].
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
        loop {
            select! {
                recv(deadline) -> _ => return Err(Error::TimedOut),
                recv(self.requests) -> request => {
                    let request = request.map_err(|_| Error::EngineShutDown)?;
                    request.start_accepting(&[], self.accepted.0.clone())?;
                }
                recv(self.accepted.1) -> accepted => match accepted {
                    Ok(Ok(endpoint)) => return Ok(endpoint),
                    Ok(Err(error)) => log::warn!("listener on {}: a connection was not established: {error}", self.bound.local),
                    // `self` holds a sender.
                    Err(_) => return Err(Error::EngineShutDown),
                },
            }
        }
    }

    /// The connections as they are accepted, without end.
    pub fn incoming(&self) -> impl Iterator<Item = Result<Endpoint, Error>> + '_ {
        std::iter::repeat_with(|| self.accept())
    }

    /// The requests for connections as they come, as a channel: for [`crossbeam_channel::select!`], and to look at the peer and its
    /// private data before accepting. Requests taken here are not accepted by [`accept`](Self::accept).
    #[must_use]
    pub fn requests(&self) -> &Receiver<Request> {
        &self.requests
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

/// A peer's request for a connection. Dropping it rejects it.
pub struct Request {
    /// `None` once it is answered.
    open: Option<Open>,
    peer: SocketAddr,
    local: Option<SocketAddr>,
    private_data: Vec<u8>,
}

struct Open {
    link: Arc<Link>,
    engine: Engine,
}

impl Request {
    /// The longest private data in bytes that fits an acceptance.
    pub const ACCEPT_DATA_MAX: usize = REPLY_DATA_MAX;
    /// The longest private data in bytes that fits a rejection.
    pub const REJECT_DATA_MAX: usize = REJECT_DATA_MAX;

    pub(crate) fn new(link: Arc<Link>, engine: Engine, local: Option<SocketAddr>) -> Self {
        let (peer, private_data) = (link.peer_addr(), link.peer_data());
        Self {
            open: Some(Open { link, engine }),
            peer,
            local,
            private_data,
        }
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The address on which the request came in.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// What the peer's program gave to [`Connector::private_data`](crate::Connector::private_data).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts, and waits until the connection is established.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] where the peer is gone, [`Error::LockedMemory`] and [`Error::Os`] where resources are lacking.
    pub fn accept(self) -> Result<Endpoint, Error> {
        self.accept_with(&[])
    }

    /// Accepts with private data for the peer's program, which reads it with [`Endpoint::peer_data`], and waits until the
    /// connection is established.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept), and [`Error::PrivateDataTooLong`] above [`Request::ACCEPT_DATA_MAX`] bytes.
    pub fn accept_with(self, private_data: &[u8]) -> Result<Endpoint, Error> {
        check_private_data(private_data, REPLY_DATA_MAX, "an acceptance")?;
        let (reply, result) = bounded(1);
        self.start_accepting(private_data, reply)?;
        result.recv().unwrap_or(Err(Error::EngineShutDown))
    }

    /// Rejects, with private data for the peer's program, whose connect fails with
    /// [`CloseReason::Rejected`](crate::CloseReason::Rejected).
    ///
    /// # Errors
    ///
    /// [`Error::PrivateDataTooLong`] above [`Request::REJECT_DATA_MAX`] bytes, [`Error::EngineShutDown`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data, REJECT_DATA_MAX, "a rejection")?;
        match self.open.take() {
            Some(open) => open.engine.send(Command::Reject {
                key: open.link.key(),
                data: private_data.to_vec(),
            }),
            None => Ok(()),
        }
    }

    fn start_accepting(mut self, data: &[u8], reply: Sender<Accepted>) -> Result<(), Error> {
        let Some(Open { link, engine }) = self.open.take() else {
            return Ok(());
        };
        let command = Command::Accept {
            key: link.key(),
            data: data.to_vec(),
            engine: engine.clone(),
            reply,
        };
        engine.send(command)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &self.peer)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(Open { link, engine }) = self.open.take() {
            let _ = engine.send(Command::Reject {
                key: link.key(),
                data: Vec::new(),
            });
        }
    }
}
