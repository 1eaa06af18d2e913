use std::time::Duration;

use super::{RelaxedOrdering, within};
use crate::error::Error;

/// The values of a connection that only its RDMA device uses. The defaults suit any device.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaTuning {
    /// The size in bytes up to which messages travel inside the work request itself.
    ///
    /// The size includes 16 bytes of header. It is a hint: the device may grant another size, and
    /// if it refuses this one, the connection tries 256, 128, 96 and 64 bytes and then none. The
    /// log has the size that was granted, once for each device of an engine. Costs memory of the
    /// send queue in the driver.
    ///
    /// 0 to 1024 bytes, default 256.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub max_inline: u32,

    /// The time limit for one attempt to resolve the address, and for one to resolve the route.
    ///
    /// Failed attempts are repeated within [`connect_timeout`](crate::Config::connect_timeout).
    ///
    /// 10 ms to 1 min, default 2 s.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_text"))]
    pub resolve_timeout: Duration,

    /// The number of times that the device repeats a packet that the peer does not acknowledge.
    ///
    /// The device waits for [`ack_timeout`](Self::ack_timeout) before each repetition. If the last
    /// one is not acknowledged either, the connection ends with
    /// [`WcStatus::RETRY_EXC_ERR`](crate::status::WcStatus::RETRY_EXC_ERR).
    ///
    /// Over TCP, bytes without an acknowledgement for the time of all tries end the connection
    /// (`TCP_USER_TIMEOUT`, at least 1 s).
    ///
    /// Software RoCE repeats without end if the value is 7. There the
    /// [keepalive](crate::Config::keepalive_interval) alone notices a peer that has gone.
    ///
    /// 0 to 7, default 7.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub retry_count: u8,

    /// How long the device waits for an acknowledgement, as the exponent of 4.096 µs × 2ⁿ.
    ///
    /// In most cases the peer notices a lost packet sooner, by the packet after it. A shorter time
    /// is not safer, because the device then repeats packets to a host that is only busy. The total
    /// time of [`retry_count`](Self::retry_count) repetitions depends on the device, which may wait
    /// longer before each further one. On software RoCE with the default `retry_count` that takes
    /// longer than keepalive, so keepalive alone detects a dead host there, also while this side
    /// sends ([`KeepaliveTimeout`](crate::CloseReason::KeepaliveTimeout)).
    ///
    /// 1 to 31, or `None` to let the connection manager choose. Default 18 (1.07 s).
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_text"))]
    pub ack_timeout: Option<u8>,

    /// The completion vector of the connection: the number of the device's interrupt that wakes
    /// waiting threads.
    ///
    /// The processor that serves an interrupt is its affinity in the kernel
    /// (`/proc/irq/*/smp_affinity_list`). With `None` the connections of a process take the vectors
    /// of a device in turn, so that all of these processors share the interrupts.
    ///
    /// 0 to the device's `num_comp_vectors` − 1 (`ibv_devinfo -v`); connecting and accepting fail
    /// with [`Error::InvalidConfig`] beyond it. Default `None`.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub completion_vector: Option<u32>,

    /// Whether the device may reorder its writes of received bytes to memory: see
    /// [`RelaxedOrdering`].
    ///
    /// Default [`Auto`](RelaxedOrdering::Auto): on the processors that are known to need it.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_text"))]
    pub relaxed_ordering: RelaxedOrdering,

    /// Whether the queue pair of the connection gets a thread domain, and with it a doorbell
    /// register of its own.
    ///
    /// The driver then takes no locks to post, because the connection has one. Connections for
    /// which the device has no thread domain do without; the log has the first one at the level
    /// `debug`.
    ///
    /// Default `true`.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub thread_domain: bool,
}

/// The exponent of the default acknowledgement timeout of 1.07 s.
const DEFAULT_ACK_TIMEOUT: u8 = 18;

impl Default for RdmaTuning {
    fn default() -> Self {
        Self {
            max_inline: 256,
            resolve_timeout: Duration::from_secs(2),
            retry_count: 7,
            ack_timeout: Some(DEFAULT_ACK_TIMEOUT),
            completion_vector: None,
            relaxed_ordering: RelaxedOrdering::Auto,
            thread_domain: true,
        }
    }
}

impl RdmaTuning {
    /// Refuses values that cannot work on any device.
    pub(super) fn check(&self) -> Result<(), Error> {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(60));
        within("rdma.max_inline", self.max_inline, 0, 1024)?;
        within("rdma.resolve_timeout", self.resolve_timeout, least, most)?;
        within("rdma.retry_count", self.retry_count, 0, 7)?;
        if let Some(ack_timeout) = self.ack_timeout {
            within("rdma.ack_timeout", ack_timeout, 1, 31)?;
        }
        Ok(())
    }

    /// Raises the values until the device tries for this time at least.
    pub(super) fn try_for(&mut self, time: Duration) {
        self.retry_count = 7;
        let least = self.ack_timeout.unwrap_or(DEFAULT_ACK_TIMEOUT);
        let enough = (least..31).find(|exponent| {
            let tries = Self {
                ack_timeout: Some(*exponent),
                ..*self
            };
            tries.all_tries() >= time
        });
        self.ack_timeout = Some(enough.unwrap_or(31));
    }

    /// Returns the time after which the device gives the peer up.
    pub(crate) fn all_tries(&self) -> Duration {
        let exponent = self.ack_timeout.unwrap_or(DEFAULT_ACK_TIMEOUT).min(31);
        let tries = u32::from(self.retry_count) + 1;
        Duration::from_nanos(4096 << exponent) * tries
    }
}
