use std::time::Duration;

use crate::{
    error::Error,
    proto::{self, Account, LONGEST_CHUNK},
};

/// How a connection behaves. [`Config::default`] works; change single fields.
///
/// ```
/// let mut config = rdmsg::Config::default();
/// config.receive_window = 128;
/// config.eager_size = 8 * 1024;
/// ```
///
/// # Locked memory
///
/// A connection's receive and send buffers are locked memory, of which a process may have as much
/// as `ulimit -l` says; root may have any amount. So many connections fit, beside the quarter that
/// [`EngineLimits::pinned`](crate::EngineLimits::pinned) takes for reading messages above the eager
/// size; what a device's driver locks for its queues comes on top and is little beside buffers of
/// some KiB:
///
/// | window, send depth, eager size | bytes | in 64 KiB | in 8 MiB | in 64 MiB | in 1 GiB |
/// |---|---|---|---|---|---|
/// | the default: 32, 16, 16 KiB | 1187840 | 0 | 5 | 42 | 677 |
/// | 64, 64, 16 KiB | 2502656 | 0 | 2 | 20 | 321 |
/// | 32, 32, 8 KiB | 729088 | 0 | 8 | 69 | 1104 |
/// | 16, 16, 4 KiB | 233472 | 0 | 26 | 215 | 3449 |
/// | 8, 8, 1 KiB | 45056 | 1 | 139 | 1117 | 17873 |
///
/// With [`shared_receive`](Self::shared_receive) the receive buffers are those of all connections
/// together, and the others are made when they are first needed.
///
/// Values that cannot work are refused with [`Error::InvalidConfig`] where the configuration is
/// first used: by [`Listener::bind_with`](crate::Listener::bind_with) and
/// [`Connector::connect`](crate::Connector::connect). Limits that only the device knows are checked
/// when the connection's queue pair is made.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// How many messages the peer may have sent that this side has not yet let go of: the receives
    /// kept posted for it.
    ///
    /// A [`Message`](crate::Message) that is kept occupies one place. When all are taken the peer's
    /// `send` waits. 1 to 8192, default 32. Costs `receive_window` ×
    /// [`eager_size`](Self::eager_size) of locked memory a connection.
    pub receive_window: u16,

    /// Share receive buffers with other connections: how many buffers there are for all of them.
    /// For servers with many connections of which few are busy at a time.
    ///
    /// Connections of one [`Engine`](crate::Engine) on one device whose configurations have the
    /// same `shared_receive` and `eager_size` draw on one pool. Each keeps 13 buffers of it for
    /// itself (as many as guarantee that its control frames and its next message find one), and may
    /// use more, up to its [`receive_window`](Self::receive_window), while half of the pool is
    /// free. So a pool of *n* has room for *n*/26 connections whatever they do, and for up to
    /// *n*/13 as long as they do little. One more is refused with
    /// [`Error::SharedReceivesExhausted`], and its peer told
    /// ([`PeerOutOfResources`](crate::CloseReason::PeerOutOfResources)). A message that is kept
    /// occupies its buffer; it never stops other connections from receiving.
    ///
    /// Connections that share have one protection domain, so a peer that guesses keys of 32 bits
    /// could reach memory that was opened for another of these peers. Buffers for sending are made
    /// when they are first needed.
    ///
    /// `None`, the default, gives each connection receive buffers of its own. Otherwise 26 to
    /// 1048576, and no more than the device's shared receive queues hold. Costs `shared_receive` ×
    /// [`eager_size`](Self::eager_size) of locked memory for all of the connections together; a
    /// connection on which nothing happens costs some 46 KiB beside its 13 buffers, most of it for
    /// the device's queues, with a window and a send depth of 16.
    pub shared_receive: Option<u32>,

    /// The largest message in bytes that the peer sends right into a buffer that is posted for it.
    /// Longer ones are read by this side from the peer's memory: one exchange more, but no buffer
    /// waits for them.
    ///
    /// 64 B to 1 MiB, default 16 KiB. See [`receive_window`](Self::receive_window) for what it
    /// costs.
    pub eager_size: u32,

    /// The largest message in bytes that the peer may send to this side.
    ///
    /// 64 B to 1 TiB, default 1 GiB. Costs nothing while there is none.
    pub max_message: u64,

    /// How many bytes of messages above the eager size may be on their way to the peer, and as many
    /// again may have been received and not let go of. The peer's `send` waits when either is
    /// reached. A single message may be longer than this; then it is the only one.
    ///
    /// 64 KiB to 1 TiB, default 64 MiB. What is received takes memory as it arrives, and is locked
    /// only while it is read; what is sent is locked until it has arrived. What all connections may
    /// hold together is said by [`EngineLimits`](crate::EngineLimits).
    pub large_memory: u64,

    /// How many bytes of memory are kept, each way, for the next messages above the eager size,
    /// since mapping it costs time, and registering it: what messages were received into stays
    /// registered. Only memory that this crate allocated itself is kept, so what is kept can never
    /// stand for memory that was unmapped since.
    ///
    /// 0 to 1 TiB, default 16 MiB. From the first such message on until the connection ends; what
    /// is kept for receiving is locked. For receiving, all connections together keep no more than
    /// half of [`EngineLimits::pinned`](crate::EngineLimits::pinned), and on iWARP devices, where a
    /// peer could write to what stays registered, nothing.
    pub registration_cache: u64,

    /// How many messages and one-sided operations may be on their way from this side: the depth of
    /// the send ring.
    ///
    /// 1 to 8192, default 16. Costs `send_depth` × [`eager_size`](Self::eager_size) of locked
    /// memory a connection.
    pub send_depth: u16,

    /// Messages up to this many bytes, 16 bytes of header included, travel inside the work request
    /// itself.
    ///
    /// A request; the device grants what it can. 0 to 1024 bytes, default 256. Costs send queue
    /// memory in the driver.
    pub max_inline: u32,

    /// The bound on establishing a connection, address and route resolution and retries included,
    /// and the wait for its turn: an [`Engine`](crate::Engine) establishes 8 connections at a time
    /// in each direction, the oldest first, and registers their memory when it is their turn. One
    /// whose time is over before ends as timed out in [`Phase::Waiting`](crate::Phase::Waiting).
    ///
    /// Of a name with several addresses it is the bound on all of them. A listener gives a request
    /// as much to be accepted, and as much again from then on to be established.
    ///
    /// 10 ms to 10 min, default 5 s.
    pub connect_timeout: Duration,

    /// The bound on one attempt to resolve the address, and on one to resolve the route. Failed
    /// attempts are repeated within [`connect_timeout`](Self::connect_timeout).
    ///
    /// 10 ms to 1 min, default 2 s.
    pub resolve_timeout: Duration,

    /// Keep trying, within [`connect_timeout`](Self::connect_timeout), while nobody listens at the
    /// peer, while the peer is [busy](crate::CloseReason::PeerBusy), while it still remembers an
    /// earlier connection, and when its process ended before it had answered (its kernel says so as
    /// [`CONSUMER_DEFINED`](crate::status::RejectReason::CONSUMER_DEFINED) without data). For
    /// clients that start before their server, or all at once.
    ///
    /// Default `false`: each of these ends the connect at once.
    pub retry_refused: bool,

    /// The bound on the exchange that closes a connection; afterwards it is torn down and what was
    /// not delivered is lost. A process that ends waits for its connections to close, within this.
    ///
    /// 0 to 10 min, default 5 s.
    pub close_timeout: Duration,

    /// Probe a peer before nothing was heard from it for this long. The sides exchange their values
    /// and each probes at the smaller one, though not more often than every 100 ms at the peer's
    /// wish. `None` sends no probes, and a peer that vanished is noticed only by a send.
    ///
    /// A peer that is gone is reported within `keepalive_interval` +
    /// [`keepalive_timeout`](Self::keepalive_timeout) after its last sign of life, on an idle
    /// connection as on a busy one. A sign of life is anything that arrives, bytes of this side's
    /// that the peer's device has acknowledged, and any of these on another connection with the
    /// same [`Engine`](crate::Engine) of the peer's: on a slow link a probe may wait behind their
    /// bytes. A side that is too busy to look in time gives the peer the time that it lost itself.
    ///
    /// 10 ms to 1 h, default 2 s.
    pub keepalive_interval: Option<Duration>,

    /// How long a probed peer has to show a sign of life before the connection ends with
    /// [`CloseReason::KeepaliveTimeout`](crate::CloseReason::KeepaliveTimeout).
    ///
    /// 10 ms to 10 min, default 3 s.
    pub keepalive_timeout: Duration,

    /// How long a message above the eager size may stand still: its memory is memory that other
    /// connections wait for. When no byte of it, nor of any that is read from the same engine of
    /// the peer, has come for this long, and half as long again at most, the connection ends with
    /// [`CloseReason::ReadTimeout`](crate::CloseReason::ReadTimeout); when there was no memory for
    /// it for this long, with [`CloseReason::OutOfMemory`](crate::CloseReason::OutOfMemory). A
    /// message that comes slowly is left alone, and so is one that waits because the application
    /// holds others (see [`EngineLimits`](crate::EngineLimits)).
    ///
    /// 100 ms to 1 h, default 30 s.
    pub read_timeout: Duration,

    /// How often the device repeats a packet that the peer did not acknowledge, before the
    /// connection ends with [`WcStatus::RETRY_EXC_ERR`](crate::status::WcStatus::RETRY_EXC_ERR).
    ///
    /// 0 to 7, default 7. The wait for each is `ack_timeout`.
    pub retry_count: u8,

    /// How long the device waits for an acknowledgement before it sends again, as the exponent of
    /// 4.096 µs × 2ⁿ.
    ///
    /// 1 to 31, or `None` to let the connection manager choose. Default 18 (1.07 s). A lost packet
    /// is mostly noticed sooner, by the one that comes after it. Shorter is not safer: a peer's
    /// host that is merely busy is sent everything twice. How long `retry_count` of these take is
    /// the device's affair, which may wait longer from one to the next: software RoCE does not give
    /// up within the seconds that keepalive takes with the defaults, so there even a busy sender
    /// learns of a killed host by [`KeepaliveTimeout`](crate::CloseReason::KeepaliveTimeout).
    pub ack_timeout: Option<u8>,

    /// How a thread waits in `recv`, and in `send` when the peer's window is full. Default
    /// [`Polling::Adaptive`] with 200 µs.
    pub polling: Polling,

    /// How many connect requests may wait for [`Listener::accept`](crate::Listener::accept);
    /// further ones are rejected at once, and their connectors see
    /// [`PeerBusy`](crate::CloseReason::PeerBusy).
    ///
    /// 1 to 65535, default 128.
    pub backlog: u16,

    /// Have a listener on one address bind itself again when it lost its RDMA device or its
    /// address: it tries after 100 ms first, then less and less often, up to every 2 s, until it
    /// succeeds or is dropped, and shows nothing of it but in the log. Connections end all the
    /// same. A listener on all addresses (`0.0.0.0`, `[::]`) needs none of it: it takes requests on
    /// whatever devices there are.
    ///
    /// Default `false`: the listener ends with [`Error::ListenerEnded`].
    pub rebind: bool,

    /// How many connections of a listener may be on their way at a time: requested, or accepted and
    /// not established yet. Further requests are rejected at once, and their connectors see
    /// [`PeerBusy`](crate::CloseReason::PeerBusy).
    ///
    /// A peer that asks for a connection and then says nothing takes a place for as long as
    /// [`connect_timeout`](Self::connect_timeout) after it was accepted, and the memory of a
    /// connection. So this is the bound on what such peers cost, and that time the bound on how
    /// long they keep others out.
    ///
    /// 1 to 65535, default 256.
    pub half_open: u16,
}

