//! A client that dials again whenever its connection is lost.
//!
//! The library sends each message at most once. A loss is an event that names the messages whose
//! delivery is unknown, and the program decides which of them it sends again.
//!
//! No thread belongs to a client. The engine's thread establishes connections, and the threads that
//! wait in the calls of the client start it and take the result. So a client on which no thread
//! calls anything does not dial.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, bounded};

pub use self::redial::Redial;
use self::{shared::Shared, target::Target};
use crate::{
    addresses::ToAddresses,
    connector::Connector,
    endpoint::Info,
    error::{Error, TrySendError},
    link::{Completion, Deadline},
    local::{Local, StandIn},
    os::{PerProcess, lock},
    outgoing::Outgoing,
    proto::{CloseReason, Statistics},
    transport_choice::Transport,
};

mod redial;
mod shared;
mod state;
mod target;

/// The number of events that wait in the channel of [`Persistent::events`].
const EVENTS: usize = 64;

/// A client that dials again whenever its connection is lost: see [`Connector::persist`].
///
/// Its events are those of one connection after the other:
/// [`Connected`](PersistentEvent::Connected), then messages and other completions, then
/// [`Lost`](PersistentEvent::Lost). Before each dial after a loss the client pauses for a random
/// time, up to a bound that doubles ([`Redial`]). Each dial looks a name up again, and tries all of
/// its addresses within [`connect_timeout`](crate::Config::connect_timeout).
///
/// The threads that wait in [`next_event`](Self::next_event) or [`send`](Self::send) start the
/// dials, and the thread of the engine establishes the connections. So one thread has to call
/// `next_event`, or the program calls [`events`](Self::events), which starts a thread. For a task
/// of a runtime there are no calls of its own: it uses the channel of `events` in a thread for
/// blocking calls.
///
/// # At most once
///
/// The library never sends a message again. A call that fails has sent nothing. The delivery of a
/// message with an [id](Outgoing::with_id) is known from [`Completion::Sent`]. If the connection is
/// lost before that, the id is one of [`Lost::unacknowledged`](PersistentEvent::Lost), once. The
/// peer may have received such a message, or not. A program that sends it again keeps it by its id
/// until `Sent` comes, and its peer recognizes the id. Messages without an id are lost without a
/// report. The client keeps no message. It keeps at most
/// [`receive_window`](crate::Config::receive_window) + [`send_depth`](crate::Config::send_depth)
/// ids.
///
/// No send succeeds between a loss and the call that returns its `Lost`. In the thread that takes
/// the events [`send`](Self::send) fails with [`Error::NotConnected`] for that time, and the `Lost`
/// follows. So when a `Lost` is taken, no message is in flight.
///
/// Clones are handles of the same client. Dropping the last one closes the connection in the
/// background, or gives up the dial at once. In a child that inherits a client by fork(2) its calls
/// fail with [`Error::Forked`].
///
/// # Examples
///
/// A client that keeps its orders until they have arrived, and sends them again after a loss:
///
/// ```no_run
/// use std::collections::BTreeMap;
///
/// use rdmsg::{Completion, Connector, Error, Outgoing, Persistent, PersistentEvent};
///
/// fn send(client: &Persistent, id: u64, order: &str) -> Result<(), Error> {
///     match client.send(Outgoing::from(order).with_id(id)) {
///         // The order stays open, and a `Lost` follows.
///         Err(Error::NotConnected) => Ok(()),
///         sent => sent,
///     }
/// }
///
/// # fn main() -> Result<(), Error> {
/// let client = Connector::new().persist("10.8.0.1:7471")?;
/// let mut open = BTreeMap::from([(1, "an order"), (2, "another order")]);
/// for (id, order) in &open {
///     send(&client, *id, order)?; // waits for the connection
/// }
/// while !open.is_empty() {
///     match client.next_event()? {
///         PersistentEvent::Completion(Completion::Sent(id)) => drop(open.remove(&id)),
///         PersistentEvent::Lost { reason, unacknowledged } => {
///             println!("{reason}: these orders may have arrived: {unacknowledged:?}");
///             for (id, order) in &open {
///                 send(&client, *id, order)?;
///             }
///         }
///         _ => {}
///     }
/// }
/// client.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Persistent {
    inner: Local<Handle>,
}

