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

pub use self::{info::Info, one_sided::OneSided};
use crate::{
    addresses::Shown,
    engine::{Engine, Established},
    error::Error,
    link::{Completion, Ended, Inbox, Inflow, Link, Owner},
    local::{Local, StandIn},
    observe::Registered,
    os::PerProcess,
    proto::{CloseReason, Statistics},
    transport::DeviceCounters,
    transport_choice::Transport,
};

// rustdoc lists the methods of these modules in this order, before the methods of this file.
mod messages;

mod bytes;

mod completions;

mod info;

mod tasks;

mod one_sided;

mod pair;

/// A handle to an established connection that carries whole messages in both directions, in order.
///
/// Clones are handles to the same connection, and several threads may use them concurrently. When
/// the last handle is dropped, the connection is closed in the background, as if by
/// [`Endpoint::close`]. A process that exits normally first closes its open connections, and then
/// waits for all closes: see [the guide](crate::guide::ending). In a child process that inherits an
/// endpoint through fork(2), the endpoint's calls fail with [`CloseReason::Forked`], and dropping
/// it does nothing: see [the guide](crate::guide::installing#fork).
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
    /// Must be dropped before `link`, because the destructor of this field reads the link's final
    /// counters.
    _registered: Registered,
    link: Owner,
    /// The receiving side of the completion queue. The link must not own this side: unread messages
    /// in the queue own the link, so there would be a reference cycle.
    completions: Inbox,
    /// The unread bytes of a stream.
    inflow: OnceLock<Arc<Inflow>>,
    /// Completions that preceded a message in the channel and that a `recv` therefore removed.
    /// `next_completion` returns them.
    lock_set_aside: Mutex<VecDeque<Completion>>,
    /// Whether the reader of a stream has received the end of the stream.
    end_taken: AtomicBool,
    /// The number of bytes that writes have discarded since the peer closed the stream. At
    /// `bytes::MAX_LATE`, writes fail.
    late: AtomicUsize,
    /// Keeps the engine's thread running.
    engine: Engine,
}

/// Ends a connection and returns information about it.
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

    /// Returns an ended connection, which replaces inherited endpoints in a forked child.
    pub(crate) fn forked() -> Self {
        let (link, completions) = Link::forked();
        let established = Established {
            link: Owner::new(link),
            completions,
            inflow: None,
        };
        Self::registered(Registered::nowhere(), established, Engine::forked())
    }

    /// Returns whether this process is a forked child that inherited the connection.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inner.is_inherited()
    }

    /// Ends a connection that the program has not accepted from its listener. The peer may retry.
    pub(crate) fn reject_untaken(&self) {
        self.inner.link.reject_untaken();
    }

    /// Ends the connection immediately, without waiting.
    ///
    /// Messages that have not arrived are lost in both directions. An arrived message is also lost
    /// if the library has no memory for it yet, because the program holds earlier messages. The
    /// peer may already have got a confirmation of such a message. The peer sees
    /// [`CloseReason::PeerAborted`] with `code`, or another reason if the notice of this abort does
    /// not arrive.
    pub fn abort(&self, code: u32) {
        self.inner.link.abort(code);
    }

    /// Starts to close the connection, without waiting.
    pub(crate) fn start_close(&self) {
        self.inner.link.close();
    }

    /// Returns the connection and its engine. A clone of the returned link does not keep the
    /// connection open.
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
    /// The address may change when the connection [resumes](crate::Config::resume).
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.original().link.peer_addr()
    }

    /// Returns this side's address, without creating an [`Info`].
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.inner.original().link.local_addr()
    }

    /// Returns the transport of the connection, without creating an [`Info`].
    pub(crate) fn transport(&self) -> Transport {
        self.inner.original().link.transport()
    }

    /// Returns the current state and properties of the connection.
    ///
    /// This method locks the connection for a moment and makes no system call.
    #[must_use]
    pub fn info(&self) -> Info {
        let link = &self.inner.link;
        Info {
            id: self.id(),
            label: link.label().to_text(),
            local_addr: self.local_addr(),
            transport: self.transport(),
            negotiated: link.negotiated(),
            capabilities: link.capabilities(),
            send_limit: link.send_limit(),
            peer_data: link.peer_data(),
            is_suspended: link.is_suspended(),
            close_reason: self.close_reason(),
        }
    }

    /// Returns the hop limit (TTL) of packets on this connection.
    pub(crate) fn hop_limit(&self) -> Result<u32, Error> {
        self.inner.link.hop_limit()
    }

    pub(crate) fn set_hop_limit(&self, hops: u32) -> Result<(), Error> {
        self.inner.link.set_hop_limit(hops)
    }

    /// Returns the reason why the connection ended, or `None` while it is open.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.inner.link.ended().map(|ended| ended.reason)
    }

    /// Returns the counters of this connection, and the amount of memory that the connection uses
    /// now.
    ///
    /// This method locks the connection for a moment and makes no system call.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.inner.link.statistics()
    }
}

/// Counters of the device.
impl DeviceCounters {
    /// Returns the counters of this connection's device. They cover all connections of the device.
    ///
    /// For instance, the number of retransmissions shows whether the network loses packets. The
    /// kernel exports each counter as a file, so this method makes several system calls. Do not
    /// call it for each message.
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

/// Converts the end of a connection into the result of `close`.
fn verdict(ended: Ended) -> Result<(), Error> {
    match ended {
        // All messages of this side have arrived, but messages of the peer are missing.
        Ended {
            reason: reason @ CloseReason::Truncated { .. },
            delivered: true,
        } => Err(Error::Disconnected(reason)),
        // This is a forked child, and only the parent closes the connection.
        Ended {
            reason: reason @ CloseReason::Forked,
            ..
        } => Err(Error::Disconnected(reason)),
        ended if ended.delivered => Ok(()),
        ended => Err(Error::Undelivered(ended.reason)),
    }
}

impl PartialEq for Endpoint {
    /// Returns whether both endpoints are handles to the same connection.
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
