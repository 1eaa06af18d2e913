use crate::verbs::Context;

/// Counters of a device, for all its connections, those of other processes included.
///
/// A counter that the driver does not have is `None`.
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

/// The drivers' names of the counters: software RoCE's, then mlx5's.
const RNR_NAKS: [&str; 3] = ["rcvd_rnr_err", "send_rnr_err", "rnr_nak_retry_err"];
const RETRANSMISSIONS: [&str; 3] = [
    "completer_retry_err",
    "packet_seq_err",
    "local_ack_timeout_err",
];

/// Reads the counters from the kernel's files: not for every message.
pub(super) fn read(context: &Context) -> DeviceCounters {
    DeviceCounters {
        rnr_naks: sum(context, &RNR_NAKS),
        retransmissions: sum(context, &RETRANSMISSIONS),
    }
}

fn sum(context: &Context, names: &[&str]) -> Option<u64> {
    names
        .iter()
        .filter_map(|name| context.hw_counter(1, name))
        .reduce(|sum, count| sum + count)
}