/// Something that happened to a [`Persistent`] client.
#[derive(Debug)]
#[non_exhaustive]
pub enum PersistentEvent {
    /// The client has connected. Sends succeed until the connection is lost.
    Connected {
        /// The address of the peer, one of those of the name.
        peer: SocketAddr,
        /// The transport of the connection.
        transport: Transport,
    },
    /// A message arrived, or something else happened on the connection.
    ///
    /// [`Completion::Failed`] and [`Completion::Disconnected`] do not occur; `Lost` comes instead.
    Completion(Completion),
    /// The connection has ended. It comes once for each `Connected`, as the last event of the
    /// connection.
    ///
    /// The client dials again, also if the peer closed the connection or the program left it with
    /// [`redial`](Persistent::redial).
    Lost {
        /// The reason for which it ended.
        reason: CloseReason,
        /// The ids of the messages that were sent and whose delivery is unknown, in the order of
        /// sending.
        unacknowledged: Vec<u64>,
    },
}

/// The handles of the program. The thread of `events` has none.
struct Handle {
    shared: Arc<Shared>,
    /// The channel of the thread, once it was started.
    events: Mutex<Option<Receiver<PersistentEvent>>>,
}

impl Connector {
    /// Returns a client that connects to this address, and dials again whenever the connection is
    /// lost.
    ///
    /// It returns at once. The first call of the client dials. [`redial`](Self::redial) sets the
    /// pauses between dials. [`retry_refused`](Self::retry_refused) has no effect on the client,
    /// because it dials again after any failure.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], [`Error::PrivateDataTooLong`] and [`Error::EngineShutDown`], and
    /// [`Error::AddressLookup`] for a text that is no address. A name is looked up by each dial.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{Completion, Connector, Error, PersistentEvent};
    ///
    /// # fn main() -> Result<(), Error> {
    /// let client = Connector::new().persist("news.example:7471")?;
    /// loop {
    ///     match client.next_event()? {
    ///         PersistentEvent::Connected { .. } => match client.send(b"subscribe") {
    ///             Ok(()) | Err(Error::NotConnected) => {} // or it is lost again
    ///             Err(error) => return Err(error),
    ///         },
    ///         PersistentEvent::Completion(Completion::Received(news)) => {
    ///             println!("{} bytes", news.len());
    ///         }
    ///         PersistentEvent::Lost { reason, .. } => println!("{reason}"),
    ///         _ => {}
    ///     }
    /// }
    /// # }
    /// ```
    pub fn persist(&self, address: impl ToAddresses) -> Result<Persistent, Error> {
        self.redial.check()?;
        let target = Target::new(&address)?;
        let engine = self.ready_engine(target.addresses())?;
        // All dials use this engine, except within the process.
        let connector = self.clone().retry_refused(false).engine(&engine);
        let shared = Shared::new(connector, engine, target);
        Ok(Persistent::new(shared))
    }

    /// Sets the pauses between the dials of [`persist`](Self::persist). Default:
    /// [`Redial::default`].
    #[must_use]
    pub fn redial(mut self, redial: Redial) -> Self {
        self.redial = redial;
        self
    }
}

impl Persistent {
    fn new(shared: Arc<Shared>) -> Self {
        let events = Mutex::new(None);
        Self {
            inner: Local::new(Arc::new(Handle { shared, events })),
        }
    }

    /// Takes the next event, waiting until there is one.
    ///
    /// While there is no connection the waiting thread dials. While there is one, the thread polls
    /// it, as in [`Endpoint::next_completion`](crate::Endpoint::next_completion). Of several
    /// threads in this call one polls, and the others wait for it.
    ///
    /// # Errors
    ///
    /// * [`Error::Disconnected`] with [`CloseReason::LocallyClosed`] after [`close`](Self::close),
    ///   when all events were taken.
    /// * The error of the last dial, for instance [`Error::Connect`], when the
    ///   [`limit`](Redial::limit) has passed. The client has ended.
    /// * [`Error::EngineShutDown`] when its engine was shut down. The client has ended.
    pub fn next_event(&self) -> Result<PersistentEvent, Error> {
        self.inner.shared.next_until(&Deadline::never())
    }

