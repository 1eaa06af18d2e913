//! A client that reconnects whenever its connection is lost.
//!
//! The library sends each message at most once. When a connection is lost, an event lists the
//! messages whose delivery is unknown, and the program decides which of them to send again.
//!
//! A client has no thread of its own, except the thread of [`Persistent::events`]. Threads that
//! wait in calls of the client start the connection attempts ("dials") and handle the results. The
//! engine's thread establishes the connections. So a client dials only while a thread calls its
//! methods.

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

/// The capacity of the channel of [`Persistent::events`].
const EVENTS: usize = 64;

/// A client that dials again whenever its connection is lost: see [`Connector::persist`].
///
/// The client reports the events of its connections, one connection after the other:
/// [`Connected`](PersistentEvent::Connected), then messages and other completions, then
/// [`Lost`](PersistentEvent::Lost). Before each dial except the first, the client pauses for a
/// random time, up to a bound that doubles: see [`Redial`]. Each dial looks up the host name again,
/// and tries all of its addresses within [`connect_timeout`](crate::Config::connect_timeout).
///
/// Threads that wait in [`next_event`](Self::next_event) or [`send`](Self::send) start the dials,
/// and the engine's thread establishes the connections. So a thread must call `next_event`, or the
/// program must call [`events`](Self::events), which starts a thread. There are no methods for
/// tasks: see [the recipe](crate::guide::cookbook#calls-of-many-tasks) for a client that several
/// tasks share.
///
/// # At most once
///
/// The library never sends a message again. A call that fails has sent nothing.
/// [`Completion::Sent`] confirms the delivery of a message with an [id](Outgoing::with_id). If the
/// connection is lost before that, [`Lost::unacknowledged`](PersistentEvent::Lost) contains the id
/// once; the peer may or may not have received the message. A program that wants to send the
/// message again must store the message until `Sent` reports its id, and the peer must recognize a
/// message that arrives twice. No event reports the delivery or loss of a message without an id.
/// The client stores no messages, and at most [`receive_window`](crate::Config::receive_window) +
/// [`send_depth`](crate::Config::send_depth) ids.
///
/// No send succeeds between a loss and the call that returns its `Lost`. Until then,
/// [`send`](Self::send) fails with [`Error::NotConnected`] in the thread that takes the events, and
/// the `Lost` follows. So when the program gets a `Lost`, no message is in flight.
///
/// Clones are handles to the same client. Dropping the last handle closes the connection in the
/// background, or cancels a dial immediately. In a child process that inherits a client through
/// fork(2), calls of this client fail with [`Error::Forked`].
///
/// # Examples
///
/// A client that stores its orders until they have arrived, and sends them again after a loss:
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

/// An event of a [`Persistent`] client.
#[derive(Debug)]
#[non_exhaustive]
pub enum PersistentEvent {
    /// The client has connected. Sends succeed until the connection is lost.
    Connected {
        /// The address of the peer: one of the addresses of the host.
        peer: SocketAddr,
        /// The transport of the connection.
        transport: Transport,
    },
    /// A message or another completion of the connection.
    ///
    /// This event never contains [`Completion::Failed`] or [`Completion::Disconnected`], because
    /// `Lost` replaces these completions.
    Completion(Completion),
    /// The connection has ended. This is the last event of a connection, and occurs once for each
    /// `Connected`.
    ///
    /// The client dials again, even if the peer closed the connection or the program ended it with
    /// [`redial`](Persistent::redial).
    Lost {
        /// The reason why the connection ended.
        reason: CloseReason,
        /// The ids of the sent messages whose delivery is unknown, in the order of sending.
        unacknowledged: Vec<u64>,
    },
}

/// The state of a client. All clones of a [`Persistent`] share one `Handle`. The thread of `events`
/// refers only to `shared`, so the client ends when the program drops its last clone.
struct Handle {
    shared: Arc<Shared>,
    /// The channel that [`Persistent::events`] returns, after its first call.
    events: Mutex<Option<Receiver<PersistentEvent>>>,
}