/// How a thread waits for completions. It is the waiting thread itself that polls; no other thread
/// stands in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polling {
    /// Poll for the given time, then sleep until the device raises an event. Low latency while
    /// messages flow, no processor time while they don't.
    Adaptive {
        /// How long to poll before sleeping, and up to eight times as long while a message above
        /// the eager size is on its way. 0 to 1 s.
        spin: Duration,
    },
    /// Poll until there is something: the lowest latency, at the cost of a processor a waiting
    /// thread.
    Busy,
    /// Sleep at once: the least processor time, at the cost of an interrupt and a wake-up a
    /// message.
    Event,
}

impl Default for Polling {
    fn default() -> Self {
        Self::Adaptive {
            spin: Duration::from_micros(200),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_window: 32,
            shared_receive: None,
            eager_size: 16 * 1024,
            max_message: 1 << 30,
            large_memory: 64 << 20,
            registration_cache: 16 << 20,
            send_depth: 16,
            max_inline: 256,
            connect_timeout: Duration::from_secs(5),
            resolve_timeout: Duration::from_secs(2),
            retry_refused: false,
            close_timeout: Duration::from_secs(5),
            keepalive_interval: Some(Duration::from_secs(2)),
            keepalive_timeout: Duration::from_secs(3),
            read_timeout: Duration::from_secs(30),
            retry_count: 7,
            ack_timeout: Some(18),
            polling: Polling::default(),
            backlog: 128,
            rebind: false,
            half_open: 256,
        }
    }
}

