use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use crate::{
    error::Error,
    poll::Polling,
    proto::{self, Account, Fragmentation, LONGEST_CHUNK, SessionOffer},
    transport_choice::{Transport, TransportChoice},
};

mod label;
mod rdma_tuning;
pub(crate) mod text;

pub(crate) use self::label::Label;
pub use self::rdma_tuning::{RdmaTuning, RelaxedOrdering};
#[cfg(feature = "serde")]
pub(crate) use self::text::as_number;

/// The configuration of a connection. Start from [`Config::default`] and change individual fields.
///
/// If a value is invalid, [`ListenerBuilder::bind`](crate::ListenerBuilder::bind) and
/// [`Connector::connect`](crate::Connector::connect) fail with [`Error::InvalidConfig`]. The limits
/// of the device are checked when the connection's queue pair is created.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
///
/// use rdmsg::{Config, Connector, Listener};
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let mut config = Config::default();
/// config.receive_window = Some(128);
/// config.eager_size = Some(8 * 1024);
/// config.connect_timeout = Duration::from_secs(20);
/// let listener = Listener::builder().config(&config).bind("0.0.0.0:7471")?;
/// let endpoint = Connector::new().config(&config).connect("10.8.0.1:7471")?;
/// # Ok(())
/// # }
/// ```
///
/// # Locked memory
///
/// A connection's receive and send buffers are locked memory, which `ulimit -l` limits for each
/// process; root may lock any amount. The driver's queues need additional memory, which is small
/// compared with buffers of some KiB. The last four columns show how many connections fit into a
/// limit of 64 KiB to 1 GiB, if reading messages above the eager size uses a quarter of the limit
/// ([`EngineLimits::pinned`](crate::EngineLimits::pinned)):
///
/// | window, send depth, eager size | bytes | in 64 KiB | in 8 MiB | in 64 MiB | in 1 GiB |
/// |---|---|---|---|---|---|
/// | the default: 32, 16, 16 KiB | 1269760 | 0 | 4 | 39 | 634 |
/// | 64, 64, 16 KiB | 2584576 | 0 | 2 | 19 | 311 |
/// | 32, 32, 8 KiB | 770048 | 0 | 8 | 65 | 1045 |
/// | 16, 16, 4 KiB | 253952 | 0 | 24 | 198 | 3171 |
/// | 8, 8, 1 KiB | 49152 | 1 | 128 | 1024 | 16384 |
///
/// With [`shared_receive`](Self::shared_receive) the connections share their receive buffers, and
/// each connection allocates its send buffers when it first sends.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The number of messages from the peer that may be in flight or held by the program.
    ///
    /// A message is held from its receipt until the program drops it. The connection has one
    /// receive buffer for each of these messages. A held [`Message`](crate::Message) occupies one
    /// of the buffers; while all are occupied, the peer's `send` waits. Over RDMA these buffers
    /// occupy `receive_window` × [`eager_size`](Self::eager_size) bytes of locked memory.
    ///
    /// 1 to 8192. `None`, the default, means 128 over TCP and 32 over RDMA. For a
    /// [`Stream`](crate::Stream) or with [`shared_receive`](Self::shared_receive), it means 32 over
    /// TCP too.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub receive_window: Option<u16>,

    /// The number of receive buffers in a pool that connections share; `None` for separate buffers.
    ///
    /// Sharing is for servers with many connections, few of which are busy at a time. Connections
    /// of one [`Engine`](crate::Engine) on one device share a pool if their `shared_receive` and
    /// `eager_size` are equal. Each connection reserves 17 buffers of the pool, which suffice for
    /// its control frames and two messages. Half of the pool is set aside for these reservations.
    /// From the other half a busy connection borrows up to its
    /// [`receive_window`](Self::receive_window), and returns buffers when other connections need
    /// them. Once the first half is reserved, a new connection reserves free buffers of the other
    /// half. So a pool of *n* buffers suffices for *n*/34 connections under any load, and for up to
    /// *n*/17 mostly idle connections. A new connection is refused if fewer than 17 buffers are
    /// free: this side reports [`Error::SharedReceivesExhausted`], and the peer reports
    /// [`PeerOutOfResources`](crate::CloseReason::PeerOutOfResources). A held message occupies its
    /// buffer, but never prevents other connections from receiving.
    ///
    /// The connections of a pool share one protection domain. So a peer that guesses a 32-bit key
    /// could access memory that was registered for the peer of another connection. A connection of
    /// a pool allocates its send buffers when it first needs them.
    ///
    /// The pool costs `shared_receive` × [`eager_size`](Self::eager_size) bytes of locked memory.
    /// An idle connection with a window of 16 and a send depth of 16 costs about 49 KiB in addition
    /// to its 17 buffers, mostly for the queues of the device.
    ///
    /// 34 to 1048576, but at most the device's limit for shared receive queues. `None`, the
    /// default, gives each connection its own receive buffers.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub shared_receive: Option<u32>,

    /// The maximum length in bytes of a message that fits into one posted receive buffer; `None`
    /// for the default of the transport.
    ///
    /// A message of up to 3 times this length over RDMA, or 16 times over TCP, is sent into several
    /// of the peer's buffers if enough of them are free. A longer message stays in the sender's
    /// memory until the receiving side reads it, which costs one more round trip but no posted
    /// buffer. See [`receive_window`](Self::receive_window) for the memory of the buffers. A
    /// connection uses the smaller value of the two sides.
    ///
    /// Over TCP no memory is locked, and a buffer occupies memory only from its first use; the most
    /// recently used buffer is reused first. With the default value a connection over TCP reserves
    /// up to 12 MB of address space, of which a peer can fill 8 MiB while the program receives
    /// nothing.
    ///
    /// 64 B to 1 MiB. `None`, the default, is 16 KiB over RDMA and 64 KiB over TCP.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub eager_size: Option<u32>,

    /// The maximum length in bytes of a message that the peer may send to this side.
    ///
    /// A large limit costs no memory until a large message arrives.
    ///
    /// 64 B to 1 TiB, default 1 GiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub max_message: u64,

    /// The maximum total number of bytes in messages above the eager size, for each direction.
    ///
    /// A sent message is included in the total while it is in flight. A received message is
    /// included from its arrival until the program drops it. The sender's `send` waits when the
    /// limit of either side is reached. A single message may exceed this limit if no other message
    /// above the eager size is in progress. Memory for a received message is allocated as its bytes
    /// arrive, and is locked only while the device reads these bytes from the peer. Sent bytes are
    /// locked until they have arrived. [`EngineLimits`](crate::EngineLimits) limits the memory of
    /// all connections together.
    ///
    /// 64 KiB to 1 TiB, default 64 MiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub large_memory: u64,

    /// The maximum number of bytes of memory that a connection caches for later large messages, in
    /// each direction.
    ///
    /// The cache saves the time for mapping and registering memory. Memory into which messages were
    /// received stays registered and therefore locked. Memory for sending a message stays
    /// registered only if the message is at most an eighth of this size and the device has memory
    /// windows, which give each message its own key. Only memory that the library allocated itself
    /// is cached, so a registration never outlives its mapping. The cache lasts from the first
    /// message above the eager size until the connection ends. All connections together keep at
    /// most half of [`EngineLimits::pinned`](crate::EngineLimits::pinned) registered. On iWARP
    /// devices no memory stays registered: there, the peer needs the right to write to the memory
    /// into which this side reads a message, and could use this right later.
    ///
    /// 0 to 1 TiB, default 16 MiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub registration_cache: u64,

    /// The number of bytes that the writer of a [`Stream`](crate::Stream) can write before the
    /// reader reads any.
    ///
    /// Half of this value limits the bytes that have arrived here and that the program has not
    /// read. The other half limits the bytes that the program has written but that the peer cannot
    /// yet buffer. So a stream whose peer does not read accepts about this many bytes, whatever the
    /// length of the writes, as a socket does. Each side applies its own value.
    ///
    /// The memory is allocated on demand and not locked. It is needed only while a reader is slower
    /// than the writer, in addition to the buffers of [`receive_window`](Self::receive_window) and
    /// [`send_depth`](Self::send_depth). The bytes that have arrived count towards
    /// [`EngineLimits::held`](crate::EngineLimits::held). All streams together use at most half of
    /// that limit. When this half is in use, unread bytes stay in the receive buffers.
    ///
    /// 64 KiB to 1 GiB, default 4 MiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub stream_buffer: u64,

    /// The depth of the send queue: the number of messages and one-sided operations that may be in
    /// flight.
    ///
    /// Over RDMA the send buffers of a connection occupy `send_depth` ×
    /// [`eager_size`](Self::eager_size) bytes of locked memory. Over TCP only messages that the
    /// socket cannot accept yet occupy memory.
    ///
    /// 1 to 8192. `None`, the default, is 16 over RDMA and 32 over TCP.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub send_depth: Option<u16>,

    /// The time limit for establishing a connection.
    ///
    /// It covers address and route resolution, retries, and the wait for a free slot. An
    /// [`Engine`](crate::Engine) establishes 8 connections at a time in each direction, the oldest
    /// first, and registers the memory of a connection only when the connection gets a slot. If the
    /// limit expires while a connection waits for a slot, the error names
    /// [`Phase::Waiting`](crate::error::Phase::Waiting). All addresses of a host name share one
    /// limit. On a listener, the program must accept a request within this time. The connection
    /// must then be established within a further period of this length.
    ///
    /// 10 ms to 10 min, default 5 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub connect_timeout: Duration,

    /// The time limit for the exchange that closes a connection.
    ///
    /// After this time the library destroys the connection, and undelivered messages are lost. A
    /// process that exits waits up to this time for its connections to close.
    ///
    /// 0 to 10 min, default 5 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub close_timeout: Duration,

    /// The time without a sign of life from the peer after which this side sends a probe.
    ///
    /// The two sides exchange their values, and both probe at the smaller interval. A peer's
    /// interval below 100 ms counts as 100 ms. A side whose value is `None` sends no regular
    /// probes. With `None` on both sides, only a send detects that the peer vanished.
    ///
    /// This side reports a vanished peer within `keepalive_interval` +
    /// [`keepalive_timeout`](Self::keepalive_timeout) after the last sign of life, whether the
    /// connection is idle or busy. Signs of life are bytes that arrive, and bytes of this side that
    /// the peer's device acknowledges. Signs of life on another connection to the same
    /// [`Engine`](crate::Engine) of the peer count too, because a probe on a slow link may wait
    /// behind the bytes of that connection. If this side is too busy to poll in time, it extends
    /// the peer's time limit by the delay.
    ///
    /// Before the report, this side sends the reason
    /// ([`CloseReason::PeerGaveUp`](crate::CloseReason::PeerGaveUp)) to the peer, which delays the
    /// report by up to 100 ms. Over TCP the report is delayed by up to `keepalive_timeout` if the
    /// peer has not acknowledged all bytes, or if bytes were retransmitted. This second delay is
    /// needed because the kernels of both sides double the pause before each retransmission. With
    /// this delay, an outage shorter than `keepalive_timeout` ends no connection.
    ///
    /// If many idle connections lead to one engine of the peer, this side probes only a few of
    /// these connections in each interval. It probes every connection at least once in 16
    /// intervals. So if one of these connections fails while the others work, this side reports the
    /// failure after at most 16 intervals plus `keepalive_timeout`.
    ///
    /// When an RDMA device reports that a port lost its link (`PORT_ERR`), this side immediately
    /// probes the connections of the port that have [`resume`](Self::resume), even if their
    /// `keepalive_interval` is `None`. On software RoCE a connection fails if it sends while its
    /// network interface is down.
    ///
    /// 10 ms to 1 h, default 2 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub keepalive_interval: Option<Duration>,

    /// The time within which a probed peer must show a sign of life.
    ///
    /// If the peer shows no sign of life within this time, the connection ends with
    /// [`CloseReason::KeepaliveTimeout`](crate::CloseReason::KeepaliveTimeout).
    ///
    /// 10 ms to 10 min, default 3 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub keepalive_timeout: Duration,

    /// The maximum time without progress while this side reads a message above the eager size.
    ///
    /// The limit exists because the message's memory is unavailable to other connections. The
    /// connection ends with [`CloseReason::ReadTimeout`](crate::CloseReason::ReadTimeout) if, for
    /// this time, neither the message nor any other read from the same engine of the peer makes
    /// progress. A timeout is detected within 1.5 × this time. The connection ends with
    /// [`CloseReason::OutOfMemory`](crate::CloseReason::OutOfMemory) if no memory is available for
    /// the message for this time. A message may arrive slowly, and may wait while the application
    /// holds other messages (see [`EngineLimits`](crate::EngineLimits)). But if other connections
    /// wait for the message's memory, the number of bytes that have arrived must grow by at least
    /// an eighth within each `read_timeout`.
    ///
    /// 100 ms to 1 h, default 30 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub read_timeout: Duration,

    /// The time for which the connection survives the loss of its path, of its device, or of the
    /// TCP connection below it. With zero, such a loss ends the connection.
    ///
    /// Both sides must set this field: see [`Negotiated::resumes`](crate::Negotiated::resumes). If
    /// only this side sets it, this side logs a record at the level `info`. If both sides set it,
    /// each side stores copies of the messages that the peer has not yet acknowledged. The peer's
    /// window limits their number. When the connection is lost, the side that originally connected
    /// tries to reconnect: immediately, then with increasing delays up to 1 s. It tries each
    /// allowed [`transport`](Self::transport), and the
    /// [`alternatives`](crate::Connector::alternatives) of the address. Each side then resends the
    /// messages that the other side has not received. So every message arrives once and in order.
    /// Until the connection is restored, the calls of both programs wait as if the window were
    /// full.
    ///
    /// A loss is detected after at most [`keepalive_interval`](Self::keepalive_interval) +
    /// [`keepalive_timeout`](Self::keepalive_timeout). If an RDMA device reports that a port lost
    /// its link, the loss is detected after 500 ms, unless the link returns. If the connection is
    /// not restored within `resume` after the detection, it ends with the reason of the loss. It
    /// ends with [`CloseReason::SessionLost`](crate::CloseReason::SessionLost) if the peer's
    /// process has restarted.
    ///
    /// The accepting program must keep its listener or another listener of the same
    /// [`Engine`](crate::Engine) open, because the peer reconnects to such a listener. A connection
    /// that is being closed survives for at most [`close_timeout`](Self::close_timeout). An engine
    /// keeps at most 1024 lost connections that it accepted. If more are lost, the connection that
    /// was lost first ends.
    ///
    /// A [one-sided](crate::OneSided) write or atomic operation that is in flight at the loss ends
    /// with [`Completion::OutcomeUnknown`](crate::Completion::OutcomeUnknown), and regions of the
    /// lost connection are [stale](crate::Error::StaleRegion). Connections with `resume` support
    /// neither writes with immediate data nor [`shared_receive`](Self::shared_receive). A
    /// connection does not survive if its acceptance carries more than 148 bytes
    /// ([`Request::accept_with`](crate::Request::accept_with)).
    ///
    /// Up to 1 h, default zero.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub resume: Duration,

    /// The transport of the connection: RDMA, TCP, or whichever is available.
    ///
    /// The scheme of an address ([`ToAddresses`](crate::ToAddresses)) takes precedence.
    ///
    /// Default: [`TransportChoice::Environment`].
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub transport: TransportChoice,

    /// The traffic class of the connection's packets: the byte of the IP header with DSCP in its
    /// upper six bits and ECN in its lower two.
    ///
    /// Switches and network interfaces derive a packet's priority from its DSCP. In a RoCE network
    /// the priority selects the lossless class. For DSCP 26 set `Some(26 << 2)`.
    ///
    /// Over InfiniBand and RoCE the value of the connecting side applies in both directions, and
    /// all eight bits are sent. Over TCP and iWARP each side sets the class of its own packets, and
    /// over TCP the kernel controls the ECN bits. If the system refuses the value, connecting and
    /// listening fail with [`Error::InvalidConfig`].
    ///
    /// 0 to 255. With `None`, the default, the system chooses the value: 0 over TCP, and over RoCE
    /// the `default_roce_tos` of the port, which is initially 0.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub traffic_class: Option<u8>,

    /// The method by which a thread waits in `recv`, and in `send` while the peer's window is full.
    ///
    /// Default [`Polling::Adaptive`] with 200 µs.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub polling: Polling,

    /// The settings for RDMA devices. Over TCP only [`retry_count`](RdmaTuning::retry_count) and
    /// [`ack_timeout`](RdmaTuning::ack_timeout) have an effect: they set the `TCP_USER_TIMEOUT`.
    pub rdma: RdmaTuning,

    /// The settings that apply to listeners only.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) listening: Listening,

    /// Whether a connector retries after the peer refused the connection.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) retry_refused: bool,

    /// The local address from which a connector connects.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) source: Option<SocketAddr>,

    /// The program's name for the connections in logs and metrics.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) label: Label,

    /// Whether the connections carry [`Stream`](crate::Stream)s.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) stream: bool,
}

