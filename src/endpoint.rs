use std::{
    collections::VecDeque,
    fmt,
    hash::{Hash, Hasher},
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize},
    },
};

use crossbeam_channel::Receiver;

pub use self::{info::Info, one_sided::OneSided};
use crate::{
    addresses::Shown,
    engine::{Engine, Established},
    error::Error,
    link::{Completion, Ended, Inflow, Link, Owner},
    local::{Local, StandIn},
    observe::Registered,
    os::PerProcess,
    proto::{CloseReason, Statistics},
    transport::DeviceCounters,
    transport_choice::Transport,
};

// In the order in which the documentation shows their methods, and before those of this file:
// rustdoc puts the items of inner modules first.
mod messages;

mod bytes;

mod completions;

mod info;

mod tasks;

mod one_sided;

mod pair;

/// A handle of an established connection that carries whole messages in both directions, in order.
///
/// Clones are handles of the same connection and may be used by several threads at once. When the
/// last one is dropped, the connection is closed in the background, as by [`Endpoint::close`]. A
/// process that ends normally waits for that, and closes its open connections as well: see [the
/// guide](crate::guide::ending). In a child that inherits an endpoint by fork(2) its calls fail
/// with [`CloseReason::Forked`], and its drop does nothing: see [the
/// guide](crate::guide::installing#fork).
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
/// endpoint.send(b"hello")?;
/// let answer = endpoint.recv()?;
/// println!("{} bytes", answer.len());
/// drop(answer);
/// endpoint.close()
/// # }
/// ```
#[derive(Clone)]
pub struct Endpoint {
    inner: Local<Inner>,
}

struct Inner {
    /// Before the link, whose last numbers it takes.
    _registered: Registered,
    link: Owner,
    /// Here and not in the link: unread messages hold the link, so it must not hold them.
    completions: Receiver<Completion>,
    /// The unread bytes of a stream.
    inflow: OnceLock<Arc<Inflow>>,
    /// Completions that a `recv` took from the channel before a message, for `next_completion`.
    lock_set_aside: Mutex<VecDeque<Completion>>,
    /// Whether the reader of a stream got its end.
    end_taken: AtomicBool,
    /// The number of bytes that were written after the peer had closed the stream.
    late: AtomicUsize,
    /// Keeps the engine's thread alive.
    engine: Engine,
}

/// Ending the connection, and information about it.
impl Endpoint {
    pub(crate) fn new(established: Established, engine: Engine) -> Self {
        let registered = Registered::enter(&established.link);
        Self::registered(registered, established, engine)
    }

    fn registered(registered: Registered, established: Established, engine: Engine) -> Self {
        let Established {
            link,
            completions,
            inflow,
        } = established;
        Self {
            inner: Local::new(Arc::new(Inner {
                _registered: registered,
                link,
                completions,
                inflow: inflow.map_or_else(OnceLock::new, OnceLock::from),
                lock_set_aside: Mutex::new(VecDeque::new()),
                end_taken: AtomicBool::new(false),
                late: AtomicUsize::new(0),
                engine,
            })),
        }
    }

    /// Returns the stand-in for the endpoints that a child inherits. It has ended.
    pub(crate) fn forked() -> Self {
        let (link, completions) = Link::forked();
        let established = Established {
            link: Owner::new(link),
            completions,
            inflow: None,
        };
        Self::registered(Registered::nowhere(), established, Engine::forked())
    }

