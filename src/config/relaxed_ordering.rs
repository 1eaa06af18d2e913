use super::text::Text;

/// Whether a device may reorder its writes of received bytes to memory on their way through PCIe.
///
/// It affects receive buffers and the memory into which large messages are read: the library uses
/// their bytes only after the completion, which is never reordered. It affects neither the memory
/// of a [`Region`](crate::Region), in which a peer's writes have an order, nor memory that peers
/// read.
///
/// On some processors relaxed ordering is needed for the full rate: UCX saw 150 instead of 200 Gb/s
/// on AMD EPYC. On others it is slower.
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelaxedOrdering {
    /// As [`On`](Self::On) on AMD EPYC processors of the families 17h and 19h and on Fujitsu A64FX,
    /// and as [`Off`](Self::Off) on all others.
    #[default]
    Auto,
    /// Asks the device for relaxed ordering. A device or kernel without it writes in order. If it
    /// refuses the request, the log reports this once for each device of an engine.
    On,
    /// All writes are in order.
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