/// The settings of a listener. [`ListenerBuilder`](crate::ListenerBuilder) explains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listening {
    pub(crate) backlog: u16,
    pub(crate) half_open: u16,
    pub(crate) rebind: bool,
    pub(crate) reuse_port: bool,
    pub(crate) inherited: Option<Inherited>,
    /// Whether the listener serves [`Endpoint::pair`](crate::Endpoint::pair). The program owns both
    /// sides of such a connection, so the connection can resume even after its listener was closed.
    pub(crate) is_of_pair: bool,
}

/// A TCP socket that another process, such as systemd, has bound.
#[derive(Clone, Debug)]
pub(crate) struct Inherited(pub(crate) Arc<TcpListener>);

impl PartialEq for Inherited {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Inherited {}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_window: None,
            shared_receive: None,
            eager_size: None,
            max_message: 1 << 30,
            large_memory: 64 << 20,
            registration_cache: 16 << 20,
            stream_buffer: 4 << 20,
            send_depth: None,
            connect_timeout: Duration::from_secs(5),
            retry_refused: false,
            source: None,
            close_timeout: Duration::from_secs(5),
            keepalive_interval: Some(Duration::from_secs(2)),
            keepalive_timeout: Duration::from_secs(3),
            read_timeout: Duration::from_secs(30),
            resume: Duration::ZERO,
            transport: TransportChoice::default(),
            traffic_class: None,
            polling: Polling::default(),
            rdma: RdmaTuning::default(),
            listening: Listening::default(),
            label: Label::default(),
            stream: false,
        }
    }
}

