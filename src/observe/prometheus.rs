//! The names of all metrics, and their text for Prometheus.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
};

use super::registry::{ConnectionSnapshot, Snapshot};
#[cfg(feature = "metrics")]
use super::registry::{enable, snapshot};
use crate::{addresses::Shown, engine::DeviceEvents, proto::Statistics};

/// The names of the metrics that are not in [`SAMPLES`].
const CONNECTIONS: &str = "rdmsg_connections";
const ENDED: &str = "rdmsg_connections_ended_total";
const FAILED: &str = "rdmsg_connects_failed_total";
const REFUSED: &str = "rdmsg_requests_refused_total";
const ROUND_TRIP: &str = "rdmsg_keepalive_round_trip_seconds";
const DEVICE_EVENTS: &str = "rdmsg_device_events_total";
const AGE: &str = "rdmsg_connection_age_seconds";
const STATE: &str = "rdmsg_connection_state";

/// The type of a metric: a counter never decreases, a gauge can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    /// A gauge in seconds, whose value in [`Statistics`] is in milliseconds.
    Seconds,
}

impl Kind {
    /// Returns the name of the type in the exposition format.
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge | Self::Seconds => "gauge",
        }
    }

    /// Returns the exported text of a value.
    fn text(self, value: u64) -> String {
        match self {
            Self::Counter | Self::Gauge => value.to_string(),
            Self::Seconds => (value as f64 / 1000.0).to_string(),
        }
    }
}

/// A metric that is reported for each connection and for all connections together: its name, its
/// type, its description, and the function that returns its value.
type Sample = (&'static str, Kind, &'static str, fn(&Statistics) -> u64);

/// The metrics of all values in [`Statistics`].
const SAMPLES: &[Sample] = &[
    (
        "messages_sent_total",
        Kind::Counter,
        "Messages sent.",
        |it| it.messages_sent,
    ),
    (
        "sent_bytes_total",
        Kind::Counter,
        "Bytes of messages sent.",
        |it| it.bytes_sent,
    ),
    (
        "large_messages_sent_total",
        Kind::Counter,
        "Sent messages above the eager size. The peer reads their bytes.",
        |it| it.large_sent,
    ),
    (
        "messages_received_total",
        Kind::Counter,
        "Messages received.",
        |it| it.messages_received,
    ),
    (
        "received_bytes_total",
        Kind::Counter,
        "Bytes of messages received.",
        |it| it.bytes_received,
    ),
    (
        "large_messages_received_total",
        Kind::Counter,
        "Messages received above the eager size.",
        |it| it.large_received,
    ),
    (
        "operations_total",
        Kind::Counter,
        "One-sided operations started.",
        |it| it.operations,
    ),
    (
        "stalls_total",
        Kind::Counter,
        "Sends and operations that had to wait for the peer.",
        |it| it.stalls,
    ),
    (
        "pings_sent_total",
        Kind::Counter,
        "Pings sent by keepalive and by flushes.",
        |it| it.pings_sent,
    ),
    (
        "resumes_total",
        Kind::Counter,
        "Lost connections that were resumed.",
        |it| it.resumes,
    ),
    (
        "resent_total",
        Kind::Counter,
        "Messages sent again after a connection was resumed.",
        |it| it.resent,
    ),
    (
        "longest_gap_seconds",
        Kind::Seconds,
        "Longest time from the loss of a connection to its resumption.",
        |it| it.longest_gap_ms,
    ),
    (
        "buffers_held",
        Kind::Gauge,
        "Receive buffers whose messages the application holds.",
        |it| it.buffers_held,
    ),
    (
        "large_bytes_held",
        Kind::Gauge,
        "Bytes of large messages being received, or held by the application.",
        |it| it.large_bytes_held,
    ),
    (
        "large_bytes_exposed",
        Kind::Gauge,
        "Bytes of large messages that the peer has not read yet.",
        |it| it.large_bytes_exposed,
    ),
];

