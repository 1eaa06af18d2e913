//! Simulates up to 100,000 connections to one server. The simulation uses this crate's code for
//! credits and for the account of shared receives. Everything else is a model, so the simulation
//! needs no device.
//!
//! `cargo test --release --lib scale_simulation -- --ignored --nocapture` prints a table of the
//! results.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
};

use super::{
    account::{self, Account},
    credit::CONTROL_RECEIVES,
    credit::{RecvCredit, SendCredit},
};

/// The number of receives per connection, in the connection's own queue or in the shared pool. Of
/// these receives, [`CONTROL_RECEIVES`] are for control frames, and the others are for messages.
const RECEIVES: u32 = 33;

/// The total number of messages of all connections, except under [`Load::Incast`].
const MESSAGES: u32 = 1_000_000;

/// The number of messages of each connection under [`Load::Incast`].
const BURST: u32 = 16;

/// The window of a connection that shares receives. A connection can use its whole window only
/// while most other connections are idle.
const SHARED_WINDOW: u16 = 64;

/// The time in nanoseconds that the server needs to process a message, as measured on software
/// RoCE. Only the ratio of this time to `GRANT` matters.
const SERVICE: u64 = 16_000;

/// The time in nanoseconds that the server needs to send a Grant frame.
const GRANT: u64 = 14_000;

/// The time in nanoseconds that a message takes from one host to the other.
const DELAY: u64 = 20_000;

/// The distribution of the times at which connections want to send messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Random times. The messages arrive at 90 % of the rate at which the server can process them.
    FanIn,
    /// The same as `FanIn`, but 1 % of the connections send 90 % of the messages.
    Skewed,
    /// Each connection wants to send all its messages at the start of the simulation.
    Incast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    Own,
    Shared,
}

/// An event of the simulation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A connection wants to send the next message.
    Wanted,
    /// A message arrives at the server. `wanted` is the time at which the client wanted to send the
    /// message.
    Arrives { connection: u32, wanted: u64 },
    /// The server has processed the first message of its queue.
    Served,
    /// A grant arrives at the client of this connection.
    Granted { connection: u32, limit: u32 },
}

/// The client's side of a connection.
#[derive(Debug)]
struct Client {
    credit: SendCredit,
    /// The times at which the client wanted to send the messages that now wait for credit.
    waiting: VecDeque<u64>,
}

#[derive(Debug)]
struct Simulation {
    load: Load,
    now: u64,
    /// The future events. The first number is the time of the event in nanoseconds. The second
    /// number orders events that have the same time: the event that was planned first occurs first.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned: u64,
    clients: Vec<Client>,
    server: Server,
    /// The messages that have arrived at the server: the connection of each message, and the time
    /// at which its client wanted to send it. The server is processing the first message.
    queue: VecDeque<(u32, u64)>,
    /// The time at which the server finishes sending its current grant.
    busy: u64,
    random: fastrand::Rng,
    left: u32,
    outcome: Outcome,
}

/// The result of a simulation.
#[derive(Debug)]
struct Outcome {
    messages: u64,
    grants: u64,
    /// The latency of each message in nanoseconds: from the time at which the client wants to send
    /// the message until the server has processed it.
    times: Vec<u64>,
    least_posted: u32,
}

impl Simulation {
    fn new(load: Load, receives: Receives, connections: u32) -> Self {
        let (server, window, credit) = Server::new(receives, connections);
        let client = |_| Client {
            credit: SendCredit::new(window, credit, 0),
            waiting: VecDeque::new(),
        };
        Self {
            load,
            now: 0,
            events: BinaryHeap::new(),
            planned: 0,
            clients: (0..connections).map(client).collect(),
            server,
            queue: VecDeque::new(),
            busy: 0,
            random: fastrand::Rng::with_seed(1),
            left: MESSAGES,
            outcome: Outcome {
                messages: 0,
                grants: 0,
                times: Vec::new(),
                least_posted: 0,
            },
        }
    }

