//! Helpers that create both endpoints of a connection, each with a separate engine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

pub(crate) use common::{TIME_LIMIT, ip_and_transport};
use common::{connect_and_accept, patient};
use rdmsg::{
    Config, Connector, Endpoint, Engine, Error, Listener, Polling, tokio::Endpoint as TaskEndpoint,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};

/// The time limit of calls that normally take milliseconds. This limit expires only if no thread
/// polls the connection. It is shorter than the longest sleep of a waiting thread, 10 s, after
/// which the thread would notice an event whose wake-up was lost.
pub(crate) const PROMPT: Duration = Duration::from_secs(9);

/// Returns a configuration without keepalive probes, which would make the engine poll occasionally.
pub(crate) fn unprobed() -> Config {
    patient(&Config::default()).with(|c| c.keepalive_interval = None)
}

/// Two engines. The near engine connects to the listener of the far engine.
pub(crate) struct Stage {
    pub(crate) listener: Listener,
    near: Engine,
}

impl Stage {
    /// Creates both engines. The far engine's listener uses `config`.
    pub(crate) fn new(config: &Config) -> Self {
        let far = Engine::new().unwrap();
        Self {
            listener: Listener::builder()
                .config(config)
                .engine(&far)
                .bind((ip_and_transport().0, 0))
                .unwrap(),
            near: Engine::new().unwrap(),
        }
    }

    /// Connects with the configuration `config`. Returns the near and the far endpoint.
    pub(crate) fn pair(&self, config: &Config) -> (Endpoint, Endpoint) {
        let connector = Connector::new().config(config).engine(&self.near);
        let (near, far) = connect_and_accept(&connector, &self.listener);
        assert_eq!(
            near.info().transport,
            ip_and_transport().1,
            "the connection must use the expected transport"
        );
        (near, far)
    }
}

/// Two threads that exchange messages. Dropping this value stops the threads.
pub(crate) struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Creates a busy connection between the engines of `stage`.
    pub(crate) fn between(stage: &Stage) -> Self {
        let config = patient(&Config::default()).with(|c| c.polling = Polling::Event);
        let (near, far) = stage.pair(&config);
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let asking = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                near.send(b"busy").unwrap();
                near.recv_timeout(TIME_LIMIT).unwrap();
                // Sleep, to leave the processors to other threads.
                thread::sleep(Duration::from_millis(1));
            }
        });
        let answering = thread::spawn(move || {
            while let Ok(message) = far.recv() {
                if far.send(&message).is_err() {
                    break;
                }
            }
        });
        Self {
            stop,
            threads: vec![asking, answering],
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(
                ended.is_ok() || thread::panicking(),
                "the busy threads must not fail"
            );
        }
    }
}

/// Sends `count` messages, and flushes after each message. Asserts that each flush completes within
/// [`PROMPT`].
pub(crate) fn flush_promptly(endpoint: &Endpoint, count: usize) {
    for number in 0..count {
        endpoint.send(&number.to_le_bytes()).unwrap();
        let flushed = endpoint.flush_timeout(PROMPT);
        flushed.unwrap_or_else(|error| panic!("flush {number} of {count}: {error}"));
    }
}

/// Returns a multi-thread runtime with two workers if `multi` is true, and a current-thread runtime
/// otherwise.
pub(crate) fn runtime(multi: bool) -> Runtime {
    let mut builder = if multi {
        Builder::new_multi_thread()
    } else {
        Builder::new_current_thread()
    };
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Spawns a task that receives until the connection ends. Then yields ten times, so that the task
/// begins to wait. The task returns the number of received messages, and the reason why the
/// connection ended.
pub(crate) async fn receive_all(endpoint: Endpoint) -> tokio::task::JoinHandle<(usize, Error)> {
    let endpoint = TaskEndpoint::new(endpoint).unwrap();
    let task = tokio::spawn(async move {
        let mut count = 0;
        loop {
            match endpoint.recv().await {
                Ok(_) => count += 1,
                Err(error) => return (count, error),
            }
        }
    });
    for _ in 0..10 {
        yield_now().await;
    }
    task
}