impl Connector {
    /// Returns a client that connects to this address, and dials again whenever the connection is
    /// lost.
    ///
    /// Returns immediately; the first call on the client dials. [`redial`](Self::redial) sets the
    /// pauses between dials. [`retry_refused`](Self::retry_refused) has no effect, because the
    /// client dials again after any failure.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], [`Error::PrivateDataTooLong`] and [`Error::EngineShutDown`], and
    /// [`Error::AddressLookup`] for a text that is not an address. This call does not look up a
    /// host name, because each dial does.
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
    ///             Ok(()) | Err(Error::NotConnected) => {} // a `Lost` follows the error
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
        // All dials over RDMA and TCP use this engine. A dial over the in-memory transport uses the
        // engine of the listener.
        let connector = self.clone().retry_refused(false).engine(&engine);
        let shared = Shared::new(connector, engine, target);
        Ok(Persistent::new(shared))
    }

    /// Sets the pauses between the dials of a client from [`persist`](Self::persist). Default:
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

    /// Takes the next event. Waits for it without a time limit.
    ///
    /// While the client has no connection, the waiting thread dials. While there is a connection,
    /// the thread polls it, as [`Endpoint::next_completion`](crate::Endpoint::next_completion)
    /// does. If several threads wait in this call, one of them polls for all.
    ///
    /// # Errors
    ///
    /// * [`Error::Disconnected`] with [`CloseReason::LocallyClosed`] after [`close`](Self::close),
    ///   once all events have been taken.
    /// * The error of the final dial, for instance [`Error::Connect`], when the
    ///   [`limit`](Redial::limit) has expired. The client has then ended.
    /// * [`Error::EngineShutDown`] when the client's engine was shut down. The client has then
    ///   ended.
    pub fn next_event(&self) -> Result<PersistentEvent, Error> {
        self.inner.shared.next_until(&Deadline::never())
    }

    /// Takes the next event, waiting no longer than `timeout`.
    ///
    /// With a timeout of zero the call never waits. If a dial is in progress when the timeout
    /// expires, the engine's thread continues the current attempt, which is for one address over
    /// one transport. The next call handles the result of this attempt, or starts the next attempt.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when there was no event in time. Otherwise the errors of
    /// [`next_event`](Self::next_event).
    pub fn next_event_timeout(&self, timeout: Duration) -> Result<PersistentEvent, Error> {
        self.inner.shared.next_until(&Deadline::after(timeout))
    }

    /// Returns all events as a channel, for [`crossbeam_channel::select!`].
    ///
    /// The first call starts a thread, `rdmsg-persist`, which calls
    /// [`next_event`](Self::next_event) and sends the events to the channel. The thread and the
    /// channel end when the client has ended or its last handle is dropped. The channel has room
    /// for 64 events. While the channel is full, the thread waits, and the peer waits when its
    /// window is full. Each event is delivered once, by the channel or by a call of `next_event`.
    ///
    /// After a loss the thread takes the [`Lost`](PersistentEvent::Lost) immediately and dials. So
    /// a send may succeed before the program has received the `Lost`, which still lists only
    /// messages of the lost connection.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the system cannot start a thread, and [`Error::Forked`].
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
        thread.spawn(pass_on).map_err(Error::from_spawn)?;
        *channel = Some(events.clone());
        Ok(events)
    }

    /// Sends one message, waiting for a connection and for room in the peer's window.
    ///
    /// The message is a reference to bytes, or an [`Outgoing`] that consists of several parts or
    /// has an id. A client cannot send a [`SendBuffer`](crate::SendBuffer), because a buffer
    /// belongs to a single connection.
    ///
    /// While the client has no connection, the calling thread dials, unless another thread does.
    /// After a loss, the call waits until the thread that takes the events has taken the
    /// [`Lost`](PersistentEvent::Lost). That thread is the most recent caller of
    /// [`next_event`](Self::next_event), or the thread of [`events`](Self::events). If the calling
    /// thread itself takes the events, or if no thread does, the call does not wait. It fails with
    /// [`Error::NotConnected`], and a `Lost` follows.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::send`](crate::Endpoint::send) and of
    /// [`next_event`](Self::next_event), and [`Error::NotConnected`]. After an error nothing was
    /// sent.
    pub fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), Error> {
        let shared = &self.inner.shared;
        shared.send_until(message.into(), &Deadline::never())
    }

    /// Sends one message, waiting no longer than `timeout` for a connection and for room.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when there was no connection or no room in time. Otherwise the errors of
    /// [`send`](Self::send). After an error nothing was sent.
    pub fn send_timeout<'a>(
        &self,
        message: impl Into<Outgoing<'a>>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let shared = &self.inner.shared;
        shared.send_until(message.into(), &Deadline::after(timeout))
    }

    /// Sends one message if the client has a connection and the peer's window is not full. Neither
    /// waits nor dials.
    ///
    /// # Errors
    ///
    /// * [`TrySendError::Full`] when the peer's window or the send queue is full.
    /// * [`TrySendError::Failed`] with [`Error::NotConnected`], or with an error of
    ///   [`send`](Self::send). After an error nothing was sent.
    pub fn try_send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), TrySendError> {
        self.inner.shared.try_send(message.into())
    }

    /// Sends a control message, which the peer receives even while the window is full of messages.
    /// Neither waits nor dials.
    ///
    /// Works like [`Endpoint::send_control`](crate::Endpoint::send_control) on the current
    /// connection. If that connection is lost, no event reports whether the message has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`], and the errors of
    /// [`Endpoint::send_control`](crate::Endpoint::send_control). After an error nothing was sent.
    pub fn send_control(&self, message: &[u8]) -> Result<(), Error> {
        self.inner.shared.send_control(message)
    }

    /// Returns the state and properties of the current connection; `None` if there is none.
    ///
    /// Each new connection has a different [`id`](Info::id). All of them have the
    /// [label](Connector::label) of the connector.
    #[must_use]
    pub fn info(&self) -> Option<Info> {
        self.inner.shared.info()
    }

    /// Returns the sum of the counters of all connections of the client so far, and the amount of
    /// memory that the current connection uses.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.inner.shared.statistics()
    }

    /// Leaves the current server: closes the connection in the background, and dials again.
    ///
    /// Call this method after [`Completion::PeerLeaving`], when all open requests are answered.
    /// Call it in the thread that takes the events. If another thread calls it, the current
    /// connection may already have been lost and replaced, and the call then closes the new
    /// connection. The call never waits.
    ///
    /// The connection is closed in the same way as by [`Endpoint::close`](crate::Endpoint::close):
    /// everything that was sent before is delivered, and messages from the peer can still be
    /// received. Until the client is connected again, sends behave as after a loss. When the close
    /// is complete, the client reports a [`Lost`](PersistentEvent::Lost) with
    /// [`CloseReason::LocallyClosed`], and dials after the first pause of its [`Redial`]. If the
    /// peer has not confirmed messages with ids within
    /// [`close_timeout`](crate::Config::close_timeout), their ids are in
    /// [`unacknowledged`](PersistentEvent::Lost::unacknowledged).
    ///
    /// The client dials the same address or host name. So the new server must be reachable there:
    /// as a new process on the same port, at another address of the host name, or as another host
    /// behind a load balancer. While the client has no connection, the call does nothing, because
    /// the client is dialing already.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] after [`close`](Self::close). Otherwise the error that ended the
    /// client.
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
    ///         PersistentEvent::Lost { .. } => open = 0, // the orders may be lost, unless `leaves`
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

    /// Closes the connection, as [`Endpoint::close`](crate::Endpoint::close) does, and ends the
    /// client.
    ///
    /// Threads that wait in other calls return. If the client has a connection, its remaining
    /// events can still be taken, and the final event is [`Lost`](PersistentEvent::Lost). If the
    /// client is dialing, the dial is cancelled immediately.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::close`](crate::Endpoint::close). `Ok` if there is no connection.
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