impl Snapshot {
    /// Formats the totals of the process, and the values of each connection, for Prometheus
    /// (exposition format 0.0.4).
    ///
    /// Totals are named `rdmsg_…`, values of connections `rdmsg_connection_…`. Values of
    /// connections have the labels `connection`, `peer` and `transport`. The label `label` is added
    /// if the program has set a label for the connection. [The guide](crate::guide::observing)
    /// lists all metrics.
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_prometheus(&mut text);
        text
    }

    fn write_prometheus(&self, out: &mut String) -> fmt::Result {
        let open = self.connections.len();
        head(
            out,
            CONNECTIONS,
            Kind::Gauge.name(),
            "Connections with handles.",
        )?;
        writeln!(out, "{CONNECTIONS} {open}")?;
        for (name, help, counts) in self.by_reason() {
            head(out, name, Kind::Counter.name(), help)?;
            for (reason, count) in counts {
                writeln!(out, "{name}{{reason=\"{reason}\"}} {count}")?;
            }
        }
        self.write_round_trips(out)?;
        for (name, kind, help, value) in SAMPLES {
            head(out, &format!("rdmsg_{name}"), kind.name(), help)?;
            writeln!(out, "rdmsg_{name} {}", kind.text(value(&self.all)))?;
        }
        if !self.device_events.is_empty() {
            let help = "Events that devices reported, such as the loss of a link.";
            head(out, DEVICE_EVENTS, Kind::Counter.name(), help)?;
        }
        for DeviceEvents {
            device,
            event,
            count,
        } in &self.device_events
        {
            let labels = format_args!("device=\"{device}\",event=\"{event}\"");
            writeln!(out, "{DEVICE_EVENTS}{{{labels}}} {count}")?;
        }
        if open == 0 {
            return Ok(());
        }
        let help = "State: 0 is open, 1 suspended, 2 ended.";
        head(out, STATE, Kind::Gauge.name(), help)?;
        for connection in &self.connections {
            let labels = connection.labels();
            writeln!(out, "{STATE}{{{labels}}} {}", connection.state())?;
        }
        head(
            out,
            AGE,
            Kind::Gauge.name(),
            "Time since the connection was established.",
        )?;
        for connection in &self.connections {
            let age = connection.age.as_secs_f64();
            writeln!(out, "{AGE}{{{}}} {age:.3}", connection.labels())?;
        }
        for (name, kind, help, value) in SAMPLES {
            head(out, &format!("rdmsg_connection_{name}"), kind.name(), help)?;
            for connection in &self.connections {
                let labels = connection.labels();
                let value = kind.text(value(&connection.statistics));
                writeln!(out, "rdmsg_connection_{name}{{{labels}}} {value}")?;
            }
        }
        Ok(())
    }

    /// Returns the counters that have one value per reason, each with its name and its description.
    fn by_reason(&self) -> [(&'static str, &'static str, &BTreeMap<&'static str, u64>); 3] {
        let ended = "Established connections that ended, by reason.";
        let failed = "Connects of this process that failed, by reason.";
        let refused = "Requests of peers that this process refused, by reason.";
        [
            (ENDED, ended, &self.ended_by_reason),
            (FAILED, failed, &self.connects_failed),
            (REFUSED, refused, &self.requests_refused),
        ]
    }

    fn write_round_trips(&self, out: &mut String) -> fmt::Result {
        let help = "Time from a ping of keepalive or of a flush to its pong.";
        head(out, ROUND_TRIP, "histogram", help)?;
        let all = &self.round_trips;
        for (bound, count) in &all.buckets {
            let bound = bound.as_secs_f64();
            writeln!(out, "{ROUND_TRIP}_bucket{{le=\"{bound}\"}} {count}")?;
        }
        writeln!(out, "{ROUND_TRIP}_bucket{{le=\"+Inf\"}} {}", all.count)?;
        writeln!(out, "{ROUND_TRIP}_sum {}", all.sum.as_secs_f64())?;
        writeln!(out, "{ROUND_TRIP}_count {}", all.count)
    }
}

