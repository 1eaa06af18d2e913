use super::text::Text;

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
