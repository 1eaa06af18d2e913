use std::time::Duration;

use super::{text::Text, within};
use crate::error::Error;

/// The settings of a connection for its RDMA device. The defaults suit any device. Over TCP only
/// [`retry_count`](Self::retry_count) and [`ack_timeout`](Self::ack_timeout) have an effect.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaTuning {
    /// The maximum size in bytes of a message that is stored inside the work request (inline data).
    ///
    /// The size includes a header of 16 bytes. The value is a hint: the device may grant another
    /// size. If the device refuses this size, the connection tries 256, 128, 96 and 64 bytes, and
    /// then no inline data. The granted size is logged once for each device of an engine. A larger
    /// size costs memory in the driver's send queue.
    ///
    /// 0 to 1024 bytes, default 256.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub max_inline: u32,

    /// The time limit of one attempt to resolve the address, and of one attempt to resolve the
    /// route.
    ///
    /// Failed attempts are repeated within [`connect_timeout`](crate::Config::connect_timeout).
    ///
    /// 10 ms to 1 min, default 2 s.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_text"))]
    pub resolve_timeout: Duration,

    /// The number of times that the device retransmits a packet that the peer does not acknowledge.
    ///
    /// The device waits for [`ack_timeout`](Self::ack_timeout) before each retransmission. If the
    /// peer does not acknowledge the final retransmission either, the connection ends with
    /// [`WcStatus::RETRY_EXC_ERR`](crate::status::WcStatus::RETRY_EXC_ERR).
    ///
    /// Over TCP the connection ends when bytes stay unacknowledged for the total time of all
    /// retransmissions (`TCP_USER_TIMEOUT`, at least 1 s).
    ///
    /// With the value 7 software RoCE retransmits indefinitely. Then only
    /// [keepalive](crate::Config::keepalive_interval) detects a vanished peer.
    ///
    /// 0 to 7, default 7.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub retry_count: u8,

    /// The exponent *n* of the time 4.096 µs × 2ⁿ that the device waits for an acknowledgement.
    ///
    /// A lost packet rarely costs this whole time, because the peer usually detects the loss when
    /// the next packet arrives. With a shorter time, the device would also retransmit packets to a
    /// host that is merely busy. The total time of [`retry_count`](Self::retry_count)
    /// retransmissions depends on the device, which may increase the wait before each of them.
    /// Software RoCE with the default `retry_count` retransmits indefinitely. There, only keepalive
    /// detects a dead host, even while this side sends
    /// ([`KeepaliveTimeout`](crate::CloseReason::KeepaliveTimeout)).
    ///
    /// 1 to 31, or `None` to let the connection manager choose. Default 18 (1.07 s).
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_text"))]
    pub ack_timeout: Option<u8>,

    /// The completion vector of the connection: the index of the device interrupt that wakes
    /// waiting threads.
    ///
    /// The interrupt's affinity in the kernel (`/proc/irq/*/smp_affinity_list`) selects the
    /// processor that handles it. With `None` the connections of a process use the vectors of a
    /// device in rotation. This spreads the interrupts over the processors of all vectors.
    ///
    /// 0 to the device's `num_comp_vectors` − 1 (`ibv_devinfo -v`); with a larger value, connecting
    /// and accepting fail with [`Error::InvalidConfig`]. Default `None`.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub completion_vector: Option<u32>,

    /// Whether the device may write received bytes to memory out of order: see
    /// [`RelaxedOrdering`].
    ///
    /// Default [`Auto`](RelaxedOrdering::Auto): relaxed ordering on processors that are known to
    /// need it.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_text"))]
    pub relaxed_ordering: RelaxedOrdering,

    /// Whether the queue pair of the connection gets its own thread domain, and therefore its own
    /// doorbell register.
    ///
    /// With a thread domain, the driver needs no lock when it posts work requests, because the lock
    /// of the connection suffices. If the device has no free thread domain, the connection works
    /// without one. The log reports the first such connection at the level `debug`.
    ///
    /// Default `true`.
    #[cfg_attr(feature = "serde", serde(with = "super::text::as_number"))]
    pub thread_domain: bool,
}

/// The exponent of the default acknowledgement timeout: 4.096 µs × 2¹⁸ = 1.07 s.
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
    /// Checks that each value is within its range.
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

    /// Sets `retry_count` to 7, and raises `ack_timeout` until the device retransmits for at least
    /// `time` or `ack_timeout` reaches its maximum of 31.
    pub(super) fn retry_for_at_least(&mut self, time: Duration) {
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

    /// Returns the total time that the device waits for an acknowledgement, including all
    /// retransmissions.
    pub(crate) fn all_tries(&self) -> Duration {
        let exponent = self.ack_timeout.unwrap_or(DEFAULT_ACK_TIMEOUT).min(31);
        let tries = u32::from(self.retry_count) + 1;
        Duration::from_nanos(4096 << exponent) * tries
    }
}

/// Whether a device may write received bytes to memory out of order (PCIe relaxed ordering).
///
/// Relaxed ordering applies to receive buffers and to the memory into which large messages are
/// read. This is safe because the library uses the bytes only after the completion, and the device
/// never writes the completion before the bytes. Relaxed ordering does not apply to the memory of a
/// [`Region`](crate::Region), in which a peer's writes must stay in order, or to memory that peers
/// read.
///
/// Some processors need relaxed ordering for the full rate: on AMD EPYC, the UCX project measured
/// 150 Gb/s without relaxed ordering and 200 Gb/s with it. Other processors are slower with relaxed
/// ordering.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelaxedOrdering {
    /// [`On`](Self::On) on AMD EPYC processors of the families 17h and 19h and on Fujitsu A64FX,
    /// [`Off`](Self::Off) on all others.
    #[default]
    Auto,
    /// Requests relaxed ordering. If the device or the kernel does not support relaxed ordering,
    /// the device writes in order. If the device refuses the request, the log reports this once for
    /// each device of an engine.
    On,
    /// The device writes in order.
    Off,
}

impl Text for RelaxedOrdering {
    fn read(&mut self, text: &str) -> Result<(), &'static str> {
        *self = match text {
            "auto" => Self::Auto,
            "on" => Self::On,
            "off" => Self::Off,
            _ => return Err("auto, on or off"),
        };
        Ok(())
    }

    #[cfg(any(feature = "serde", test))]
    fn write(&self) -> String {
        format!("{self:?}").to_lowercase()
    }
}