    /// Takes the next event, waiting no longer than `timeout`.
    ///
    /// With a timeout of zero it never waits. After the timeout the engine's thread continues the
    /// present attempt, at one address over one transport. The next call takes its result, or
    /// begins the next attempt.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when nothing happened. Otherwise those of
    /// [`next_event`](Self::next_event).
    pub fn next_event_timeout(&self, timeout: Duration) -> Result<PersistentEvent, Error> {
        self.inner.shared.next_until(&Deadline::after(timeout))
    }

    /// Returns all events as a channel, for [`crossbeam_channel::select!`].
    ///
    /// The first call starts a thread, `rdmsg-persist`, which calls
    /// [`next_event`](Self::next_event) and passes the events on. The thread ends, and the channel
    /// with it, when the client has ended or its last handle is dropped. Up to 64 events wait in
    /// the channel. While it is full the thread waits, and the peer does when its window is full.
    /// Each event is taken once, from the channel or by a call of `next_event`.
    ///
    /// The thread takes a [`Lost`](PersistentEvent::Lost) at once and dials. So a send may succeed
    /// before the program has the `Lost`, which names the lost messages alone.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the system has no thread left, and [`Error::Forked`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rdmsg::{Connector, crossbeam_channel::{select, tick}};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let client = Connector::new().persist("10.8.0.1:7471")?;
    /// let (events, ticks) = (client.events()?, tick(Duration::from_secs(1)));
    /// loop {
    ///     select! {
    ///         recv(events) -> event => match event {
    ///             Ok(event) => println!("{event:?}"),
    ///             Err(_) => break, // the client has ended
    ///         },
    ///         recv(ticks) -> _ => println!("a second has passed"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self) -> Result<Receiver<PersistentEvent>, Error> {
        if self.inner.is_inherited() {
            return Err(Error::Forked);
        }
        let mut channel = lock(&self.inner.events);
        if let Some(events) = &*channel {
            return Ok(events.clone());
        }
        let (sender, events) = bounded(EVENTS);
        let shared = Arc::clone(&self.inner.shared);
        let pass_on = move || {
            while let Ok(event) = shared.next_until(&Deadline::never()) {
                if sender.send(event).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("rdmsg-persist".into());
        thread
            .spawn(pass_on)
            .map_err(|error| Error::from_spawn(&error))?;
        *channel = Some(events.clone());
        Ok(events)
    }

    /// Sends one message, waiting for the connection and for room in the window of the peer.
    ///
    /// The message is a reference to bytes, or an [`Outgoing`] of several parts or with an id. A
    /// [`SendBuffer`](crate::SendBuffer) belongs to one connection, so no client takes one.
    ///
    /// While there is no connection the calling thread dials, unless another thread does. After a
    /// loss whose [`Lost`](PersistentEvent::Lost) was not taken, the call waits for the thread that
    /// takes the events: the last thread in [`next_event`](Self::next_event), or that of
    /// [`events`](Self::events). If that is the calling thread itself, or none, it fails with
    /// [`Error::NotConnected`] instead, and a `Lost` follows.
    ///
    /// # Errors
    ///
    /// Those of [`Endpoint::send`](crate::Endpoint::send) and of [`next_event`](Self::next_event),
    /// and [`Error::NotConnected`]. After an error nothing was sent.
    pub fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), Error> {
        let shared = &self.inner.shared;
        shared.send_until(message.into(), &Deadline::never())
    }

