use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use crate::{
    error::Error,
    poll::Polling,
    proto::{self, Account, LONGEST_CHUNK, SessionOffer},
    transport_choice::{Transport, TransportChoice},
};

mod label;
mod rdma_tuning;
mod relaxed_ordering;
pub(crate) mod text;

pub(crate) use self::label::Label;
#[cfg(feature = "serde")]
pub(crate) use self::text::as_number;
pub use self::{rdma_tuning::RdmaTuning, relaxed_ordering::RelaxedOrdering};

/// The configuration of a connection. [`Config::default`] works; change single fields.
///
/// Invalid values are refused with [`Error::InvalidConfig`] at the first use of the configuration:
/// by [`ListenerBuilder::bind`](crate::ListenerBuilder::bind) and
/// [`Connector::connect`](crate::Connector::connect). Limits that only the device knows are checked
/// when the connection's queue pair is created.
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
/// config.receive_window = 128;
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
/// A connection's receive and send buffers are locked memory, which `ulimit -l` bounds for a
/// process; root may lock any amount. The table has the number of connections that fit, when
/// [`EngineLimits::pinned`](crate::EngineLimits::pinned) takes a quarter of the limit for reading
/// messages above the eager size. The queues of the driver come on top, and are small compared with
/// buffers of some KiB:
///
/// | window, send depth, eager size | bytes | in 64 KiB | in 8 MiB | in 64 MiB | in 1 GiB |
/// |---|---|---|---|---|---|
/// | the default: 32, 16, 16 KiB | 1269760 | 0 | 4 | 39 | 634 |
/// | 64, 64, 16 KiB | 2584576 | 0 | 2 | 19 | 311 |
/// | 32, 32, 8 KiB | 770048 | 0 | 8 | 65 | 1045 |
/// | 16, 16, 4 KiB | 253952 | 0 | 24 | 198 | 3171 |
/// | 8, 8, 1 KiB | 49152 | 1 | 128 | 1024 | 16384 |
///
/// With [`shared_receive`](Self::shared_receive) the receive buffers belong to all connections
/// together, and send buffers are allocated when they are first needed.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The number of messages of the peer that may be in flight, or held here.
    ///
    /// A message is held from its receipt until the program drops it. Receives for this number of
    /// messages stay posted. A held [`Message`](crate::Message) occupies one place; when no place
    /// is left, the `send` of the peer waits. Costs `receive_window` ×
    /// [`eager_size`](Self::eager_size) of locked memory a connection.
    ///
    /// 1 to 8192, default 32.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub receive_window: u16,

    /// The number of receive buffers that connections share; `None` for buffers of their own.
    ///
    /// Sharing is for servers with many connections of which few are busy at a time. Connections of
    /// one [`Engine`](crate::Engine) on one device whose configurations have the same
    /// `shared_receive` and `eager_size` draw on one pool. Each keeps 17 buffers of it for itself,
    /// which guarantee that its control frames and its next message find one. Of the other half, a
    /// busy connection uses up to its [`receive_window`](Self::receive_window), and returns buffers
    /// when others need them. So a pool of *n* has room for *n*/34 connections of any load, and for
    /// up to *n*/17 mostly idle ones. A further connection is refused with
    /// [`Error::SharedReceivesExhausted`], and its peer gets
    /// [`PeerOutOfResources`](crate::CloseReason::PeerOutOfResources). A message that is held
    /// occupies its buffer; it never prevents other connections from receiving.
    ///
    /// Connections that share have one protection domain, so a peer that guesses keys of 32 bits
    /// could reach memory that was opened for another of these peers. Send buffers are allocated
    /// when they are first needed.
    ///
    /// Costs `shared_receive` × [`eager_size`](Self::eager_size) of locked memory for all of the
    /// connections together. In addition to its 17 buffers an idle connection costs about 49 KiB,
    /// mostly for the queues of the device, with a window and a send depth of 16.
    ///
    /// `None`, the default, gives each connection receive buffers of its own. Otherwise 34 to
    /// 1048576, up to the limit of the shared receive queues of the device.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub shared_receive: Option<u32>,

    /// The largest message in bytes that the peer sends straight into a posted receive buffer;
    /// `None` for the default of the transport.
    ///
    /// One of up to 3 times this length over RDMA, and 16 times over TCP, comes in several of them.
    /// A longer one is read by this side from the peer's memory, which takes one exchange more, but
    /// needs no posted buffer. See [`receive_window`](Self::receive_window) for the cost. The
    /// smaller value of both sides holds for both.
    ///
    /// Over TCP nothing is locked, and a buffer takes memory at its first use; the buffer that was
    /// used last is used first. With the default a connection reserves about 5 MB of addresses
    /// there, of which a peer can fill 2 MiB while the program receives nothing.
    ///
    /// 64 B to 1 MiB. `None`, the default, is 16 KiB over RDMA and 64 KiB over TCP.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub eager_size: Option<u32>,

    /// The largest message in bytes that the peer may send to this side.
    ///
    /// It costs nothing while there is no such message.
    ///
    /// 64 B to 1 TiB, default 1 GiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub max_message: u64,

    /// The number of bytes of messages above the eager size, in each direction.
    ///
    /// In one direction they are in flight to the peer, in the other they are being received, or
    /// received and not yet dropped. The sender's `send` waits when either side's limit is reached.
    /// A single message may be longer than this; then it is the only one. Received bytes take
    /// memory as they arrive, and are locked only while they are read; sent bytes are locked until
    /// they have arrived. [`EngineLimits`](crate::EngineLimits) bounds the memory of all
    /// connections together.
    ///
    /// 64 KiB to 1 TiB, default 64 MiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub large_memory: u64,

    /// The number of bytes of memory that are kept for later large messages, in each direction.
    ///
    /// Mapping and registering memory takes time. Memory into which messages were received stays
    /// registered, and so locked. So does memory for messages of up to an eighth of this, if the
    /// device has memory windows, which give each message a key of its own; other memory for
    /// sending does not. Only memory that the library allocated itself is kept, so a registration
    /// can never outlive its mapping. It is kept from the first message above the eager size until
    /// the connection ends. All connections together keep at most half of
    /// [`EngineLimits::pinned`](crate::EngineLimits::pinned) registered. On iWARP devices nothing
    /// stays registered, because a peer could write to memory into which messages are received.
    ///
    /// 0 to 1 TiB, default 16 MiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub registration_cache: u64,

    /// The number of bytes that a [`Stream`](crate::Stream) takes from a writer before any is read.
    ///
    /// Half of it bounds the bytes that have arrived here and that the program has not read. The
    /// other half bounds the bytes that the program has written before the peer has room. So
    /// a stream whose peer does not read takes about this many bytes, whatever the length of the
    /// writes, as a socket does. A peer with another value has its own halves.
    ///
    /// The memory is allocated as it is needed, and not locked. The buffers of
    /// [`receive_window`](Self::receive_window) and [`send_depth`](Self::send_depth) come on top.
    /// None of it is used while both sides keep up with each other. The bytes that have arrived
    /// count in [`EngineLimits::held`](crate::EngineLimits::held), of which all streams together
    /// use a half at most. When that is in use, unread bytes stay in the receive buffers.
    ///
    /// 64 KiB to 1 GiB, default 4 MiB.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub stream_buffer: u64,

    /// The depth of the send ring: how many messages and one-sided operations may be in flight.
    ///
    /// Costs `send_depth` × [`eager_size`](Self::eager_size) of locked memory a connection.
    ///
    /// 1 to 8192, default 16.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub send_depth: u16,

    /// The time limit for establishing a connection.
    ///
    /// It includes address and route resolution, retries, and the wait for the connection's turn:
    /// an [`Engine`](crate::Engine) establishes 8 connections at a time in each direction, the
    /// oldest first, and registers their memory when it is their turn. A connection whose time
    /// passes before its turn times out in [`Phase::Waiting`](crate::error::Phase::Waiting). All
    /// addresses of a name share one limit. A listener gives a request this long to be accepted,
    /// and this long again to be established.
    ///
    /// 10 ms to 10 min, default 5 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub connect_timeout: Duration,

    /// The time limit for the exchange that closes a connection.
    ///
    /// After it the connection is torn down, and undelivered messages are lost. A process that ends
    /// waits this long for its connections to close.
    ///
    /// 0 to 10 min, default 5 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub close_timeout: Duration,

    /// The silence after which a peer is probed.
    ///
    /// The two sides exchange their values, and each probes at the smaller one, though at the
    /// peer's wish not more often than every 100 ms. `None` sends no probes, so that only a send
    /// notices that the peer vanished.
    ///
    /// A peer that vanished is reported within `keepalive_interval` +
    /// [`keepalive_timeout`](Self::keepalive_timeout) after its last sign of life, on an idle
    /// connection as on a busy one. A sign of life is anything that arrives, bytes of this side
    /// that the peer's device has acknowledged, and either of these on another connection with the
    /// same [`Engine`](crate::Engine) of the peer: on a slow link a probe may wait behind their
    /// bytes. A side that is too busy to poll in time extends the time of the peer by the delay.
    ///
    /// The report comes up to 100 ms later while the peer is sent the reason
    /// ([`CloseReason::PeerGaveUp`](crate::CloseReason::PeerGaveUp)). Over TCP it comes up to
    /// `keepalive_timeout` later if bytes of this side are not acknowledged, or were repeated: the
    /// kernels of both sides repeat lost bytes after pauses that double. So an outage shorter than
    /// `keepalive_timeout` ends no connection.
    ///
    /// Of many idle connections with one engine of the peer, a few are probed in an interval, and
    /// each of them at least every 16 intervals. So the loss of a single connection, while the
    /// others live, is reported after at most 16 intervals and `keepalive_timeout`.
    ///
    /// When an RDMA device reports that the link of a port was lost (`PORT_ERR`), the connections
    /// of the port with [`resume`](Self::resume) are probed at once, also without an interval.
    /// Software RoCE fails a connection that sends while its network interface is down.
    ///
    /// 10 ms to 1 h, default 2 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub keepalive_interval: Option<Duration>,

    /// The time in which a probed peer must show a sign of life.
    ///
    /// Otherwise the connection ends with
    /// [`CloseReason::KeepaliveTimeout`](crate::CloseReason::KeepaliveTimeout).
    ///
    /// 10 ms to 10 min, default 3 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub keepalive_timeout: Duration,

    /// The time for which reading a message above the eager size may make no progress.
    ///
    /// Other connections wait for the memory of such a message. The connection ends with
    /// [`CloseReason::ReadTimeout`](crate::CloseReason::ReadTimeout) when no byte of it, nor of any
    /// other read from the same engine of the peer, has arrived for this time (detected within 1.5
    /// × this time), and with [`CloseReason::OutOfMemory`](crate::CloseReason::OutOfMemory) when no
    /// memory was available for it for this time. Slow messages are not affected, nor are messages
    /// that wait because the application holds others (see [`EngineLimits`](crate::EngineLimits)).
    /// While other connections wait for its memory, an eighth of the bytes that have arrived of it
    /// must follow within each `read_timeout`.
    ///
    /// 100 ms to 1 h, default 30 s.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub read_timeout: Duration,

    /// How long the connection survives the loss of its path, of its device, or of the TCP
    /// connection below it. Zero: not at all.
    ///
    /// Both sides set it. Then each side keeps the messages that the peer is not known to have
    /// received, at most the peer's window, in memory of its own. When the connection is lost, the
    /// side that connected first connects again, at once and then with growing waits up to 1 s. It
    /// tries each [`transport`](Self::transport) that is allowed, and the
    /// [`alternatives`](crate::Connector::alternatives) of the address. Each side sends again the
    /// messages that the other has not received. So every message arrives once and in order, and
    /// the calls of both programs wait as if the window was full. The loss itself is noticed as
    /// without it, after [`keepalive_interval`](Self::keepalive_interval) and
    /// [`keepalive_timeout`](Self::keepalive_timeout) at most, and 500 ms after an RDMA device
    /// reported that a port lost its link, unless the link returns. When this time has passed since
    /// then, the connection ends for the reason of the loss. It ends with
    /// [`CloseReason::SessionLost`](crate::CloseReason::SessionLost) if the peer's process has been
    /// started again.
    ///
    /// The listener stays open, because the peer connects to it again, or to another one of the
    /// same [`Engine`](crate::Engine). A connection that is being closed survives for
    /// [`close_timeout`](Self::close_timeout) at most. Of the connections that this process
    /// accepted, 1024 may wait for their peers; then the oldest of them ends.
    ///
    /// A [one-sided](crate::OneSided) write or atomic operation that is in flight at the loss ends
    /// in [`Completion::OutcomeUnknown`](crate::Completion::OutcomeUnknown), and regions of the
    /// lost connection are [stale](crate::Error::StaleRegion). Writes with immediate data and
    /// [`shared_receive`](Self::shared_receive) are not supported. A connection whose acceptance
    /// carries more than 148 bytes ([`Request::accept_with`](crate::Request::accept_with)) does not
    /// survive.
    ///
    /// Up to 1 h, default zero.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub resume: Duration,

    /// The transport of the connection: RDMA, TCP, or the available one.
    ///
    /// The scheme of an address ([`ToAddresses`](crate::ToAddresses)) takes precedence.
    ///
    /// Default: [`TransportChoice::Environment`].
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub transport: TransportChoice,

    /// The traffic class of the connection's packets: the byte of the IP header with DSCP in its
    /// upper six bits and ECN in its lower two.
    ///
    /// Switches and network interfaces choose the priority of a packet by DSCP, and with it the
    /// lossless class of a RoCE network. DSCP 26 is `Some(26 << 2)`.
    ///
    /// Over InfiniBand and RoCE the value of the connecting side holds in both directions, and all
    /// eight bits are sent. Over TCP and iWARP each side sets its own, and over TCP the kernel
    /// keeps the bits of ECN. If the system refuses the value, connecting and listening fail with
    /// [`Error::InvalidConfig`].
    ///
    /// 0 to 255. `None`, the default, leaves the choice to the system: 0 over TCP, and over RoCE
    /// the `default_roce_tos` of the port, which is 0 as well if nothing has changed it.
    #[cfg_attr(feature = "serde", serde(with = "text::as_number"))]
    pub traffic_class: Option<u8>,

    /// How a thread waits in `recv`, and in `send` while the peer's window is full.
    ///
    /// Default [`Polling::Adaptive`] with 200 µs.
    #[cfg_attr(feature = "serde", serde(with = "text::as_text"))]
    pub polling: Polling,

    /// The values of a device.
    pub rdma: RdmaTuning,

    /// The values of a listener.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) listening: Listening,

    /// Whether a connect that the peer refuses is retried.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) retry_refused: bool,

    /// The address from which a connector connects.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) source: Option<SocketAddr>,

    /// The program's name for the connections.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) label: Label,

    /// Whether the connections are those of [`Stream`](crate::Stream)s.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) stream: bool,
}