/// Passes the totals of this process to the recorder of the crate `metrics`.
///
/// Call this function periodically, for instance before each scrape. Also call it before the first
/// connection, because it enables the statistics, which do not include earlier connections. The
/// names are those of [`Snapshot::to_prometheus`](Snapshot::to_prometheus). There are no metrics
/// per connection, because recorders would keep the metrics of ended connections forever. There is
/// also no histogram of round trips, because recorders accept only single values.
#[cfg(feature = "metrics")]
pub fn record_metrics() {
    enable();
    let snapshot = snapshot();
    let open = u32::try_from(snapshot.connections.len()).unwrap_or(u32::MAX);
    metrics::gauge!(CONNECTIONS).set(open);
    for (name, _, counts) in snapshot.by_reason() {
        for (reason, count) in counts {
            metrics::counter!(name, "reason" => *reason).absolute(*count);
        }
    }
    for DeviceEvents {
        device,
        event,
        count,
    } in snapshot.device_events
    {
        metrics::counter!(DEVICE_EVENTS, "device" => device, "event" => event).absolute(count);
    }
    for (name, kind, _, value) in SAMPLES {
        let value = value(&snapshot.all);
        let name = format!("rdmsg_{name}");
        match kind {
            Kind::Counter => metrics::counter!(name).absolute(value),
            Kind::Gauge => metrics::gauge!(name).set(value as f64),
            Kind::Seconds => metrics::gauge!(name).set(value as f64 / 1000.0),
        }
    }
}

impl ConnectionSnapshot {
    fn labels(&self) -> String {
        let Self {
            id,
            label,
            peer,
            transport,
            ..
        } = self;
        let peer = Shown(*peer).to_string();
        let peer = escaped(&peer);
        let label = label.as_deref().map_or_else(String::new, |label| {
            format!(",label=\"{}\"", escaped(label))
        });
        format!("connection=\"{id}\"{label},peer=\"{peer}\",transport=\"{transport}\"")
    }

    /// Returns the value of the metric [`STATE`].
    fn state(&self) -> u8 {
        match (self.is_closed, self.is_suspended) {
            (false, false) => 0,
            (false, true) => 1,
            (true, _) => 2,
        }
    }
}

