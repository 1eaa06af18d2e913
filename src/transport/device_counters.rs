/// Counters of a device, for all its connections, those of other processes included.
///
/// A counter that the driver does not have is `None`. [`DeviceCounters::of`] reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// The number of times that a receiver was not ready, at either end of a connection.
    ///
    /// A receive was missing. The library keeps receives posted, so its connections add nothing
    /// here.
    pub rnr_naks: Option<u64>,
    /// The number of times that packets were sent again.
    ///
    /// They, or their acknowledgements, were lost or late.
    pub retransmissions: Option<u64>,
}