/// The values of a listener. [`ListenerBuilder`](crate::ListenerBuilder) explains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listening {
    pub(crate) backlog: u16,
    pub(crate) half_open: u16,
    pub(crate) rebind: bool,
    pub(crate) reuse_port: bool,
    pub(crate) inherited: Option<Inherited>,
    /// Whether both ends of a connection within the process belong to the program. The connection
    /// resumes even though its listener has ended.
    pub(crate) is_of_pair: bool,
}

/// A TCP socket that another process has bound.
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
            receive_window: 32,
            shared_receive: None,
            eager_size: None,
            max_message: 1 << 30,
            large_memory: 64 << 20,
            registration_cache: 16 << 20,
            stream_buffer: 4 << 20,
            send_depth: 16,
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

/// How long the work requests of an ended connection may take to complete.
///
/// Then the queue pair is destroyed all the same.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The eager size, if the application chose none. Over RDMA the buffers are locked; over TCP an
/// exchange costs more than bytes.
const EAGER_OVER_RDMA: u32 = 16 << 10;
const EAGER_OVER_TCP: u32 = 64 << 10;

/// The number of frames in which a message above the eager size is sent at most. One more frame
/// costs less than an exchange, but its bytes are copied twice. Over RDMA a frame is shorter and a
/// READ copies nothing, so the exchange costs no more than four frames.
const FRAGMENTS_OVER_RDMA: u32 = 3;
const FRAGMENTS_OVER_TCP: u32 = 16;

