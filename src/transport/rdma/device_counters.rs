use crate::verbs::Context;

/// What a device counts of all its connections, this process's and others'. `None` where its driver
/// does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// How often a receiver was not ready, at either end of a connection: a receive was missing.
    /// This crate's connections keep them posted, so they add nothing to it.
    pub rnr_naks: Option<u64>,
    /// How often the device sent packets again because they, or their acknowledgements, were lost
    /// or late.
    pub retransmissions: Option<u64>,
}

/// The drivers' names for it: software RoCE's, then mlx5's.
const RNR_NAKS: [&str; 3] = ["rcvd_rnr_err", "send_rnr_err", "rnr_nak_retry_err"];
const RETRANSMISSIONS: [&str; 3] = [
    "completer_retry_err",
    "packet_seq_err",
    "local_ack_timeout_err",
];

/// Reads what the device counts. It reads files, so not for every message.
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