    /// Runs the simulation until the server has processed all messages.
    fn run(mut self) -> Outcome {
        match self.load {
            Load::FanIn | Load::Skewed => self.plan(0, Event::Wanted),
            Load::Incast => {
                for connection in 0..self.clients.len() as u32 {
                    for _ in 0..BURST {
                        self.want(connection);
                    }
                }
            }
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Wanted => self.queue_random_message(),
                Event::Arrives { connection, wanted } => self.arrive(connection, wanted),
                Event::Served => self.served(),
                Event::Granted { connection, limit } => {
                    let credit = &mut self.clients[connection as usize].credit;
                    credit.granted(limit).expect("each grant must be valid");
                    self.send(connection);
                }
            }
        }
        let stuck = self.clients.iter().any(|client| !client.waiting.is_empty());
        assert!(!stuck, "every message must be sent");
        self.outcome.times.sort_unstable();
        self.outcome.least_posted = self.server.least_posted;
        self.outcome
    }

    fn plan(&mut self, after: u64, event: Event) {
        self.planned += 1;
        let event = Reverse((self.now + after, self.planned, event));
        self.events.push(event);
    }

    /// Queues a message on a random connection, and plans the next such message.
    fn queue_random_message(&mut self) {
        let connections = self.clients.len() as u32;
        let among = match self.load {
            Load::Skewed if self.random.u32(..10) > 0 => (connections / 100).max(1),
            _ => connections,
        };
        let connection = self.random.u32(..among);
        self.want(connection);
        self.left -= 1;
        if self.left > 0 {
            // The times between messages have an exponential distribution, like those of
            // independent senders.
            let mean = SERVICE as f64 / 0.9;
            let after = -mean * (1.0 - self.random.f64()).ln();
            self.plan(after as u64, Event::Wanted);
        }
    }

    fn want(&mut self, connection: u32) {
        self.clients[connection as usize]
            .waiting
            .push_back(self.now);
        self.send(connection);
    }

    /// Sends the connection's waiting messages until no credit or no message is left.
    fn send(&mut self, connection: u32) {
        loop {
            let client = &mut self.clients[connection as usize];
            if client.credit.available() == 0 {
                break;
            }
            let Some(wanted) = client.waiting.pop_front() else {
                break;
            };
            client.credit.take(1);
            self.plan(DELAY, Event::Arrives { connection, wanted });
        }
    }

    fn arrive(&mut self, connection: u32, wanted: u64) {
        self.server.arrive(connection as usize);
        self.queue.push_back((connection, wanted));
        if self.queue.len() == 1 {
            self.serve();
        }
    }

    fn served(&mut self) {
        let (connection, wanted) = self
            .queue
            .pop_front()
            .expect("the server must be processing a message");
        self.outcome.messages += 1;
        self.outcome.times.push(self.now - wanted);
        if let Some(limit) = self.server.release(connection as usize) {
            self.outcome.grants += 1;
            self.busy = self.now + GRANT;
            self.plan(GRANT + DELAY, Event::Granted { connection, limit });
        }
        if !self.queue.is_empty() {
            self.serve();
        }
    }

    /// Plans the event [`Event::Served`] for the first message in the queue. The server first
    /// finishes sending its current grant.
    fn serve(&mut self) {
        let sending = self.busy.saturating_sub(self.now);
        self.plan(sending + SERVICE, Event::Served);
    }
}

impl Outcome {
    /// Returns the average time that the server spends per message, divided by the time that it
    /// would spend without Grant frames.
    fn cost(&self) -> f64 {
        1.0 + self.grants_a_message() * GRANT as f64 / SERVICE as f64
    }

    fn grants_a_message(&self) -> f64 {
        self.grants as f64 / self.messages as f64
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |quantile: f64| {
            let last = self.times.len() - 1;
            self.times[(last as f64 * quantile) as usize] as f64 / 1e6
        };
        write!(
            f,
            "{:.3} | {:.3} | {:.2} ms | {:.2} ms | {:.2} ms | {}",
            self.cost(),
            self.grants_a_message(),
            millis(0.5),
            millis(0.99),
            millis(1.0),
            self.least_posted,
        )
    }
}

