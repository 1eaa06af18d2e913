//! Test of a client over TCP whose server is killed and started again.

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    io::{BufRead, BufReader, Lines},
    net::SocketAddr,
    process::{Child, ChildStderr, Command, Stdio},
    time::Duration,
};

use common::{TIME_LIMIT, patient, tcp_config};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use rdmsg::{
    Completion, Config, Connector, Listener, Outgoing, Persistent, PersistentEvent, Redial,
};

/// The environment variable that contains the address on which a server listens. The variable is
/// set only in the server's process.
const SERVER: &str = "RDMSG_TEST_SERVER";

/// The number of messages that a server acknowledges before the test stops the server.
const CONFIRMED: usize = 50;

/// The number of messages that the client sends to the stopped server. This number is less than the
/// send depth, so the sends do not wait.
const UNCONFIRMED: usize = 8;

fn config() -> Config {
    patient(&tcp_config())
}

/// A server in its own process. The server prints its address, and then the number of each received
/// message.
struct Server {
    process: Child,
    lines: Lines<BufReader<ChildStderr>>,
    address: SocketAddr,
}

impl Server {
    fn start(address: &str) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "restarted_server_gets_each_send_at_most_once",
                "--nocapture",
            ])
            .env(SERVER, address)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| line.unwrap().strip_prefix("at ")?.parse().ok());
        Self {
            process,
            lines,
            address: address.unwrap(),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    /// Stops the process with SIGSTOP, and waits until it has stopped.
    fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let stopped = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(self.pid(), Signal::SIGSTOP));
    }

    /// Kills the process, and returns the numbers of the messages that it has received.
    fn kill(mut self) -> Vec<u64> {
        self.process.kill().unwrap();
        let lines = self.lines.map_while(Result::ok);
        let received = lines.filter_map(|line| line.strip_prefix("got ")?.parse().ok());
        let received = received.collect();
        self.process.wait().unwrap();
        received
    }
}

/// Receives messages until the process is killed.
fn serve(address: &str) -> ! {
    let listener = Listener::builder().config(&config()).bind(address).unwrap();
    eprintln!("at {}", listener.local_addr());
    loop {
        let endpoint = listener.accept().unwrap();
        while let Ok(message) = endpoint.recv() {
            let number = u64::from_le_bytes((*message).try_into().unwrap());
            eprintln!("got {number}");
        }
    }
}

/// A client, with a record of the messages that it has sent.
struct RecordingClient {
    client: Persistent,
    /// The numbers of the messages that have no completion yet, in the order of sending.
    uncompleted: VecDeque<u64>,
    /// Maps the number of each message to the number of times that the message was sent.
    send_counts: BTreeMap<u64, usize>,
}

impl RecordingClient {
    fn send(&mut self, number: u64) {
        let bytes = number.to_le_bytes();
        let message = Outgoing::from(&bytes).with_id(number);
        self.client.send_timeout(message, TIME_LIMIT).unwrap();
        self.uncompleted.push_back(number);
        *self.send_counts.entry(number).or_default() += 1;
    }

    fn send_next(&mut self) {
        self.send(self.send_counts.len() as u64);
    }

    /// Receives the next event. If the event reports the loss of the connection, returns the
    /// unacknowledged messages.
    fn take(&mut self) -> Option<Vec<u64>> {
        match self.client.next_event_timeout(TIME_LIMIT).unwrap() {
            PersistentEvent::Completion(Completion::Sent(number)) => {
                assert_eq!(self.uncompleted.pop_front(), Some(number));
            }
            PersistentEvent::Lost { unacknowledged, .. } => return Some(unacknowledged),
            PersistentEvent::Connected { .. } => {}
            other => panic!("{other:?}"),
        }
        None
    }

    /// Receives events until at most `limit` messages have no completion.
    fn await_at_most(&mut self, limit: usize) {
        while self.uncompleted.len() > limit {
            assert_eq!(
                self.take(),
                None,
                "the connection must not be lost while the server runs"
            );
        }
    }
}

#[test]
fn restarted_server_gets_each_send_at_most_once() {
    if let Ok(address) = env::var(SERVER) {
        serve(&address);
    }
    let mut server = Server::start("127.0.0.1:0");
    let address = server.address;
    let mut redial = Redial::default();
    redial.longest_pause = Duration::from_millis(200);
    let connector = Connector::new().config(&config()).redial(redial);
    let mut sender = RecordingClient {
        client: connector.persist(address).unwrap(),
        uncompleted: VecDeque::new(),
        send_counts: BTreeMap::new(),
    };
    let mut received = Vec::new();
    for _ in 0..4 {
        for _ in 0..CONFIRMED {
            sender.send_next();
            sender.await_at_most(5);
        }
        sender.await_at_most(0);
        server.stop();
        for _ in 0..UNCONFIRMED {
            sender.send_next();
        }
        received.extend(server.kill());
        let unacknowledged = loop {
            if let Some(unacknowledged) = sender.take() {
                break unacknowledged;
            }
        };
        assert_eq!(unacknowledged.len(), UNCONFIRMED);
        assert_eq!(sender.uncompleted, unacknowledged);
        sender.uncompleted.clear();
        server = Server::start(&address.to_string());
        // Send the unacknowledged messages with even numbers again.
        for number in unacknowledged {
            if number.is_multiple_of(2) {
                sender.send(number);
            }
        }
    }
    sender.await_at_most(0);
    sender.client.close().unwrap();
    received.extend(server.kill());

    let mut counts = BTreeMap::new();
    for number in received {
        *counts.entry(number).or_insert(0) += 1;
    }
    assert!(counts.len() >= 2 * CONFIRMED, "{counts:?}");
    for (number, count) in &counts {
        assert!(
            *count <= sender.send_counts[number],
            "message {number} arrived {count} times, which is more often than it was sent"
        );
    }
    assert!(sender.send_counts.values().any(|count| *count == 2));
}
