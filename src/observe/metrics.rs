use super::{
    registry::{enable, snapshot},
    snapshot::{Kind, SAMPLES},
};

/// Passes the totals of this process on to the recorder of the crate `metrics`.
///
/// It is to be called now and then, for instance before each scrape. The names are those of
/// [`Snapshot::to_prometheus`](super::Snapshot::to_prometheus); connections have no metrics of
/// their own here, as recorders keep what once had a label. Connections are kept track of from the
/// first call on: call it once before the first of them.
pub fn record_metrics() {
    enable();
    let snapshot = snapshot();
    let open = u32::try_from(snapshot.connections.len()).unwrap_or(u32::MAX);
    metrics::gauge!("rdmsg_connections").set(open);
    metrics::counter!("rdmsg_connections_ended_total").absolute(snapshot.ended);
    for (name, kind, _, value) in SAMPLES {
        let value = value(&snapshot.all);
        let name = format!("rdmsg_{name}");
        match kind {
            Kind::Counter => metrics::counter!(name).absolute(value),
            Kind::Gauge => metrics::gauge!(name).set(value as f64),
        }
    }
}