impl Default for Listening {
    fn default() -> Self {
        Self {
            backlog: 128,
            half_open: 256,
            rebind: false,
            reuse_port: false,
            inherited: None,
            is_of_pair: false,
        }
    }
}

/// The time within which the work requests of an ended connection must complete.
///
/// After this time the queue pair is destroyed even if work requests are outstanding.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The sizes of a connection over one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) receive_window: u16,
    pub(crate) send_depth: u16,
    pub(crate) eager_size: u32,
}

impl Sizes {
    const OVER_RDMA: Self = Self {
        receive_window: 32,
        send_depth: 16,
        eager_size: 16 << 10,
    };

    /// The buffers over TCP are larger and more numerous than over RDMA, because they are not
    /// locked and occupy memory only once used. Besides, a round trip costs more than copying the
    /// bytes of a message. The send depth is smaller than the receive window: with a greater depth,
    /// a sender of long messages would copy more frames that the socket cannot accept yet.
    const OVER_TCP: Self = Self {
        receive_window: 128,
        send_depth: 32,
        eager_size: 64 << 10,
    };

    const IN_MEMORY: Self = Self {
        eager_size: Self::OVER_TCP.eager_size,
        ..Self::OVER_RDMA
    };
}

/// The frames for one message above the eager size. If a message needs more frames, the receiver
/// reads the message from the sender's memory. Over RDMA, the bytes of a frame are copied twice. A
/// READ copies no bytes, and takes no longer than four frames.
const FRAGMENTS_OVER_RDMA: Fragmentation = Fragmentation {
    max: 3,
    shortest_first: false,
};
/// Over TCP, the frames of a message after the first are usually received directly into the memory
/// of the message, so the first one is the shortest.
const FRAGMENTS_OVER_TCP: Fragmentation = Fragmentation {
    max: 16,
    shortest_first: true,
};