/// The state of all connections at the server.
#[derive(Debug)]
struct Server {
    credits: Vec<RecvCredit>,
    /// The account of the shared receives. `None` if each connection has its own receives.
    account: Option<Account>,
    /// The number of posted receives that can still receive a message. With shared receives, the
    /// vector has one element for the pool. Otherwise it has one element for each connection.
    posted: Vec<u32>,
    /// The smallest value that `posted` has contained so far.
    least_posted: u32,
}

impl Server {
    /// Creates a server with `connections` connections. Returns the server, the window of each
    /// connection, and the initial credit of each connection.
    fn new(receives: Receives, connections: u32) -> (Self, u16, u16) {
        let (window, credit, account, posted) = match receives {
            Receives::Own => {
                let window = (RECEIVES - CONTROL_RECEIVES) as u16;
                (
                    window,
                    window,
                    None,
                    vec![u32::from(window); connections as usize],
                )
            }
            Receives::Shared => {
                let total = RECEIVES * connections;
                let account = Account::new(total);
                for _ in 0..connections {
                    assert!(
                        account.open(SHARED_WINDOW),
                        "the pool must have enough receives for each connection"
                    );
                }
                let credit = account::floor(SHARED_WINDOW);
                // `posted` excludes the receives that are reserved for the control frames of the
                // connections.
                let posted = vec![total - CONTROL_RECEIVES * connections];
                (SHARED_WINDOW, credit, Some(account), posted)
            }
        };
        let credits = (0..connections).map(|_| RecvCredit::new(window, credit, 0));
        let this = Self {
            credits: credits.collect(),
            account,
            least_posted: posted[0],
            posted,
        };
        (this, window, credit)
    }

    /// Receives a message, and checks that a receive is posted for it. Without a posted receive, a
    /// device would make the sender retry, which would delay all later messages.
    fn arrive(&mut self, connection: usize) {
        let posted = self.posted_of(connection);
        *posted = posted
            .checked_sub(1)
            .expect("each message must find a posted receive");
        let left = *posted;
        self.least_posted = self.least_posted.min(left);
        let credit = &mut self.credits[connection];
        assert!(credit.allows(1), "each message must have a credit");
        credit.receive(1);
    }

    /// Releases a message on behalf of the application. Returns the new limit if a Grant frame is
    /// due.
    fn release(&mut self, connection: usize) -> Option<u32> {
        *self.posted_of(connection) += 1;
        let credit = &mut self.credits[connection];
        credit.release(self.account.as_ref());
        credit.grant_due().then(|| credit.announce())
    }

    fn posted_of(&mut self, connection: usize) -> &mut u32 {
        let shared = self.account.is_some();
        &mut self.posted[if shared { 0 } else { connection }]
    }
}

#[test]
fn every_message_is_served_and_finds_a_receive() {
    for receives in [Receives::Own, Receives::Shared] {
        let outcome = Simulation::new(Load::Incast, receives, 1000).run();
        assert_eq!(outcome.messages, u64::from(1000 * BURST), "{receives:?}");
    }
}

#[test]
#[ignore = "prints a table, and takes ten seconds in a release build"]
fn grants_at_most_every_fourth_message_at_scale() {
    println!(
        "| load | receives | connections | cost of a message | grants a message | waits p50 \
         | p99 | longest | receives never used |\n|---|---|--:|--:|--:|--:|--:|--:|--:|"
    );
    for load in [Load::FanIn, Load::Skewed, Load::Incast] {
        for receives in [Receives::Own, Receives::Shared] {
            for connections in [100, 1000, 10_000, 100_000] {
                let outcome = Simulation::new(load, receives, connections).run();
                println!("| {load:?} | {receives:?} | {connections} | {outcome} |");
                assert!(outcome.grants_a_message() <= 0.25, "{outcome}");
            }
        }
    }
}
