use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    exposition::{Line, lines},
    options::Options,
    sources::{command, folders, plain, read, sockets},
};

/// The time limit for reading the sockets of all processes. Each process that does not reply delays
/// the reading. When the limit is reached, the remaining processes are skipped.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The state of a lost connection that can still be resumed.
pub(super) const SUSPENDED: &str = "suspended";

/// The counters of the connections of all processes, read at about the same time.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) connections: BTreeMap<Key, Connection>,
    /// The number of processes that replied, including those without connections.
    pub(super) processes: usize,
    pub(super) round_trips: RoundTrips,
    /// The number of ended connections for each reason.
    pub(super) ended: BTreeMap<String, u64>,
}

/// The round trips of keepalives and flushes since the processes started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RoundTrips {
    /// A cumulative histogram: the key is a time in microseconds, and the value is the number of
    /// round trips that took at most this time.
    within: BTreeMap<u64, u64>,
    /// The sum of all round-trip times in seconds.
    sum: f64,
    pub(super) count: u64,
}

/// Identifies a connection. The pid is 0 if the process is in another PID namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) pid: u32,
    pub(super) connection: u64,
}

/// The counters of one connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Connection {
    pub(super) command: String,
    /// The label that the program has set for the connection, or an empty string.
    pub(super) label: String,
    pub(super) peer: String,
    pub(super) transport: String,
    /// The state, or an empty string if the reported state is unknown.
    pub(super) state: &'static str,
    pub(super) age: Duration,
    pub(super) messages: f64,
    pub(super) sent: f64,
    pub(super) received: f64,
    pub(super) stalls: f64,
    pub(super) resumes: f64,
    pub(super) resent: f64,
    pub(super) held: f64,
}

impl Reading {
    pub(super) fn take(options: &Options) -> Self {
        let mut this = Self {
            at: Instant::now(),
            connections: BTreeMap::new(),
            processes: 0,
            round_trips: RoundTrips::default(),
            ended: BTreeMap::new(),
        };
        let mut all: Vec<(u32, PathBuf)> = folders()
            .iter()
            .flat_map(|folder| sockets(folder))
            .collect();
        all.extend(options.sockets.iter().map(|path| (0, path.clone())));
        for (pid, path) in all {
            if this.at.elapsed() > TIME_LIMIT {
                log::warn!(
                    "skipped the statistics of some processes: reading the other processes took \
                     longer than {TIME_LIMIT:?}"
                );
                break;
            }
            let is_named = pid == 0;
            if !is_named && !options.pids.is_empty() && !options.pids.contains(&pid) {
                continue;
            }
            match read(&path, (!is_named).then_some(pid)) {
                Ok((pid, text)) => this.add(pid, &text),
                // Warn only about sockets from the command line. If a socket that was found in a
                // directory is unreadable, it usually belonged to a process that was killed.
                Err(error) if is_named => log::warn!(
                    "cannot read the statistics from {}: {error}",
                    path.display()
                ),
                Err(error) => log::info!(
                    "cannot read the statistics from {}: {error}",
                    path.display()
                ),
            }
        }
        this
    }

    fn add(&mut self, pid: u32, text: &str) {
        self.processes += 1;
        let command = command(pid);
        for line in lines(text) {
            let Some(name) = line.name.strip_prefix("rdmsg_connection_") else {
                self.add_total(&line);
                continue;
            };
            let number = line.labels.get("connection");
            let Some(connection) = number.and_then(|number| number.parse().ok()) else {
                continue;
            };
            let entry = self.connections.entry(Key { pid, connection });
            let it = entry.or_insert_with(|| {
                let label = |name| plain(line.labels.get(name).map_or("", String::as_str));
                Connection {
                    command: command.clone(),
                    label: label("label"),
                    peer: label("peer"),
                    transport: label("transport"),
                    ..Connection::default()
                }
            });
            let value = line.value;
            match name {
                "state" => it.state = state(value),
                "age_seconds" => {
                    it.age = Duration::try_from_secs_f64(value).unwrap_or_default();
                }
                "messages_sent_total" | "messages_received_total" => it.messages += value,
                "sent_bytes_total" => it.sent = value,
                "received_bytes_total" => it.received = value,
                "stalls_total" => it.stalls = value,
                "resumes_total" => it.resumes = value,
                "resent_total" => it.resent = value,
                "buffers_held" => it.held = value,
                _ => {}
            }
        }
    }
}

impl Reading {
    /// Adds a total of one process, such as its number of ended connections, to the sum over all
    /// processes.
    fn add_total(&mut self, line: &Line<'_>) {
        let label = |name| line.labels.get(name).map_or("", String::as_str);
        // The cast converts a negative value or NaN to 0.
        let count = line.value as u64;
        if line.name == "rdmsg_connections_ended_total" {
            *self.ended.entry(plain(label("reason"))).or_default() += count;
        }
        let Some(name) = line
            .name
            .strip_prefix("rdmsg_keepalive_round_trip_seconds_")
        else {
            return;
        };
        match (name, label("le").parse::<f64>()) {
            ("bucket", Ok(bound)) if bound.is_finite() => {
                let bound = (bound * 1e6).round() as u64;
                *self.round_trips.within.entry(bound).or_default() += count;
            }
            ("sum", _) => self.round_trips.sum += line.value,
            ("count", _) => self.round_trips.count += count,
            _ => {}
        }
    }
}