    /// Sends one message, waiting no longer than `timeout` for the connection and for room.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when there was no connection or no room. Otherwise those of
    /// [`send`](Self::send). After an error nothing was sent.
    pub fn send_timeout<'a>(
        &self,
        message: impl Into<Outgoing<'a>>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let shared = &self.inner.shared;
        shared.send_until(message.into(), &Deadline::after(timeout))
    }

    /// Sends one message if there are a connection and room for it. It neither waits nor dials.
    ///
    /// # Errors
    ///
    /// * [`TrySendError::Full`] when the peer's window or the send ring is full.
    /// * [`TrySendError::Failed`] with [`Error::NotConnected`], or with an error of
    ///   [`send`](Self::send). After an error nothing was sent.
    pub fn try_send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), TrySendError> {
        self.inner.shared.try_send(message.into())
    }

    /// Sends a short message that passes the messages that wait for credit, as
    /// [`Endpoint::send_control`](crate::Endpoint::send_control). It neither waits nor dials.
    ///
    /// The message belongs to the present connection. No event reports that it has arrived or was
    /// lost.
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`], and those of
    /// [`Endpoint::send_control`](crate::Endpoint::send_control). After an error nothing was sent.
    pub fn send_control(&self, message: &[u8]) -> Result<(), Error> {
        self.inner.shared.send_control(message)
    }

    /// Returns the facts about the present connection; `None` while there is none.
    ///
    /// Each connection has another [`id`](Info::id). All of them have the
    /// [label](Connector::label) of the connector.
    #[must_use]
    pub fn info(&self) -> Option<Info> {
        self.inner.shared.info()
    }

    /// Returns the counters of all connections of the client so far, and the memory that the
    /// present one holds.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.inner.shared.statistics()
    }

    /// Leaves the present server: closes the connection in the background, and dials again.
    ///
    /// A client that got [`Completion::PeerLeaving`] calls this when it has the answers to its open
    /// requests. It is for the thread that takes the events, because in another thread it may close
    /// the connection that follows. It never waits.
    ///
    /// The close is that of [`Endpoint::close`](crate::Endpoint::close): everything sent before is
    /// delivered, and messages that the peer has sent may still be taken. Sends fail until the next
    /// connection, as after a loss. Then [`Lost`](PersistentEvent::Lost) comes with
    /// [`CloseReason::LocallyClosed`], and the client dials after the first pause of its
    /// [`Redial`]. Messages with ids that the peer did not confirm within
    /// [`close_timeout`](crate::Config::close_timeout) are in
    /// [`unacknowledged`](PersistentEvent::Lost::unacknowledged).
    ///
    /// The dial goes to the same address or name, so another server is found there: a new process
    /// on the same port, another address of the name, or another host behind a balancer. Without a
    /// connection the client dials already, and the call does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] after [`close`](Self::close). Otherwise the error with which the
    /// client has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{Completion, Connector, Error, PersistentEvent};
    ///
    /// # fn main() -> Result<(), Error> {
    /// let client = Connector::new().persist("orders.example:7471")?;
    /// let (mut open, mut leaves) = (0, false);
    /// loop {
    ///     match client.next_event()? {
    ///         PersistentEvent::Connected { .. } => leaves = false,
    ///         PersistentEvent::Completion(Completion::PeerLeaving) => leaves = true,
    ///         PersistentEvent::Completion(Completion::Received(_answer)) => open -= 1,
    ///         PersistentEvent::Lost { .. } => open = 0, // in doubt, unless `leaves`
    ///         _ => {}
    ///     }
    ///     if leaves && open == 0 {
    ///         client.redial()?;
    ///     }
    ///     while !leaves && open < 8 && client.try_send(b"an order").is_ok() {
    ///         open += 1;
    ///     }
    /// }
    /// # }
    /// ```
    pub fn redial(&self) -> Result<(), Error> {
        self.inner.shared.redial()
    }

    /// Closes the connection, as [`Endpoint::close`](crate::Endpoint::close), and ends the client.
    ///
    /// Threads in other calls return. The events that have come can still be taken; the last one is
    /// [`Lost`](PersistentEvent::Lost). Without a connection, a dial is given up at once.
    ///
    /// # Errors
    ///
    /// Those of [`Endpoint::close`](crate::Endpoint::close). `Ok` without a connection.
    pub fn close(&self) -> Result<(), Error> {
        self.inner.shared.close()
    }
}

impl StandIn for Handle {
    fn stand_in() -> &'static Self {
        static ENDED: PerProcess<Handle> = PerProcess::new(|| Handle {
            shared: Shared::forked(),
            events: Mutex::new(None),
        });
        ENDED.get()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}