/// Escapes a text for use between quotation marks in the exposition format. The format has escapes
/// only for the backslash, the quotation mark and the line feed, so other control characters are
/// not escaped.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', r"\\").replace('"', r#"\""#);
    text.replace('\n', r"\n")
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use serde_json::Value;

    use super::*;
    use crate::{
        observe::{RoundTrips, snapshot},
        transport_choice::Transport,
    };

    /// Returns a snapshot that contains every metric.
    fn example() -> Snapshot {
        let mut statistics = Statistics::ZERO;
        statistics.messages_sent = 7;
        statistics.stalls = 2;
        Snapshot {
            connections: vec![ConnectionSnapshot {
                id: 3,
                label: Some("a\"b\\c\nd".to_owned()),
                peer: "[fd08::1]:7471".parse().unwrap(),
                local: "[fd08::2]:7471".parse().unwrap(),
                transport: Transport::Rdma,
                age: Duration::from_millis(1500),
                is_closed: false,
                is_suspended: false,
                statistics,
            }],
            ended: 4,
            ended_by_reason: BTreeMap::from([("peer_closed", 4)]),
            connects_failed: BTreeMap::from([("refused", 2)]),
            requests_refused: BTreeMap::from([("backlog", 1)]),
            round_trips: RoundTrips {
                buckets: vec![(Duration::from_micros(10), 1), (Duration::from_secs(5), 2)],
                count: 3,
                sum: Duration::from_millis(8500),
            },
            all: statistics,
            device_events: vec![DeviceEvents {
                device: "rxe0".into(),
                event: "PORT_ERR".into(),
                count: 2,
            }],
        }
    }

    #[test]
    fn text_has_each_value_once_with_connection_labels() {
        let snapshot = example();
        let mut suspended = snapshot.clone();
        suspended.connections[0].is_suspended = true;
        let mut ended = suspended.clone();
        ended.connections[0].is_closed = true;
        for (snapshot, state) in [(&snapshot, 0), (&suspended, 1), (&ended, 2)] {
            let text = snapshot.to_prometheus();
            let mut states = text.lines().filter(|line| line.starts_with(STATE));
            let (Some(line), None) = (states.next(), states.next()) else {
                panic!("{text}");
            };
            assert!(line.ends_with(&format!("}} {state}")), "{line}");
        }
        let text = snapshot.to_prometheus();
        let labels = concat!(
            r#"{connection="3",label="a\"b\\c\nd","#,
            r#"peer="[fd08::1]:7471",transport="RDMA"}"#
        );
        for line in [
            "rdmsg_connections 1",
            "rdmsg_connections_ended_total{reason=\"peer_closed\"} 4",
            "rdmsg_connects_failed_total{reason=\"refused\"} 2",
            "rdmsg_requests_refused_total{reason=\"backlog\"} 1",
            "# TYPE rdmsg_keepalive_round_trip_seconds histogram",
            "rdmsg_keepalive_round_trip_seconds_bucket{le=\"0.00001\"} 1",
            "rdmsg_keepalive_round_trip_seconds_bucket{le=\"5\"} 2",
            "rdmsg_keepalive_round_trip_seconds_bucket{le=\"+Inf\"} 3",
            "rdmsg_keepalive_round_trip_seconds_sum 8.5",
            "rdmsg_keepalive_round_trip_seconds_count 3",
            "rdmsg_device_events_total{device=\"rxe0\",event=\"PORT_ERR\"} 2",
            "rdmsg_messages_sent_total 7",
            "# TYPE rdmsg_stalls_total counter",
            "# TYPE rdmsg_buffers_held gauge",
            &format!("rdmsg_connection_messages_sent_total{labels} 7"),
            &format!("rdmsg_connection_age_seconds{labels} 1.500"),
        ] {
            assert_eq!(
                text.lines().filter(|it| *it == line).count(),
                1,
                "{line}: {text}"
            );
        }
    }

    /// The Grafana dashboard.
    const DASHBOARD: &str = include_str!("../../docs/grafana.json");
    /// The page of the guide that contains the alert rules.
    const PAGE: &str = include_str!("../../docs/guide/observing.md");

    fn is_part_of_name(c: char) -> bool {
        c.is_ascii_alphanumeric() || c == '_'
    }

    /// Returns the names of the metrics in a text. Skips prefixes such as `rdmsg_connection_…`,
    /// which are not complete names.
    fn names(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c| !is_part_of_name(c));
        words
            .filter(|word| word.starts_with("rdmsg_") && !word.ends_with('_'))
            .collect()
    }

    #[test]
    fn dashboard_and_rules_name_exported_metrics() {
        let text = [example(), snapshot()]
            .map(|it| it.to_prometheus())
            .concat();
        let exported = names(&text);
        assert_eq!(
            names("rate(rdmsg_a_total{b}), rdmsg_…"),
            ["rdmsg_a_total"].into()
        );
        for page in [DASHBOARD, PAGE] {
            let named = names(page);
            assert!(named.len() > 9, "{named:?}");
            let unknown: Vec<_> = named.difference(&exported).collect();
            assert!(unknown.is_empty(), "{unknown:?}");
        }
    }

    #[test]
    fn rules_select_exported_reasons() {
        let text = snapshot().to_prometheus();
        let mut rules: Vec<_> = PAGE.split("reason=~\"").collect();
        assert!(rules.len() > 4, "{rules:?}");
        for at in 1..rules.len() {
            let (metric, _) = rules[at - 1].rsplit_once('{').unwrap();
            let metric = metric.rsplit(|c| !is_part_of_name(c)).next().unwrap();
            let (reasons, rest) = rules[at].split_once('"').unwrap();
            for reason in reasons.split('|') {
                let line = format!("\n{metric}{{reason=\"{reason}\"}} ");
                assert!(text.contains(&line), "{line}");
            }
            rules[at] = rest;
        }
    }

    #[test]
    fn each_panel_of_the_dashboard_has_expressions() {
        let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let titles: BTreeSet<_> = panels.iter().map(|it| it["title"].as_str()).collect();
        assert!(titles.len() == panels.len() && !titles.contains(&None));
        for panel in panels {
            let targets = panel["targets"].as_array().unwrap();
            let mut expressions = targets.iter().map(|it| it["expr"].as_str().unwrap());
            assert!(!targets.is_empty(), "{panel}");
            assert!(expressions.all(|it| it.contains("rdmsg_")), "{panel}");
        }
    }

    #[cfg(feature = "metrics")]
    mod recorder {
        use std::{
            collections::BTreeMap,
            sync::{Arc, Mutex, atomic::AtomicU64},
        };

        use metrics::{
            Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
        };

        use super::super::*;

        /// The counters and gauges, by name.
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
            assert_eq!(all.len(), SAMPLES.len() + 4);
            assert!(all.contains_key("rdmsg_stalls_total"), "{:?}", all.keys());
        }
    }
}
