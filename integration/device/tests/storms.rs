//! Many connects at once: more than the machine can do, more than the listener takes, and peers that ask and then say nothing.

use std::{
    net::SocketAddr,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use device::{Lab, Watchdog};
use rdmsg::{Config, Connector, Endpoint, Engine, Error, Listener};

/// What came of one connect.
struct Outcome {
    /// How long the call took.
    took: Duration,
    result: Result<Endpoint, Error>,
}

/// So many connects from a thread each, all at once. They come in the order in which they came back.
fn storm(count: usize, connector: &Connector, address: SocketAddr) -> Vec<Outcome> {
    let gate = Arc::new(Barrier::new(count));
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let (connector, gate) = (connector.clone(), Arc::clone(&gate));
            let connect = move || {
                gate.wait();
                let start = Instant::now();
                let result = connector.connect(address);
                Outcome {
                    took: start.elapsed(),
                    result,
                }
            };
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn(connect)
                .unwrap()
        })
        .collect();
    let mut outcomes: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    outcomes.sort_by_key(|outcome| outcome.took);
    outcomes
}

/// A thread that accepts until the listener's engine is shut down, and keeps what it accepted.
fn accept_all(listener: Listener) -> thread::JoinHandle<Vec<Endpoint>> {
    thread::spawn(move || {
        let mut accepted = Vec::new();
        while let Ok(endpoint) = listener.accept() {
            accepted.push(endpoint);
        }
        accepted
    })
}

/// Prints how many of so many connects get through, for whoever changes how many are served at a time:
/// `STORM=200 … --ignored --nocapture how_many_of_a_storm_get_through`.
#[test]
#[ignore = "it measures"]
fn how_many_of_a_storm_get_through() {
    let _watchdog = Watchdog::new("how_many_of_a_storm_get_through", 600);
    let counts = std::env::var("STORM").unwrap_or_else(|_| "50,100,200".into());
    for count in counts.split(',') {
        let count = count.parse().unwrap();
        let mut config = Config::default();
        if count > 200 {
            config.receive_window = 4;
            config.send_depth = 4;
            config.eager_size = 1024;
        }
        config.backlog = 2000;
        let (servers, clients) = (Engine::new().unwrap(), Engine::new().unwrap());
        let listener = Listener::bind_with(Lab::get().at(0), &config, &servers).unwrap();
        let address = listener.local_addr();
        let accepting = accept_all(listener);
        let connector = Connector::new().config(config).engine(&clients);
        let outcomes = storm(count, &connector, address);
        let through: Vec<_> = outcomes.iter().filter(|o| o.result.is_ok()).collect();
        let mut failures: Vec<String> = outcomes
            .iter()
            .filter_map(|o| o.result.as_ref().err())
            .map(|error| match error {
                Error::Connect { reason, .. } => reason.to_string(),
                other => other.to_string(),
            })
            .collect();
        failures.sort();
        let different = failures.len();
        failures.dedup();
        let at = |part: f64| {
            through
                .get((through.len() as f64 * part) as usize)
                .map(|o| o.took)
        };
        println!(
            "{count}: {} through, first {:?}, p50 {:?}, last {:?}; {different} failed: {failures:?}; the last call took {:?}",
            through.len(),
            at(0.0),
            at(0.5),
            through.last().map(|o| o.took),
            outcomes.last().unwrap().took,
        );
        drop(outcomes);
        clients.shutdown();
        servers.shutdown();
        accepting.join().unwrap();
    }
}