/// The number of unacknowledged bytes after which a frame requests an acknowledgement. On a slow
/// link, these acknowledgements reach the sender within the default `keepalive_timeout` of 3 s. At
/// 1 Mbit/s, an acknowledgement arrives twice a second over RDMA. Over TCP, where acknowledgements
/// come from the receiving library, one arrives every two seconds.
const UNSIGNALLED_OVER_RDMA: u32 = 64 << 10;
const UNSIGNALLED_OVER_TCP: u32 = 256 << 10;

impl Config {
    /// Applies `change` to this configuration, and returns the result. So a program can write a
    /// configuration as one expression.
    ///
    /// ```
    /// use rdmsg::Config;
    ///
    /// let small = Config::default().with(|config| {
    ///     config.receive_window = Some(8);
    ///     config.send_depth = Some(8);
    /// });
    /// assert_eq!((small.receive_window, small.send_depth), (Some(8), Some(8)));
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the configuration for connections that survive a network outage of this length.
    ///
    /// With the default configuration an outage shorter than 3 s ends no connection. Over TCP and
    /// iWARP the kernel doubles the pause before each retransmission. So, in the worst case, the
    /// kernel retransmits a lost packet only when twice the length of the outage has passed since
    /// the outage began. Therefore this method raises
    /// [`keepalive_timeout`](Self::keepalive_timeout), [`close_timeout`](Self::close_timeout) and
    /// [`read_timeout`](Self::read_timeout) to 2 × `outage` + 1 s. It sets
    /// [`retry_count`](RdmaTuning::retry_count) to 7, and raises
    /// [`ack_timeout`](RdmaTuning::ack_timeout) until eight timeouts take at least this time, and
    /// less than twice this time. Over TCP the sum of these eight timeouts becomes the
    /// `TCP_USER_TIMEOUT` of the socket. Timeouts that are already longer remain unchanged, and so
    /// do [`keepalive_interval`](Self::keepalive_interval) and
    /// [`connect_timeout`](Self::connect_timeout).
    ///
    /// Both sides need this configuration, because each side ends the connection after its own
    /// timeouts. The exception is `retry_count` over RDMA: the connecting side's value applies to
    /// both sides.
    ///
    /// During an outage no messages arrive, and `send` waits when the window is full. Taking down a
    /// network device on one of the hosts is not a network outage: the device's driver may end RDMA
    /// connections immediately.
    ///
    /// The cost is slower detection. A vanished peer is reported up to
    /// [`keepalive_interval`](Self::keepalive_interval) + 2 × `outage` + 1 s after its last sign of
    /// life, and over TCP after up to twice this time. Until then its connection occupies memory
    /// and descriptors, and calls on the connection wait. If a peer does not answer, a close waits
    /// up to 2 × `outage` + 1 s, and so does the exit of the process. The alternative is
    /// [`Connector::persist`], which detects an outage after the usual time and connects again.
    ///
    /// 0 to 299 s. A longer outage exceeds the limits of the timeouts, and the first use of the
    /// configuration fails with [`Error::InvalidConfig`].
    ///
    /// [`Connector::persist`]: crate::Connector::persist
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rdmsg::Config;
    ///
    /// let config = Config::default().survive(Duration::from_secs(30));
    /// assert_eq!(config.keepalive_timeout, Duration::from_secs(61));
    /// assert_eq!(config.close_timeout, Duration::from_secs(61));
    /// assert_eq!(config.rdma.ack_timeout, Some(21)); // 8.6 s, and eight of them 69 s
    /// ```
    #[must_use]
    pub fn survive(mut self, outage: Duration) -> Self {
        let time_limit = outage
            .saturating_mul(2)
            .saturating_add(Duration::from_secs(1));
        for timeout in [
            &mut self.keepalive_timeout,
            &mut self.close_timeout,
            &mut self.read_timeout,
        ] {
            *timeout = time_limit.max(*timeout);
        }
        self.rdma.retry_for_at_least(time_limit);
        self
    }