/// A frame behind this many bytes is acknowledged, so that a sender on a slow link sees its bytes
/// arrive: on one of 1 Mbit/s twice a second. Over TCP this side sends the acknowledgement: every
/// two seconds, of the three in which a peer must show a sign of life.
const UNSIGNALLED_OVER_RDMA: u32 = 64 << 10;
const UNSIGNALLED_OVER_TCP: u32 = 256 << 10;

impl Config {
    /// Returns the configuration after a change, so that a configuration can be written as an
    /// expression.
    ///
    /// ```
    /// use rdmsg::Config;
    ///
    /// let small = Config::default().with(|config| {
    ///     config.receive_window = 8;
    ///     config.send_depth = 8;
    /// });
    /// assert_eq!((small.receive_window, small.send_depth), (8, 8));
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the configuration for connections that survive an outage of the network of this
    /// length.
    ///
    /// With the default configuration an outage shorter than 3 s ends no connection. The repetition
    /// of a lost packet may come at up to twice the length of the outage after its beginning,
    /// because the kernel doubles its pauses over TCP and iWARP. So this raises
    /// [`keepalive_timeout`](Self::keepalive_timeout),
    /// [`close_timeout`](Self::close_timeout) and [`read_timeout`](Self::read_timeout) to 2 ×
    /// `outage` + 1 s. It sets [`retry_count`](RdmaTuning::retry_count) to 7, and raises
    /// [`ack_timeout`](RdmaTuning::ack_timeout) until eight of these take at least this time, and
    /// less than twice this time. Over TCP their sum is the `TCP_USER_TIMEOUT` of the socket.
    /// Values that are longer already remain, and so do
    /// [`keepalive_interval`](Self::keepalive_interval) and
    /// [`connect_timeout`](Self::connect_timeout).
    ///
    /// Each side gives its peer up by its own values, so both sides need this configuration.
    /// Otherwise the peer ends the connection after its own time. Only `retry_count` over RDMA is
    /// that of the connecting side on both sides.
    ///
    /// A connection carries nothing during an outage, and `send` waits when the window is full. A
    /// network device that is taken down on one of the hosts is no outage of the network: its
    /// driver may end RDMA connections at once.
    ///
    /// The cost is a later notice. A peer that vanished is reported up to
    /// [`keepalive_interval`](Self::keepalive_interval) + 2 × `outage` + 1 s after its last sign of
    /// life, and over TCP after up to twice this time. For that long its memory and descriptors
    /// stay in use, and calls on the connection wait. A close, and the exit of a process, waits up
    /// to 2 × `outage` + 1 s for a peer that does not answer. [`Connector::persist`] notices at the
    /// usual time and connects again instead.
    ///
    /// 0 to 299 s. Beyond it the timeouts exceed their bounds, and the first use of the
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
        self.rdma.try_for(time_limit);
        self
    }

    /// Checks that each value is within its range, and that the values go together. A connect or a
    /// bind checks them as well.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], with the name of the first field whose value cannot work on any
    /// device, and the allowed values; also if `RDMSG_TRANSPORT` is read and names no transport.
    ///
    /// # Examples
    ///
    /// ```
    /// let config = rdmsg::Config::default().with(|config| config.receive_window = 0);
    /// let error = config.check().unwrap_err().to_string();
    /// assert!(error.contains("receive_window is 0, allowed is 1 to 8192"));
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        const MS10: Duration = Duration::from_millis(10);
        const MIN10: Duration = Duration::from_secs(600);
        const HOUR: Duration = Duration::from_secs(3600);

        within("receive_window", self.receive_window, 1, 8192)?;
        if let Some(count) = self.shared_receive {
            // Half of the pool is kept for new connections. It must be enough for one connection
            // with any window.
            let least = 2 * Account::least(u16::MAX);
            within("shared_receive", count, least, 1 << 20)?;
        }
        if let Some(eager_size) = self.eager_size {
            within("eager_size", eager_size, 64, 1 << 20)?;
        }
        within("max_message", self.max_message, 64, 1 << 40)?;
        within("large_memory", self.large_memory, 64 << 10, 1 << 40)?;
        within("registration_cache", self.registration_cache, 0, 1 << 40)?;
        within("stream_buffer", self.stream_buffer, 64 << 10, 1 << 30)?;
        within("send_depth", self.send_depth, 1, 8192)?;
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

    /// Returns the longest time from a close to the end of the connection.
    pub(crate) fn longest_close(&self) -> Duration {
        self.close_timeout + DRAIN_TIMEOUT
    }

    /// Returns the part that the state machine uses. The engine fills in its own identity.
    pub(crate) fn params(&self, transport: Transport) -> proto::Params {
        let (eager_size, most_fragments, most_unsignalled) = match transport {
            Transport::Rdma => (EAGER_OVER_RDMA, FRAGMENTS_OVER_RDMA, UNSIGNALLED_OVER_RDMA),
            Transport::Tcp | Transport::Memory => {
                (EAGER_OVER_TCP, FRAGMENTS_OVER_TCP, UNSIGNALLED_OVER_TCP)
            }
        };
        proto::Params {
            window: self.receive_window,
            shared: self.shared_receive.is_some(),
            eager_size: self.eager_size.unwrap_or(eager_size),
            max_message: self.max_message,
            large_memory: self.large_memory,
            longest_chunk: LONGEST_CHUNK,
            read_timeout: self.read_timeout,
            send_slots: u32::from(self.send_depth),
            most_fragments,
            most_unsignalled,
            // No timer runs for connections within the process.
            delays_grants: transport != Transport::Memory,
            connect_timeout: self.connect_timeout,
            resolve_timeout: self.rdma.resolve_timeout,
            retry_refused: self.retry_refused,
            close_timeout: self.close_timeout,
            drain_timeout: DRAIN_TIMEOUT,
            // A peer in this process does not vanish.
            keepalive_interval: self
                .keepalive_interval
                .filter(|_| transport != Transport::Memory),
            keepalive_timeout: self.keepalive_timeout,
            stream: self.stream,
            // The reader of a stream takes bytes only.
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
    fn default_eager_size_depends_on_transport() {
        let of = |config: &Config| {
            [Transport::Rdma, Transport::Tcp].map(|transport| config.params(transport).eager_size)
        };
        assert_eq!(of(&Config::default()), [16 << 10, 64 << 10]);
        let chosen = Config::default().with(|config| config.eager_size = Some(1000));
        assert_eq!(of(&chosen), [1000, 1000]);
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
            |c| c.receive_window = 0,
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
