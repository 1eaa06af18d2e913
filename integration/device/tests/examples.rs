//! Runs the example programs with different arguments, and checks their output and exit status.

use std::{
    iter,
    time::{Duration, Instant},
};

use toolbox::{DeviceTest, Lab, Line, Process, TIME_LIMIT, example};

const SIZES: [&str; 3] = ["64", "4096", "65536"];

/// An example program that is running, with the lines that it has printed so far.
struct Program {
    name: &'static str,
    process: Process,
    out: Vec<String>,
    err: Vec<String>,
}

/// The output and the exit status of a program that has ended.
struct Ended {
    status: Option<i32>,
    out: Vec<String>,
    err: Vec<String>,
}

impl Program {
    fn start(name: &'static str, args: &[&str]) -> Self {
        let program = example(name).display().to_string();
        let argv = [&[&*program], args].concat();
        Self {
            name,
            process: Process::start(&argv).unwrap(),
            out: Vec::new(),
            err: Vec::new(),
        }
    }

    /// Starts a client that tries to connect for up to 60 s, which is enough on a busy machine.
    fn start_client(args: &[&str]) -> Self {
        Self::start("cm_client", &[&["--timeout", "60"], args].concat())
    }

    /// Starts a server. Returns the server, and the listening address that the server has printed.
    fn serve(name: &'static str, args: &[&str]) -> (Self, String) {
        let mut server = Self::start(name, args);
        let listens = |line: &str| line.starts_with("listening on ");
        let line = server.read_until(listens);
        let (_, address) = line.split_at("listening on ".len());
        (server, address.to_owned())
    }

    /// Reads lines until a line of stdout meets the condition, and returns this line.
    fn read_until(&mut self, is_it: impl Fn(&str) -> bool) -> String {
        loop {
            assert!(self.read(), "{} ended: {:?}", self.name, self.err);
            if let Some(line) = self.out.last().filter(|line| is_it(line)) {
                return line.clone();
            }
        }
    }

    /// Waits for the next line, prints it, and stores it in `out` or `err`. Returns false if the
    /// program has ended.
    fn read(&mut self) -> bool {
        let name = self.name;
        match self.process.line(TIME_LIMIT) {
            Some(Line::Out(line)) => {
                println!("{name}: {line}");
                self.out.push(line);
            }
            Some(Line::Err(line)) => {
                println!("{name}: {line}");
                self.err.push(line);
            }
            None => {
                // The program has closed its outputs, so it exits soon.
                let ended = self.process.end(TIME_LIMIT).unwrap();
                assert!(
                    ended.is_some(),
                    "{name} is still running after {TIME_LIMIT:?}"
                );
                return false;
            }
        }
        true
    }

    fn end(mut self) -> Ended {
        while self.read() {}
        Ended {
            status: self.process.finish(TIME_LIMIT).unwrap().status,
            out: self.out,
            err: self.err,
        }
    }
}

impl Ended {
    /// Asserts that the program has succeeded, and that it has printed exactly the connection
    /// manager events `steps`, in this order and with increasing times.
    fn assert_success(&self, steps: &[&str]) {
        assert_eq!(self.status, Some(0), "{:?}", self.err);
        assert!(self.err.is_empty(), "{:?}", self.err);
        let shown: Vec<&str> = self
            .out
            .iter()
            .filter_map(|line| line.rsplit(' ').next())
            .filter(|word| {
                word.contains('_') || matches!(*word, "ESTABLISHED" | "DISCONNECTED" | "REJECTED")
            })
            .collect();
        // On iWARP no event reports that a queue pair is drained, so the program can exit before it
        // prints DISCONNECTED.
        let steps = match (shown.last(), steps.split_last()) {
            (Some(&last), Some((&"DISCONNECTED", before)))
                if last != "DISCONNECTED" && Lab::get().is_iwarp() =>
            {
                before
            }
            _ => steps,
        };
        assert_eq!(shown, steps, "{:#?}", self.out);
        let times: Vec<f64> = self
            .out
            .iter()
            .filter(|line| steps.iter().any(|step| line.ends_with(step)))
            .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(
            times.len(),
            steps.len(),
            "each event must be printed on one line with a time"
        );
        assert!(times.is_sorted(), "{times:?}");
    }

