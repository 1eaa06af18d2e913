use super::{
    registry::{enable, snapshot},
    snapshot::{Kind, SAMPLES},
};

/// Passes the totals of this process on to the recorder of the crate `metrics`.
///
/// Call it periodically, for instance before each scrape, and once before the first connection,
/// because it lists only later ones. The names are those of
/// [`Snapshot::to_prometheus`](super::Snapshot::to_prometheus). Connections have no metrics of
/// their own here, because recorders never drop a label.
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

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex, atomic::AtomicU64},
    };

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::*;

    /// Keeps what is counted, by name.
    #[derive(Default)]
    struct Kept(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl Kept {
        fn value(&self, key: &Key) -> Arc<AtomicU64> {
            let mut all = self.0.lock().unwrap();
            Arc::clone(all.entry(key.name().to_owned()).or_default())
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.value(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.value(key))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn each_total_has_its_metric() {
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, record_metrics);
        let all = kept.0.into_inner().unwrap();
        assert_eq!(all.len(), SAMPLES.len() + 2);
        assert!(all.contains_key("rdmsg_stalls_total"), "{:?}", all.keys());
    }
}
