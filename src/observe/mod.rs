//! Statistics of the connections of this process, for monitoring and for `rdmsg top`.
//!
//! A program enables the statistics with [`enable`] or an [`Export`]. Until then nothing is
//! recorded, and each new connection costs one atomic load. Afterwards, each new connection is
//! listed until its last handle is dropped. The totals include ended connections, too. A snapshot
//! briefly locks each connection. Sends and receives cost nothing extra.
//!
//! * [`snapshot()`] returns all statistics, and [`Snapshot::to_prometheus`] formats them for
//!   Prometheus.
//! * An [`Export`] serves that text on a local socket, for `rdmsg top` and for any HTTP client.
//! * With the feature `metrics`, `record_metrics` passes the totals to the recorder of the crate
//!   `metrics`.
//!
//! [The guide](crate::guide::observing) shows how to use them.

mod export;
mod prometheus;
mod registry;

#[cfg(feature = "metrics")]
pub use self::prometheus::record_metrics;
pub(crate) use self::registry::Registered;
pub use crate::engine::DeviceEvents;

pub use self::{
    export::Export,
    registry::{ConnectionSnapshot, RoundTrips, Snapshot, enable, snapshot},
};

#[cfg(test)]
mod tests {
    use crate::os::foreign::Target;

    #[test]
    fn guide_lists_the_targets_of_the_log() {
        let guide = include_str!("../../docs/guide/observing.md");
        let rows = guide.lines().filter_map(|line| {
            let (target, _) = line.strip_prefix("| `rdmsg::")?.split_once('`')?;
            Some(format!("rdmsg::{target}"))
        });
        let rows: Vec<String> = rows.collect();
        assert_eq!(rows, Target::ALL.map(Target::name));
    }
}
