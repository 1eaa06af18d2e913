//! Tests that the engine polls the connections of a runtime that no thread drives.

use std::{
    panic::resume_unwind,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use common::patient;
use rdmsg::{CloseReason, Config, Endpoint, Error};
use tokio::time::timeout;

use crate::stage::{
    Busy, PROMPT, Stage, TIME_LIMIT, flush_promptly, receive_all, runtime, unprobed,
};

/// The length in bytes of a message that the peer reads in many chunks.
const LARGE: usize = 4 << 20;

/// The reason why no thread drives a current-thread runtime.
#[derive(Clone, Copy, Debug)]
enum Idle {
    /// `block_on` has returned.
    Returned,
    /// A task blocks the runtime's thread.
    Blocked,
}

/// Runs `work` on another thread while a task waits in `recv` on a runtime that no thread drives.
/// Then drives the runtime until the connection ends. Returns the result of `work`, the number of
/// messages that the task has received, and the reason why the connection ended.
fn with_idle_runtime<T: Send>(
    idle: Idle,
    endpoint: Endpoint,
    work: impl FnOnce() -> T + Send,
) -> (T, usize, Error) {
    let runtime = runtime(false);
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let begin = || {
            scope.spawn(move || {
                // Dropping `_done` reports that the thread has ended, even after a panic.
                let _done: mpsc::Sender<()> = done;
                work()
            })
        };
        let wait = || {
            let end = is_done.recv_timeout(TIME_LIMIT).unwrap_err();
            assert_eq!(
                end,
                RecvTimeoutError::Disconnected,
                "the work must end within {TIME_LIMIT:?}"
            );
        };
        let (task, worker) = match idle {
            Idle::Returned => {
                let task = runtime.block_on(receive_all(endpoint));
                let worker = begin();
                wait();
                (task, worker)
            }
            Idle::Blocked => runtime.block_on(async {
                let task = receive_all(endpoint).await;
                let worker = begin();
                wait();
                (task, worker)
            }),
        };
        let value = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        let ended = runtime.block_on(async { timeout(TIME_LIMIT, task).await.unwrap() });
        let (count, end) = ended.unwrap();
        (value, count, end)
    })
}

/// Calls `run` with the near endpoint of a connection, while a task waits for messages on the far
/// endpoint. Does so for each [`Idle`] reason, once with and once without a busy connection between
/// the same engines. All cases run concurrently. Asserts that each task receives `expected`
/// messages.
fn with_each_idle_runtime(
    near: &Config,
    far: &Config,
    expected: usize,
    run: impl Fn(&Endpoint) + Sync,
) {
    let run = &run;
    thread::scope(|scope| {
        for idle in [Idle::Returned, Idle::Blocked] {
            for busy in [false, true] {
                let name = format!("{idle:?}, busy: {busy}");
                let case = move || {
                    let stage = Stage::new(far);
                    let _busy = busy.then(|| Busy::between(&stage));
                    let (near, far) = stage.pair(near);
                    let ((), count, end) = with_idle_runtime(idle, far, || {
                        run(&near);
                        drop(near);
                    });
                    assert_eq!(count, expected, "{end}");
                    let closed = matches!(end, Error::Disconnected(CloseReason::PeerClosed));
                    assert!(closed, "{end}");
                };
                let thread = thread::Builder::new().name(name);
                thread.spawn_scoped(scope, case).unwrap();
            }
        }
    });
}

#[test]
fn flushes_towards_an_idle_runtime() {
    let config = patient(&Config::default());
    with_each_idle_runtime(&config, &config, 20, |near| flush_promptly(near, 20));
}

#[test]
fn closes_towards_an_idle_runtime() {
    // If the engine did not poll, the close would fail after `close_timeout`.
    let config = unprobed().with(|c| c.close_timeout = PROMPT);
    with_each_idle_runtime(&config, &unprobed(), 1, |near| {
        near.send(b"the last").unwrap();
        near.close().unwrap();
    });
}

#[test]
fn sends_a_large_message_to_an_idle_runtime() {
    let config = unprobed();
    let message = vec![7; LARGE];
    with_each_idle_runtime(&config, &config, 1, |near| {
        near.send(&message).unwrap();
        near.flush_timeout(PROMPT).unwrap();
    });
}

#[test]
fn answers_probes_next_to_an_idle_runtime() {
    let near = patient(&Config::default()).with(|c| {
        c.keepalive_interval = Some(Duration::from_millis(100));
        c.keepalive_timeout = Duration::from_secs(5);
    });
    with_each_idle_runtime(&near, &unprobed(), 0, |near| {
        // Without answers, the connection would end after 5.1 s.
        let silence = near.recv_timeout(Duration::from_secs(8));
        assert!(matches!(silence, Err(Error::TimedOut)), "{silence:?}");
    });
}
