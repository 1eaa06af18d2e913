use crate::{transport::DeviceCounters, verbs::Context};

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