    /// Returns whether another process made the connection.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inner.is_inherited()
    }

    /// Ends a connection that the program has not taken from its listener. The peer may try again.
    pub(crate) fn reject_untaken(&self) {
        self.inner.link.reject_untaken();
    }

    /// Ends the connection at once, without waiting for anything.
    ///
    /// Messages that have not arrived are lost. The peer sees [`CloseReason::PeerAborted`] with
    /// `code`, or another reason if the notice does not reach it.
    pub fn abort(&self, code: u32) {
        self.inner.link.abort(code);
    }

    /// Begins to close the connection, and does not wait.
    pub(crate) fn start_close(&self) {
        self.inner.link.close();
    }

    /// Returns the connection, which this does not keep open, and its engine.
    pub(crate) fn link_and_engine(&self) -> (&Arc<Link>, &Engine) {
        let inner = self.inner.original();
        (&inner.link, &inner.engine)
    }

    /// Returns the connection's name for the log.
    pub(crate) fn name(&self) -> impl fmt::Display + '_ {
        &**self.inner.original().link
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.original().link.key
    }

    /// Returns the peer's address.
    ///
    /// It may change when the connection [resumes](crate::Config::resume).
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.original().link.peer_addr()
    }

    /// Returns this side's address.
    ///
    /// It may change when the connection [resumes](crate::Config::resume).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.original().link.local_addr()
    }

    /// Returns the transport of the connection.
    ///
    /// With [`TransportChoice::Auto`](crate::TransportChoice::Auto) it is chosen while the
    /// connection is established. It may change when the connection
    /// [resumes](crate::Config::resume).
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.inner.original().link.transport()
    }

    /// Returns the facts about the connection as they are now.
    ///
    /// It takes the connection's lock for a moment and makes no system call.
    #[must_use]
    pub fn info(&self) -> Info {
        let link = &self.inner.link;
        Info {
            id: self.id(),
            label: link.label().to_text(),
            negotiated: link.negotiated(),
            capabilities: link.capabilities(),
            send_limit: link.send_limit(),
            peer_data: link.peer_data(),
            is_suspended: link.is_suspended(),
            close_reason: self.close_reason(),
        }
    }

    /// Returns the limit of hops in this connection's packets.
    pub(crate) fn hop_limit(&self) -> Result<u32, Error> {
        self.inner.link.hop_limit()
    }

    pub(crate) fn set_hop_limit(&self, hops: u32) -> Result<(), Error> {
        self.inner.link.set_hop_limit(hops)
    }

    /// Returns why the connection has ended, once it has.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.inner.link.ended().map(|ended| ended.reason)
    }

    /// Returns the counters of this connection, and the memory that it holds now.
    ///
    /// It takes the connection's lock for a moment and makes no system call.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.inner.link.statistics()
    }
}

/// Counters of the device.
impl DeviceCounters {
    /// Returns the counters that this connection's device keeps for all its connections.
    ///
    /// Retransmissions, for instance, show a network that loses packets. The counters are files of
    /// the kernel, so reading them costs several system calls: do not read them for each message.
    #[must_use]
    pub fn of(endpoint: &Endpoint) -> Self {
        endpoint.inner.link.device_counters()
    }
}

impl StandIn for Inner {
    fn stand_in() -> &'static Self {
        static ENDED: PerProcess<Endpoint> = PerProcess::new(Endpoint::forked);
        ENDED.get().inner.original()
    }
}

/// Returns the result of a close.
fn verdict(ended: Ended) -> Result<(), Error> {
    match ended {
        // All messages of this side have arrived, but messages of the peer are missing.
        Ended {
            reason: reason @ CloseReason::Truncated { .. },
            delivered: true,
        } => Err(Error::Disconnected(reason)),
        // The parent closes it.
        Ended {
            reason: reason @ CloseReason::Forked,
            ..
        } => Err(Error::Disconnected(reason)),
        ended if ended.delivered => Ok(()),
        ended => Err(Error::Undelivered(ended.reason)),
    }
}

impl PartialEq for Endpoint {
    /// Returns whether these are handles of the same connection.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.inner.original(), other.inner.original())
    }
}

impl Eq for Endpoint {}

impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(self.inner.original()).hash(state);
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.original();
        f.debug_struct("Endpoint")
            .field("link", &*inner.link)
            .field("local", &Shown(inner.link.local_addr()))
            .finish_non_exhaustive()
    }
}
