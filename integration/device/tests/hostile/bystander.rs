use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rdmsg::{CloseReason, Connector, Endpoint, Engine, Error, Listener, Polling};
use toolbox::{TIME_LIMIT, patient, pattern};

/// The pause between two messages, during which other threads can use the processor. While a thread
/// waits in `assert_unaffected`, there is no pause.
const PAUSE: Duration = Duration::from_millis(5);

/// A healthy connection, which continuously exchanges messages and checks the content of each
/// message.
pub(crate) struct Bystander {
    client: JoinHandle<()>,
    server: JoinHandle<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    enough: AtomicBool,
    rounds: Mutex<Rounds>,
    /// Notified when `rounds.done` or `rounds.wanted` increases.
    changed: Condvar,
}

#[derive(Default)]
struct Rounds {
    done: u64,
    /// The number of the round for which `assert_unaffected` waits.
    wanted: u64,
}

impl Bystander {
    pub(crate) fn new(engine: &Engine, addr: std::net::SocketAddr) -> Self {
        let mut config = patient();
        config.polling = Polling::Event;
        let listener = Listener::builder()
            .config(&config)
            .engine(engine)
            .bind(addr)
            .unwrap();
        let addr = listener.local_addr();
        let connector = Connector::new().config(&config).engine(engine);
        let shared = Arc::new(Shared::default());
        let turning = Arc::clone(&shared);
        let client = thread::spawn(move || turn(&connector.connect(addr).unwrap(), &turning));
        let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
        let server = thread::spawn(move || {
            let reason = loop {
                match endpoint.recv_timeout(TIME_LIMIT) {
                    Ok(message) => endpoint.send(&message).unwrap(),
                    Err(Error::Disconnected(reason)) => break reason,
                    Err(error) => panic!("the bystander's server: {error}"),
                }
            };
            assert_eq!(reason, CloseReason::PeerClosed);
        });
        Self {
            client,
            server,
            shared,
        }
    }

    /// Checks that the bystander completes a round trip that starts after this call.
    pub(crate) fn assert_unaffected(&self) {
        let mut rounds = self.shared.rounds.lock().unwrap();
        // The current round may have started before this call, so wait until the next round has
        // ended.
        let goal = rounds.done + 2;
        rounds.wanted = rounds.wanted.max(goal);
        self.shared.changed.notify_all();
        let (rounds, timeout) = self
            .shared
            .changed
            .wait_timeout_while(rounds, TIME_LIMIT, |rounds| rounds.done < goal)
            .unwrap();
        assert!(
            !timeout.timed_out(),
            "the bystander stalls after {} rounds",
            rounds.done
        );
    }

    /// Checks that the connection still exchanges messages, and closes it.
    pub(crate) fn finish(self) {
        self.assert_unaffected();
        self.shared.enough.store(true, Ordering::Relaxed);
        self.client
            .join()
            .expect("the bystander's client must not panic");
        self.server
            .join()
            .expect("the bystander's server must not panic");
    }
}

fn turn(endpoint: &Endpoint, shared: &Shared) {
    for round in 0_u64.. {
        if shared.enough.load(Ordering::Relaxed) {
            break;
        }
        // The lengths are below 2000 bytes. Short messages are sent inline, and long messages are
        // not.
        let len = round as usize * 37 % 2000;
        let message = pattern(round, len);
        endpoint.send_timeout(&message, TIME_LIMIT).unwrap();
        let echo = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        assert!(
            *echo == message,
            "round {round}: {} bytes arrived",
            echo.len()
        );
        let mut rounds = shared.rounds.lock().unwrap();
        rounds.done += 1;
        shared.changed.notify_all();
        let idle = |rounds: &mut Rounds| rounds.done >= rounds.wanted;
        drop(shared.changed.wait_timeout_while(rounds, PAUSE, idle));
    }
    endpoint.close().unwrap();
}
