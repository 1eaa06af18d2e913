use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    exposition::lines,
    options::Options,
    sources::{command, folders, plain, read, sockets},
};

/// The time after which a reading is cut short. Processes that do not reply delay the reading of
/// all later ones.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The state of a connection that is lost and can still be resumed.
pub(super) const SUSPENDED: &str = "suspended";

/// The counters of all connections of all processes at one moment.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) connections: BTreeMap<Key, Connection>,
    /// The number of processes that replied, including those without connections.
    pub(super) processes: usize,
}

/// Identifies a connection. The pid is 0 for a socket of `--socket`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) pid: u32,
    pub(super) connection: u64,
}

/// The counters of one connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Connection {
    pub(super) command: String,
    /// The name that the program has given the connection, or an empty string.
    pub(super) label: String,
    pub(super) peer: String,
    pub(super) transport: String,
    /// The state, or an empty string if the process reports an unknown one.
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
        };
        let mut all: Vec<(u32, PathBuf)> = folders()
            .iter()
            .flat_map(|folder| sockets(folder))
            .collect();
        all.extend(options.sockets.iter().map(|path| (0, path.clone())));
        for (pid, path) in all {
            if this.at.elapsed() > TIME_LIMIT {
                log::warn!(
                    "some processes are not shown: {TIME_LIMIT:?} passed while others sent their \
                     statistics"
                );
                break;
            }
            let is_named = pid == 0;
            if !is_named && !options.pids.is_empty() && !options.pids.contains(&pid) {
                continue;
            }
            match read(&path, (!is_named).then_some(pid)) {
                Ok((pid, text)) => this.add(pid, &text),
                // A socket in the folder mostly belongs to a killed process, so its error is not a
                // warning.
                Err(error) if is_named => log::warn!("cannot read {}: {error}", path.display()),
                Err(error) => log::info!("cannot read {}: {error}", path.display()),
            }
        }
        this
    }

    fn add(&mut self, pid: u32, text: &str) {
        self.processes += 1;
        let command = command(pid);
        for line in lines(text) {
            let Some(name) = line.name.strip_prefix("rdmsg_connection_") else {
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

/// Returns the name of the state with this number in the Prometheus text, or an empty string.
fn state(number: f64) -> &'static str {
    [(0.0, "open"), (1.0, SUSPENDED), (2.0, "ended")]
        .into_iter()
        .find_map(|(other, name)| (other == number).then_some(name))
        .unwrap_or_default()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Returns the reading of a process with one connection, `seconds` after `start`, when the
    /// connection has sent `sent` bytes.
    pub(in super::super) fn reading(start: Instant, seconds: u64, sent: u64) -> Reading {
        let labels = "{connection=\"3\",peer=\"10.8.0.1:7471\",transport=\"RDMA\"}";
        let text = format!(
            "rdmsg_connections 1\n\
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
        let mut reading = Reading {
            at: start + Duration::from_secs(seconds),
            connections: BTreeMap::new(),
            processes: 0,
        };
        reading.add(1, &text);
        reading
    }

    #[test]
    fn ages_that_are_no_time_count_as_zero() {
        for age in ["-1", "NaN", "inf", "1e300"] {
            let mut reading = Reading {
                at: Instant::now(),
                connections: BTreeMap::new(),
                processes: 0,
            };
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