    /// Checks that each value is within its range, and that the values can be combined. Connecting
    /// and binding make the same checks.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if a value is invalid on every device. The error contains the name
    /// of the first such field and its allowed values. This method also fails if the environment
    /// determines the [`transport`](Self::transport), and the variable `RDMSG_TRANSPORT` names no
    /// transport.
    ///
    /// # Examples
    ///
    /// ```
    /// let config = rdmsg::Config::default().with(|config| config.receive_window = Some(0));
    /// let error = config.check().unwrap_err().to_string();
    /// assert!(error.contains("receive_window is 0, allowed is 1 to 8192"));
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        const MS10: Duration = Duration::from_millis(10);
        const MIN10: Duration = Duration::from_secs(600);
        const HOUR: Duration = Duration::from_secs(3600);

        for (name, number) in [
            ("receive_window", self.receive_window),
            ("send_depth", self.send_depth),
        ] {
            number.map_or(Ok(()), |number| within(name, number, 1, 8192))?;
        }
        if let Some(count) = self.shared_receive {
            // Half of the pool is reserved for the minimum number of receives that each connection
            // needs. That half must suffice for one connection, even with the largest window.
            let least = 2 * Account::min_receives(u16::MAX);
            within("shared_receive", count, least, 1 << 20)?;
        }
        if let Some(eager_size) = self.eager_size {
            within("eager_size", eager_size, 64, 1 << 20)?;
        }
        within("max_message", self.max_message, 64, 1 << 40)?;
        within("large_memory", self.large_memory, 64 << 10, 1 << 40)?;
        within("registration_cache", self.registration_cache, 0, 1 << 40)?;
        within("stream_buffer", self.stream_buffer, 64 << 10, 1 << 30)?;
        within("connect_timeout", self.connect_timeout, MS10, MIN10)?;
        within("close_timeout", self.close_timeout, Duration::ZERO, MIN10)?;
        if let Some(interval) = self.keepalive_interval {
            within("keepalive_interval", interval, MS10, HOUR)?;
        }
        within("keepalive_timeout", self.keepalive_timeout, MS10, MIN10)?;
        within("read_timeout", self.read_timeout, 10 * MS10, HOUR)?;
        within("resume", self.resume, Duration::ZERO, HOUR)?;
        if !self.resume.is_zero() && self.shared_receive.is_some() {
            return Err(Error::InvalidConfig {
                field: "resume",
                value: format!("{:?}", self.resume),
                allowed: "0 with shared_receive".to_owned(),
            });
        }
        self.rdma.check()?;
        self.transport.check()?;
        if let Polling::Adaptive { spin } = self.polling {
            within("polling.spin", spin, Duration::ZERO, Duration::from_secs(1))?;
        }
        within("backlog", self.listening.backlog, 1, u16::MAX)?;
        within("half_open", self.listening.half_open, 1, u16::MAX)?;
        self.label.check()
    }

    /// Returns the longest time from the start of a close until the connection has ended.
    pub(crate) fn longest_close(&self) -> Duration {
        self.close_timeout + DRAIN_TIMEOUT
    }

    /// Returns the sizes of a connection over this transport. A size that this configuration does
    /// not set has the transport's default. A stream has a separate limit in bytes, and the pool
    /// limits a connection with shared receives. Therefore, over every transport, both have the
    /// default window of RDMA, which is smaller than that of TCP.
    pub(crate) fn sizes(&self, transport: Transport) -> Sizes {
        let mut defaults = match transport {
            Transport::Rdma => Sizes::OVER_RDMA,
            Transport::Tcp => Sizes::OVER_TCP,
            Transport::Memory => Sizes::IN_MEMORY,
        };
        if self.stream || self.shared_receive.is_some() {
            defaults.receive_window = Sizes::OVER_RDMA.receive_window;
        }
        Sizes {
            receive_window: self.receive_window.unwrap_or(defaults.receive_window),
            send_depth: self.send_depth.unwrap_or(defaults.send_depth),
            eager_size: self.eager_size.unwrap_or(defaults.eager_size),
        }
    }

    /// Returns the parameters for the state machine of the protocol. The engine sets `engine` and
    /// `number`.
    pub(crate) fn params(&self, transport: Transport) -> proto::Params {
        let sizes = self.sizes(transport);
        let (fragmentation, max_unsignalled) = match transport {
            Transport::Rdma => (FRAGMENTS_OVER_RDMA, UNSIGNALLED_OVER_RDMA),
            Transport::Tcp | Transport::Memory => (FRAGMENTS_OVER_TCP, UNSIGNALLED_OVER_TCP),
        };
        proto::Params {
            window: sizes.receive_window,
            shared: self.shared_receive.is_some(),
            eager_size: sizes.eager_size,
            max_message: self.max_message,
            large_memory: self.large_memory,
            longest_chunk: LONGEST_CHUNK,
            read_timeout: self.read_timeout,
            send_slots: sizes.send_depth.into(),
            fragmentation,
            completes_unsignalled: transport == Transport::Tcp,
            max_unsignalled,
            // Delayed grants need a timer, which the in-memory transport does not have.
            delays_grants: transport != Transport::Memory,
            connect_timeout: self.connect_timeout,
            setup_timeout: None,
            resolve_timeout: self.rdma.resolve_timeout,
            retry_refused: self.retry_refused,
            close_timeout: self.close_timeout,
            drain_timeout: DRAIN_TIMEOUT,
            // Over the in-memory transport the peer is in this process and cannot vanish, so no
            // keepalive is needed.
            keepalive_interval: self
                .keepalive_interval
                .filter(|_| transport != Transport::Memory),
            keepalive_timeout: self.keepalive_timeout,
            stream: self.stream,
            // The reader of a stream receives only bytes, not control messages.
            takes_control_messages: !self.stream,
            held: 0,
            session: if self.resume.is_zero() {
                SessionOffer::None
            } else {
                SessionOffer::Begin
            },
            stream_buffer: self.stream_buffer,
            engine: 0,
            number: 0,
        }
    }
}

