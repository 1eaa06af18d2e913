//! The example programs, run as a person runs them: what they print, and how they end.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use toolbox::DeviceTest;

/// Longer than any wait of the programs: they are to end by themselves.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZES: [&str; 3] = ["64", "4096", "65536"];

/// A program of the examples that runs. Killed when it is dropped before it ended.
struct Program {
    name: &'static str,
    child: Child,
    /// What it prints, line by line, as it comes; the flag says that it is an error.
    lines: Receiver<(bool, String)>,
    out: Vec<String>,
    err: Vec<String>,
}

/// What a program said, and how it ended.
struct Ended {
    status: ExitStatus,
    out: Vec<String>,
    err: Vec<String>,
}

impl Program {
    /// Starts a program, which stands in the folder above the tests'.
    fn start(name: &'static str, args: &[&str]) -> Self {
        let tests = env::current_exe().unwrap();
        let program = tests.parent().unwrap().parent().unwrap().join(name);
        assert!(
            program.exists(),
            "{} is not there: build it with cargo build -p cm-examples --bins",
            program.display()
        );
        let mut child = Command::new(program)
            .args(args)
            // What they print when nobody asks for more.
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, lines) = channel();
        let outputs: [(bool, Box<dyn Read + Send>); 2] = [
            (false, Box::new(child.stdout.take().unwrap())),
            (true, Box::new(child.stderr.take().unwrap())),
        ];
        for (is_error, output) in outputs {
            let tell = tell.clone();
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    println!("{name}: {line}");
                    let _ = tell.send((is_error, line));
                }
            });
        }
        Self {
            name,
            child,
            lines,
            out: Vec::new(),
            err: Vec::new(),
        }
    }

    /// A server, and the address that it says it listens on.
    fn serve(name: &'static str, args: &[&str]) -> (Self, String) {
        let mut server = Self::start(name, args);
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(server.read(deadline), "{name} ended: {:?}", server.err);
            if let Some(address) = server
                .out
                .last()
                .and_then(|line| line.strip_prefix("listening on "))
            {
                let address = address.to_owned();
                return (server, address);
            }
        }
    }

    /// Waits for a line; whether there was one more.
    fn read(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok((false, line)) => self.out.push(line),
            Ok((true, line)) => self.err.push(line),
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} is still running after {PATIENCE:?}", self.name)
            }
        }
        true
    }

    /// Waits for its end, which comes right after it closes its outputs.
    fn end(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        while self.read(deadline) {}
        let status = self.child.wait().unwrap();
        Ended {
            status,
            out: self.out.drain(..).collect(),
            err: self.err.drain(..).collect(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Where it has ended and was waited for, this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// That all went well, and that the connection manager's steps were these.
    fn went_well(&self, steps: &[&str]) {
        assert!(self.status.success(), "{}: {:?}", self.status, self.err);
        assert!(self.err.is_empty(), "{:?}", self.err);
        let shown: Vec<&str> = self
            .out
            .iter()
            .filter_map(|line| line.rsplit(' ').next())
            .filter(|word| {
                word.contains('_') || matches!(*word, "ESTABLISHED" | "DISCONNECTED" | "REJECTED")
            })
            .collect();
        assert_eq!(shown, steps, "{:#?}", self.out);
        let times: Vec<f64> = self
            .out
            .iter()
            .filter(|line| steps.iter().any(|step| line.ends_with(step)))
            .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(times.len(), steps.len(), "each with its time");
        assert!(times.is_sorted(), "{times:?}");
    }

    /// That the client checked 50 messages of each size, in this order.
    fn checked_all(&self) {
        let summaries: Vec<&String> = self
            .out
            .iter()
            .filter(|line| line.contains("every byte as expected"))
            .collect();
        assert_eq!(summaries.len(), SIZES.len(), "{:#?}", self.out);
        for (line, size) in summaries.into_iter().zip(SIZES) {
            let expected = format!(
                "{size} bytes: 50 messages each way, every byte as expected; round trip min "
            );
            assert!(line.starts_with(&expected), "{line}");
            assert!(line.contains("  p50 ") && line.ends_with(" µs"), "{line}");
        }
    }

    /// That the server saw as many messages.
    fn echoed(&self, count: usize) {
        let expected = format!("echoed {count} messages, every byte as expected");
        assert!(
            self.out.iter().any(|line| line.ends_with(&expected)),
            "{:#?}",
            self.out
        );
    }

    /// That it failed with this status, and said why in one of its lines.
    fn failed(&self, status: i32, why: &str) {
        assert_eq!(self.status.code(), Some(status), "{:?}", self.err);
        assert!(
            self.err.iter().any(|line| line.contains(why)),
            "{why:?} is not in: {:?}",
            self.err
        );
    }
}

const CLIENT_STEPS: [&str; 4] = [
    "ADDR_RESOLVED",
    "ROUTE_RESOLVED",
    "ESTABLISHED",
    "DISCONNECTED",
];
const SERVER_STEPS: [&str; 3] = ["CONNECT_REQUEST", "ESTABLISHED", "DISCONNECTED"];

#[test]
fn cm_client_and_cm_server() {
    let lab = DeviceTest::start();
    let address = lab.at(0).to_string();
    let (server, address) = Program::serve("cm_server", &["-n", "1", &address]);
    let client = Program::start("cm_client", &["-c", "50", "-s", &SIZES.join(","), &address]).end();
    client.went_well(&CLIENT_STEPS);
    client.checked_all();
    assert_eq!(
        client.out.last().map(String::as_str),
        Some("closed: everything was delivered")
    );
    let server = server.end();
    server.went_well(&SERVER_STEPS);
    server.echoed(150);
}

#[test]
fn raw_cm_with_itself() {
    let lab = DeviceTest::start();
    let (server, address) = Program::serve("raw_cm", &["--server", &lab.at(0).to_string()]);
    let client = Program::start("raw_cm", &["-c", "50", "-s", &SIZES.join(","), &address]).end();
    client.went_well(&CLIENT_STEPS);
    client.checked_all();
    let server = server.end();
    server.went_well(&SERVER_STEPS);
    server.echoed(150);
}

#[test]
fn raw_cm_takes_its_largest_message() {
    let lab = DeviceTest::start();
    let address = lab.at(0).to_string();
    let (server, address) = Program::serve("raw_cm", &["--server", &address]);
    let client = Program::start("raw_cm", &["-c", "3", "-s", "65536,1", &address]).end();
    client.went_well(&CLIENT_STEPS);
    server.end().echoed(6);

    // More is refused before anything happens.
    let client = Program::start("raw_cm", &["-s", "65537", &address]).end();
    client.failed(2, "65537 is not in 1..=65536");
}

#[test]
fn clients_say_that_nobody_listens() {
    let lab = DeviceTest::start();
    let address = lab.at(7995).to_string();
    let start = Instant::now();
    let client = Program::start("cm_client", &["--timeout", "1", &address]).end();
    client.failed(1, "refused: nobody listens");
    assert!(start.elapsed() >= Duration::from_secs(1), "it kept trying");
    let client = Program::start("raw_cm", &[&address]).end();
    client.failed(1, "raw_cm: refused: nobody listens on this port");
}

#[test]
fn raw_cm_sees_its_client_die() {
    let lab = DeviceTest::start();
    let address = lab.at(0).to_string();
    let (server, address) = Program::serve("raw_cm", &["--server", &address]);
    let mut client = Program::start("raw_cm", &["-c", "1000000", "-s", "64", &address]);
    let deadline = Instant::now() + PATIENCE;
    while !client
        .out
        .last()
        .is_some_and(|line| line.ends_with("ESTABLISHED"))
    {
        assert!(client.read(deadline), "{:?}", client.err);
    }
    drop(client);
    // Whether that is the end between two messages or within one is a matter of luck. It ends, and
    // says which.
    let server = server.end();
    if server.status.success() {
        server.went_well(&SERVER_STEPS);
    } else {
        server.failed(1, "raw_cm: ");
    }
}

#[test]
fn a_size_that_the_server_does_not_take_is_explained() {
    let lab = DeviceTest::start();
    let address = lab.at(0).to_string();
    let (server, address) = Program::serve(
        "cm_server",
        &["-n", "1", "--max-message", "16384", &address],
    );
    let client = Program::start("cm_client", &["-c", "50", "-s", "20000", &address]).end();
    client.failed(
        1,
        "cm_client: a message of 20000 bytes is too long: the peer takes at most 16384",
    );
    server.end().echoed(0);
}