    /// Asserts that the client has checked 50 messages of each size, in the order of `SIZES`.
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

    /// Asserts that the server has echoed `count` messages.
    fn echoed(&self, count: usize) {
        let expected = format!("echoed {count} messages, every byte as expected");
        assert!(
            self.out.iter().any(|line| line.ends_with(&expected)),
            "{:#?}",
            self.out
        );
    }

    /// Asserts that the program has exited with `status`, and that a line of its stderr contains
    /// `why`.
    fn failed(&self, status: i32, why: &str) {
        assert_eq!(self.status, Some(status), "{:?}", self.err);
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
    let client = Program::start_client(&["-c", "50", "-s", &SIZES.join(","), &address]).end();
    client.assert_success(&CLIENT_STEPS);
    client.checked_all();
    // Search all lines, because the engine's thread can write further lines after the expected
    // line.
    let closed = "closed: everything was delivered";
    assert!(
        client.out.iter().any(|line| line == closed),
        "{:#?}",
        client.out
    );
    let server = server.end();
    server.assert_success(&SERVER_STEPS);
    server.echoed(150);
}

#[test]
fn raw_cm_with_itself() {
    let lab = DeviceTest::start();
    let (server, address) = Program::serve("raw_cm", &["--server", &lab.at(0).to_string()]);
    let client = Program::start("raw_cm", &["-c", "50", "-s", &SIZES.join(","), &address]).end();
    client.assert_success(&CLIENT_STEPS);
    client.checked_all();
    let server = server.end();
    server.assert_success(&SERVER_STEPS);
    server.echoed(150);
}

#[test]
fn raw_cm_takes_its_largest_message() {
    let lab = DeviceTest::start();
    let address = lab.at(0).to_string();
    let (server, address) = Program::serve("raw_cm", &["--server", &address]);
    let client = Program::start("raw_cm", &["-c", "3", "-s", "65536,1", &address]).end();
    client.assert_success(&CLIENT_STEPS);
    server.end().echoed(6);

    // The program rejects larger sizes before it connects.
    let client = Program::start("raw_cm", &["-s", "65537", &address]).end();
    client.failed(2, "65537 is not in 1..=65536");
}

#[test]
fn clients_say_that_nobody_listens() {
    let lab = DeviceTest::start();
    let address = lab.at(7995).to_string();
    // The timeout is longer than one attempt takes on a busy machine.
    let client = || {
        let start = Instant::now();
        let client = Program::start("cm_client", &["--timeout", "5", &address]).end();
        assert!(
            start.elapsed() >= Duration::from_secs(5),
            "the client must retry until its timeout expires"
        );
        client
    };
    // On a busy machine, the timeout can expire before the client's connection attempt starts. In
    // this case the error contains "was busy", and the test runs the client again.
    let mut tries = iter::repeat_with(client).take(5);
    let client = tries.find(|client| !client.err.iter().any(|line| line.contains("was busy")));
    client.unwrap().failed(1, "refused: no program listens");
    let client = Program::start("raw_cm", &[&address]).end();
    // On software iWARP, `rdma_connect` itself reports the refusal.
    client.failed(
        1,
        if lab.is_iwarp() {
            "raw_cm: rdma_connect: Connection refused"
        } else {
            "raw_cm: refused: no program listens on this port"
        },
    );
}

#[test]
fn raw_cm_sees_its_client_die() {
    let lab = DeviceTest::start();
    let address = lab.at(0).to_string();
    let (server, address) = Program::serve("raw_cm", &["--server", &address]);
    let mut client = Program::start("raw_cm", &["-c", "1000000", "-s", "64", &address]);
    client.read_until(|line| line.ends_with("ESTABLISHED"));
    drop(client);
    // The client was killed either during a message or between two messages. The server's exit
    // status shows which of the two happened.
    let server = server.end();
    if server.status == Some(0) {
        server.assert_success(&SERVER_STEPS);
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
    let client = Program::start_client(&["-c", "50", "-s", "20000", &address]).end();
    client.failed(
        1,
        "cm_client: a message of 20000 bytes is too long: the peer takes at most 16384",
    );
    server.end().echoed(0);
}