pub(crate) fn within<T: PartialOrd + std::fmt::Debug>(
    field: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<(), Error> {
    if value < least || value > most {
        return Err(Error::InvalidConfig {
            field,
            value: format!("{value:?}"),
            allowed: format!("{least:?} to {most:?}"),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        Config::default().check().unwrap();
    }

    #[test]
    fn default_sizes_depend_on_the_transport() {
        let of = |config: &Config| {
            [Transport::Rdma, Transport::Tcp, Transport::Memory].map(|transport| {
                let params = config.params(transport);
                (params.window, params.send_slots, params.eager_size)
            })
        };
        let (rdma, memory) = ((32, 16, 16 << 10), (32, 16, 64 << 10));
        assert_eq!(of(&Config::default()), [rdma, (128, 32, 64 << 10), memory]);
        let shared = Config::default().with(|config| config.shared_receive = Some(64));
        assert_eq!(of(&shared), [rdma, (32, 32, 64 << 10), memory]);
        // Sizes that the program sets apply over each transport, even if they equal the defaults
        // over RDMA.
        let chosen = Config::default().with(|config| {
            config.receive_window = Some(32);
            config.send_depth = Some(16);
            config.eager_size = Some(16 << 10);
        });
        assert_eq!(of(&chosen), [rdma; 3]);
    }

    #[test]
    fn one_processor_turns_spinning_off() {
        assert_eq!(Polling::default().on(1), Polling::Event);
        assert_eq!(Polling::default().on(2), Polling::default());
        assert_eq!(Polling::Busy.on(1), Polling::Busy);
    }

    #[test]
    fn all_timeouts_last_for_twice_the_outage() {
        for secs in [0, 1, 5, 10, 30, 60, 120, 299] {
            let outage = Duration::from_secs(secs);
            let config = Config::default().survive(outage);
            config.check().unwrap();
            let time_limit = 2 * outage + Duration::from_secs(1);
            assert!(config.keepalive_timeout >= time_limit, "{config:?}");
            assert!(config.close_timeout >= time_limit, "{config:?}");
            assert!(config.read_timeout >= time_limit, "{config:?}");
            let tries = config.rdma.all_tries();
            let at_least = time_limit.max(RdmaTuning::default().all_tries());
            assert!((time_limit..2 * at_least).contains(&tries), "{config:?}");
        }
        let config = Config::default().survive(Duration::MAX);
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("close_timeout"), "{error}");
    }

    #[test]
    fn longer_timeouts_survive_a_short_outage() {
        let long = Duration::from_secs(100);
        let config = Config::default().with(|config| {
            config.keepalive_timeout = long;
            config.rdma.ack_timeout = Some(25);
        });
        let config = config.survive(Duration::from_secs(10));
        assert_eq!(config.keepalive_timeout, long);
        assert_eq!(config.rdma.ack_timeout, Some(25));
        assert_eq!(config.close_timeout, Duration::from_secs(21));
        assert_eq!(config.read_timeout, Config::default().read_timeout);
        assert_eq!(config.connect_timeout, Config::default().connect_timeout);
        let default = Config::default();
        assert_eq!(config.keepalive_interval, default.keepalive_interval);
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        let refuse = |change: fn(&mut Config), message: &str| {
            let mut config = Config::default();
            change(&mut config);
            assert_eq!(config.check().unwrap_err().to_string(), message);
        };
        refuse(
            |c| c.receive_window = Some(0),
            "invalid configuration: receive_window is 0, allowed is 1 to 8192",
        );
        refuse(
            |c| c.eager_size = Some(2 << 20),
            "invalid configuration: eager_size is 2097152, allowed is 64 to 1048576",
        );
        refuse(
            |c| c.rdma.retry_count = 8,
            "invalid configuration: rdma.retry_count is 8, allowed is 0 to 7",
        );
        refuse(
            |c| c.connect_timeout = Duration::ZERO,
            "invalid configuration: connect_timeout is 0ns, allowed is 10ms to 600s",
        );
        refuse(
            |c| {
                c.polling = Polling::Adaptive {
                    spin: Duration::from_secs(2),
                }
            },
            "invalid configuration: polling.spin is 2s, allowed is 0ns to 1s",
        );
    }
}