/// How long the work requests of an ended connection may take to come back before the queue pair is
/// destroyed all the same.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

impl Config {
    /// Refuses values that cannot work, whatever the device.
    pub(crate) fn check(&self) -> Result<(), Error> {
        const MS10: Duration = Duration::from_millis(10);
        const MIN1: Duration = Duration::from_secs(60);
        const MIN10: Duration = Duration::from_secs(600);
        const HOUR: Duration = Duration::from_secs(3600);

        within("receive_window", self.receive_window, 1, 8192)?;
        if let Some(count) = self.shared_receive {
            // Half of them are kept for new connections: for one at least, whatever its window.
            let least = 2 * Account::least(u16::MAX);
            within("shared_receive", count, least, 1 << 20)?;
        }
        within("eager_size", self.eager_size, 64, 1 << 20)?;
        within("max_message", self.max_message, 64, 1 << 40)?;
        within("large_memory", self.large_memory, 64 << 10, 1 << 40)?;
        within("registration_cache", self.registration_cache, 0, 1 << 40)?;
        within("send_depth", self.send_depth, 1, 8192)?;
        within("max_inline", self.max_inline, 0, 1024)?;
        within("connect_timeout", self.connect_timeout, MS10, MIN10)?;
        within("resolve_timeout", self.resolve_timeout, MS10, MIN1)?;
        within("close_timeout", self.close_timeout, Duration::ZERO, MIN10)?;
        if let Some(interval) = self.keepalive_interval {
            within("keepalive_interval", interval, MS10, HOUR)?;
        }
        within("keepalive_timeout", self.keepalive_timeout, MS10, MIN10)?;
        within("read_timeout", self.read_timeout, 10 * MS10, HOUR)?;
        within("retry_count", self.retry_count, 0, 7)?;
        if let Some(ack_timeout) = self.ack_timeout {
            within("ack_timeout", ack_timeout, 1, 31)?;
        }
        if let Polling::Adaptive { spin } = self.polling {
            within("polling.spin", spin, Duration::ZERO, Duration::from_secs(1))?;
        }
        within("backlog", self.backlog, 1, u16::MAX)?;
        within("half_open", self.half_open, 1, u16::MAX)
    }

