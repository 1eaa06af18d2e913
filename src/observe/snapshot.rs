use std::{
    fmt::{self, Write},
    net::SocketAddr,
    time::Duration,
};

use crate::{proto::Statistics, transport_choice::Transport};

/// The statistics of the connections of this process, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The connections that have handles now.
    pub connections: Vec<ConnectionSnapshot>,
    /// The number of connections whose last handle was dropped.
    pub ended: u64,
    /// The sum of the statistics of all connections, past and present.
    pub all: Statistics,
}

/// A connection at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// Its number in this process, which no other connection ever has.
    pub id: u64,
    /// The peer's address.
    pub peer: SocketAddr,
    /// This side's address.
    pub local: SocketAddr,
    /// The transport.
    pub transport: Transport,
    /// The time since it was established.
    pub age: Duration,
    /// Whether it has ended, and only its handles are left.
    pub is_closed: bool,
    /// The statistics of the connection.
    pub statistics: Statistics,
}

/// Whether a value only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// A value of a connection, or of all: its name, and what it is.
type Sample = (&'static str, Kind, &'static str, fn(&Statistics) -> u64);

/// All values of [`Statistics`].
pub(super) const SAMPLES: &[Sample] = &[
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
        "Messages sent above the eager size, which the peer reads.",
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
    /// Writes the totals of the process, and the values of each connection, as text for Prometheus
    /// (exposition format 0.0.4).
    ///
    /// Totals are named `rdmsg_…`, values of connections `rdmsg_connection_…`, with the labels
    /// `connection`, `peer` and `transport`.
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // A string takes what is written to it.
        let _ = self.write_prometheus(&mut text);
        text
    }

    fn write_prometheus(&self, out: &mut String) -> fmt::Result {
        let open = self.connections.len();
        head(
            out,
            "rdmsg_connections",
            Kind::Gauge,
            "Connections with handles.",
        )?;
        writeln!(out, "rdmsg_connections {open}")?;
        let name = "rdmsg_connections_ended_total";
        head(
            out,
            name,
            Kind::Counter,
            "Connections whose last handle was dropped.",
        )?;
        writeln!(out, "{name} {}", self.ended)?;
        for (name, kind, help, value) in SAMPLES {
            head(out, &format!("rdmsg_{name}"), *kind, help)?;
            writeln!(out, "rdmsg_{name} {}", value(&self.all))?;
        }
        if open == 0 {
            return Ok(());
        }
        let name = "rdmsg_connection_age_seconds";
        head(out, name, Kind::Gauge, "Time since it was established.")?;
        for connection in &self.connections {
            let age = connection.age.as_secs_f64();
            writeln!(out, "{name}{{{}}} {age:.3}", connection.labels())?;
        }
        for (name, kind, help, value) in SAMPLES {
            head(out, &format!("rdmsg_connection_{name}"), *kind, help)?;
            for connection in &self.connections {
                let labels = connection.labels();
                let value = value(&connection.statistics);
                writeln!(out, "rdmsg_connection_{name}{{{labels}}} {value}")?;
            }
        }
        Ok(())
    }
}

impl ConnectionSnapshot {
    fn labels(&self) -> String {
        let Self {
            id,
            peer,
            transport,
            is_closed,
            ..
        } = self;
        let state = if *is_closed { "ended" } else { "open" };
        format!("connection=\"{id}\",peer=\"{peer}\",transport=\"{transport}\",state=\"{state}\"")
    }
}

fn head(out: &mut String, name: &str, kind: Kind, help: &str) -> fmt::Result {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_each_value_once_and_those_of_connections_by_labels() {
        let mut statistics = Statistics::ZERO;
        statistics.messages_sent = 7;
        statistics.stalls = 2;
        let snapshot = Snapshot {
            connections: vec![ConnectionSnapshot {
                id: 3,
                peer: "[fd08::1]:7471".parse().unwrap(),
                local: "[fd08::2]:7471".parse().unwrap(),
                transport: Transport::Rdma,
                age: Duration::from_millis(1500),
                is_closed: false,
                statistics,
            }],
            ended: 4,
            all: statistics,
        };
        let text = snapshot.to_prometheus();
        let labels = "{connection=\"3\",peer=\"[fd08::1]:7471\",transport=\"RDMA\",state=\"open\"}";
        for line in [
            "rdmsg_connections 1",
            "rdmsg_connections_ended_total 4",
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
}
