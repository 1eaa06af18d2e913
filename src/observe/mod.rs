//! Statistics of the connections of this process: for monitoring, and for `rdmsg top`.
//!
//! A program turns the statistics on with [`enable`] or an [`Export`]. Until then nothing is
//! recorded, and each new connection costs one atomic load. Afterwards a new connection is listed
//! while a handle of it exists; when the last handle is dropped, its counts stay in the totals. A
//! snapshot takes each connection's lock for a moment; between two snapshots, sends and receives
//! cost nothing extra.
//!
//! * [`snapshot()`] returns all of it, and [`Snapshot::to_prometheus`] writes it as text for
//!   Prometheus.
//! * An [`Export`] offers that text on a local socket: to `rdmsg top`, and to any HTTP client.
//! * With the feature `metrics`, `record_metrics` passes the totals on to the recorder of the crate
//!   `metrics`.
//!
//! [The guide](crate::guide::observing) shows each of them.

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