impl RoundTrips {
    /// Returns the mean in microseconds, or `None` if there was no round trip.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum * 1e6 / self.count as f64)
    }

    /// Returns the smallest bound of the histogram, in microseconds, that at least 99 % of the
    /// round trips did not exceed. Returns `None` if there is no such bound.
    pub(super) fn p99(&self) -> Option<u64> {
        let enough = |within: u64| within as f64 >= 0.99 * self.count as f64;
        let mut bounds = self.within.iter().filter(|_| self.count > 0);
        bounds.find_map(|(bound, within)| enough(*within).then_some(*bound))
    }
}

/// Returns the name of the state that the Prometheus text encodes as `number`. Returns an empty
/// string if the number is unknown.
fn state(number: f64) -> &'static str {
    [(0.0, "open"), (1.0, SUSPENDED), (2.0, "ended")]
        .into_iter()
        .find_map(|(other, name)| (other == number).then_some(name))
        .unwrap_or_default()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Returns the reading of a process with one connection, taken `seconds` after `start`. The
    /// connection has sent `sent` bytes.
    pub(in super::super) fn reading(start: Instant, seconds: u64, sent: u64) -> Reading {
        let labels = "{connection=\"3\",peer=\"10.8.0.1:7471\",transport=\"RDMA\"}";
        let text = format!(
            "rdmsg_connections 1\n\
             rdmsg_connections_ended_total{{reason=\"peer_closed\"}} 4\n\
             rdmsg_keepalive_round_trip_seconds_bucket{{le=\"0.00002\"}} 1\n\
             rdmsg_keepalive_round_trip_seconds_bucket{{le=\"0.0005\"}} 3\n\
             rdmsg_keepalive_round_trip_seconds_bucket{{le=\"+Inf\"}} 3\n\
             rdmsg_keepalive_round_trip_seconds_sum 0.0006\n\
             rdmsg_keepalive_round_trip_seconds_count 3\n\
             rdmsg_connection_state{labels} 0\n\
             rdmsg_connection_age_seconds{labels} {seconds}.5\n\
             rdmsg_connection_sent_bytes_total{labels} {sent}\n\
             rdmsg_connection_received_bytes_total{labels} 0\n\
             rdmsg_connection_messages_sent_total{labels} {}\n\
             rdmsg_connection_messages_received_total{labels} 5\n\
             rdmsg_connection_resumes_total{labels} 4\n\
             rdmsg_connection_resent_total{labels} 70\n\
             rdmsg_connection_buffers_held{labels} 2\n",
            sent / 100
        );
        let mut reading = empty(start + Duration::from_secs(seconds));
        reading.add(1, &text);
        reading
    }

    fn empty(at: Instant) -> Reading {
        Reading {
            at,
            connections: BTreeMap::new(),
            processes: 0,
            round_trips: RoundTrips::default(),
            ended: BTreeMap::new(),
        }
    }

    #[test]
    fn totals_of_processes_are_added() {
        let start = Instant::now();
        let mut reading = reading(start, 7, 1000);
        assert_eq!(reading.round_trips.p99(), Some(500));
        assert!((reading.round_trips.mean().unwrap() - 200.0).abs() < 1e-6);
        let other = "rdmsg_connections_ended_total{reason=\"peer_closed\"} 2\n\
                     rdmsg_connections_ended_total{reason=\"silent\"} -1\n\
                     rdmsg_keepalive_round_trip_seconds_bucket{le=\"0.0005\"} 0\n\
                     rdmsg_keepalive_round_trip_seconds_bucket{le=\"+Inf\"} 1\n\
                     rdmsg_keepalive_round_trip_seconds_count 1\n";
        reading.add(2, other);
        let ended = BTreeMap::from([("peer_closed".to_owned(), 6), ("silent".to_owned(), 0)]);
        assert_eq!(reading.ended, ended);
        assert_eq!(
            (reading.round_trips.count, reading.round_trips.p99()),
            (4, None)
        );
    }

    #[test]
    fn ages_that_are_no_time_count_as_zero() {
        for age in ["-1", "NaN", "inf", "1e300"] {
            let mut reading = empty(Instant::now());
            let line = format!("rdmsg_connection_age_seconds{{connection=\"3\"}} {age}\n");
            reading.add(1, &line);
            let (_, it) = reading.connections.first_key_value().unwrap();
            assert_eq!(it.age, Duration::ZERO, "{age}");
        }
    }

    #[test]
    fn label_is_shown_without_control_characters() {
        let mut reading = reading(Instant::now(), 7, 1000);
        let label = r#"{connection="4",label="a\"},\n[2J"}"#.replace('[', "\x1b[");
        reading.add(1, &format!("rdmsg_connection_stalls_total{label} 1\n"));
        let (key, it) = reading.connections.last_key_value().unwrap();
        assert_eq!((key.connection, &*it.label), (4, "a\"},??[2J"));
    }

    #[test]
    fn a_connection_is_put_together_from_its_lines() {
        let reading = reading(Instant::now(), 7, 1000);
        assert_eq!(reading.processes, 1);
        let (key, it) = reading.connections.first_key_value().unwrap();
        assert_eq!((key.pid, key.connection), (1, 3));
        assert_eq!((&*it.peer, &*it.transport), ("10.8.0.1:7471", "RDMA"));
        assert_eq!(it.label, "");
        assert_eq!((it.sent, it.messages, it.held), (1000.0, 15.0, 2.0));
        assert_eq!((it.state, it.resumes, it.resent), ("open", 4.0, 70.0));
        assert_eq!(it.age, Duration::from_millis(7500));
    }
}