    /// The longest that a connection takes from its close to its end.
    pub(crate) fn longest_close(&self) -> Duration {
        self.close_timeout + DRAIN_TIMEOUT
    }

    /// The part of the configuration that the state machine goes by. The engine's identity is the
    /// engine's to fill in.
    pub(crate) fn params(&self) -> proto::Params {
        proto::Params {
            window: self.receive_window,
            shared: self.shared_receive.is_some(),
            eager_size: self.eager_size,
            max_message: self.max_message,
            large_memory: self.large_memory,
            longest_chunk: LONGEST_CHUNK,
            read_timeout: self.read_timeout,
            send_slots: u32::from(self.send_depth),
            connect_timeout: self.connect_timeout,
            resolve_timeout: self.resolve_timeout,
            retry_refused: self.retry_refused,
            close_timeout: self.close_timeout,
            drain_timeout: DRAIN_TIMEOUT,
            keepalive_interval: self.keepalive_interval,
            keepalive_timeout: self.keepalive_timeout,
            engine: 0,
        }
    }
}

fn within<T: PartialOrd + std::fmt::Debug>(
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
            |c| c.eager_size = 2 << 20,
            "invalid configuration: eager_size is 2097152, allowed is 64 to 1048576",
        );
        refuse(
            |c| c.retry_count = 8,
            "invalid configuration: retry_count is 8, allowed is 0 to 7",
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
