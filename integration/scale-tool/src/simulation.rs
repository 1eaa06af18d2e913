use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
};

use hdrhistogram::Histogram;

use crate::{BURST, Load, MESSAGES, Receives, credit::SendCredit, server::Server};

/// What the server takes for a message, and for a grant in a frame of its own. In nanoseconds, as
/// counted on software RoCE: what counts is how they compare.
const SERVICE: u64 = 16_000;
const GRANT: u64 = 14_000;

/// From one host to the other.
const DELAY: u64 = 20_000;

/// What happens, when.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next message is wanted, by any connection.
    Wanted,
    /// A message arrives, which was wanted then.
    Arrives { connection: u32, wanted: u64 },
    /// The server is done with the first message that waits for it.
    Served,
    /// A grant arrives.
    Granted { connection: u32, limit: u32 },
}

/// A connection's other end.
#[derive(Debug)]
struct Client {
    credit: SendCredit,
    /// When the messages were wanted that wait for credit.
    waiting: VecDeque<u64>,
}

#[derive(Debug)]
pub(super) struct Simulation {
    load: Load,
    now: u64,
    /// Numbered, so that what is due at the same time happens in the order in which it was planned.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned: u64,
    clients: Vec<Client>,
    server: Server,
    /// What has arrived, first the one that is being served.
    queue: VecDeque<(u32, u64)>,
    /// Until when the server sends a grant.
    busy: u64,
    random: fastrand::Rng,
    left: u32,
    outcome: Outcome,
}

/// What came of it. The times are those from wanting to send to having been served.
#[derive(Debug)]
pub(super) struct Outcome {
    messages: u64,
    grants: u64,
    times: Histogram<u64>,
    least_posted: u32,
}

impl Simulation {
    pub(super) fn new(load: Load, receives: Receives, connections: u32) -> Self {
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
                times: Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
                    .expect("bounds are in order"),
                least_posted: 0,
            },
        }
    }

    /// Runs until everything has been served.
    pub(super) fn run(mut self) -> Outcome {
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
                Event::Wanted => self.want_one(),
                Event::Arrives { connection, wanted } => self.arrive(connection, wanted),
                Event::Served => self.served(),
                Event::Granted { connection, limit } => {
                    let credit = &mut self.clients[connection as usize].credit;
                    credit.granted(limit).expect("no grant breaks the protocol");
                    self.send(connection);
                }
            }
        }
        let stuck = self.clients.iter().any(|client| !client.waiting.is_empty());
        assert!(!stuck, "nothing waits for ever");
        self.outcome.least_posted = self.server.least_posted;
        self.outcome
    }

    fn plan(&mut self, after: u64, event: Event) {
        self.planned += 1;
        let event = Reverse((self.now + after, self.planned, event));
        self.events.push(event);
    }

    /// A message at random, and the next one after a while.
    fn want_one(&mut self) {
        let connections = self.clients.len() as u32;
        let among = match self.load {
            Load::Skewed if self.random.u32(..10) > 0 => (connections / 100).max(1),
            _ => connections,
        };
        let connection = self.random.u32(..among);
        self.want(connection);
        self.left -= 1;
        if self.left > 0 {
            // As far apart as independent senders' messages are.
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

    /// Sends what there is credit for.
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
        let (connection, wanted) = self.queue.pop_front().expect("something was served");
        self.outcome.messages += 1;
        self.outcome.times.saturating_record(self.now - wanted);
        if let Some(limit) = self.server.release(connection as usize) {
            self.outcome.grants += 1;
            self.busy = self.now + GRANT;
            self.plan(GRANT + DELAY, Event::Granted { connection, limit });
        }
        if !self.queue.is_empty() {
            self.serve();
        }
    }

    /// Begins with the first message.
    fn serve(&mut self) {
        let sending = self.busy.saturating_sub(self.now);
        self.plan(sending + SERVICE, Event::Served);
    }
}

impl Outcome {
    /// What the server takes for a message with its part of the grants, in times of a message.
    pub(super) fn cost(&self) -> f64 {
        1.0 + self.grants_a_message() * GRANT as f64 / SERVICE as f64
    }

    pub(super) fn grants_a_message(&self) -> f64 {
        self.grants as f64 / self.messages as f64
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        write!(
            f,
            "{:.3} | {:.3} | {:.2} ms | {:.2} ms | {:.2} ms | {}",
            self.cost(),
            self.grants_a_message(),
            millis(self.times.value_at_quantile(0.5)),
            millis(self.times.value_at_quantile(0.99)),
            millis(self.times.max()),
            self.least_posted,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_served_and_finds_a_receive_whoever_owns_them() {
        for receives in [Receives::Own, Receives::Shared] {
            let outcome = Simulation::new(Load::Incast, receives, 1000).run();
            assert_eq!(outcome.messages, u64::from(1000 * BURST), "{receives}");
        }
    }
}
