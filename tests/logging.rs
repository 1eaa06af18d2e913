//! Tests of loggers that panic, block, or send their lines over a connection of this crate. These
//! tests are a separate program, because a program has only one logger.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use common::{TIME_LIMIT, connect_and_accept, local_ip, log_lines::targets, with_time_to_connect};
use log::{LevelFilter, Log, Metadata, Record};
use rdmsg::{Config, Connector, Endpoint, Engine, Error, Listener};

/// The logger's action for each line.
#[derive(Clone)]
enum LogAction {
    Ignore,
    Panic,
    /// For each line that a thread of the library logs, sends a report through the `Sender`. Then
    /// blocks that thread until the sending half of the `Receiver`'s channel is dropped.
    Block(Sender<()>, Arc<Mutex<Receiver<()>>>),
    Send(Endpoint),
}

static ACTION: Mutex<LogAction> = Mutex::new(LogAction::Ignore);

/// The number of lines logged so far.
static LINES: AtomicUsize = AtomicUsize::new(0);

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        thread_local!(static LOGS: Cell<bool> = const { Cell::new(false) });

        LINES.fetch_add(1, Ordering::SeqCst);
        targets::record_violation(record);
        // Ignore lines that this call itself causes.
        if LOGS.replace(true) {
            return;
        }
        let action = action().clone();
        match action {
            LogAction::Ignore => {}
            LogAction::Panic => {
                LOGS.set(false);
                panic!("panic of the test's logger, at: {}", record.args())
            }
            LogAction::Block(called, release) => {
                let name = thread::current().name().map(String::from);
                if name.is_some_and(|name| name.starts_with("rdmsg")) {
                    let _ = called.send(());
                    let _ = release.lock().unwrap().recv();
                }
            }
            // Ignore the error. The library also logs the end of this connection, and the send of
            // that line fails.
            LogAction::Send(endpoint) => {
                let _ = endpoint.send(record.args().to_string().as_bytes());
            }
        }
        LOGS.set(false);
    }

    fn flush(&self) {}
}

fn action() -> MutexGuard<'static, LogAction> {
    ACTION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The permission to set the logger's action. Only one test at a time holds this value. Dropping
/// the value makes the logger ignore all lines.
struct LoggerGuard(#[expect(dead_code, reason = "held until the drop")] MutexGuard<'static, ()>);

impl LoggerGuard {
    fn take() -> Self {
        static LOGGER: Mutex<()> = Mutex::new(());
        let guard = LOGGER.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = log::set_logger(&Logger);
        log::set_max_level(LevelFilter::Trace);
        Self(guard)
    }
}

impl Drop for LoggerGuard {
    fn drop(&mut self) {
        *action() = LogAction::Ignore;
    }
}

fn pair(engine: &Engine) -> (Endpoint, Endpoint) {
    let config = with_time_to_connect(&Config::default());
    let listener = Listener::builder()
        .config(&config)
        .engine(engine)
        .bind((local_ip(), 0))
        .unwrap();
    let connector = Connector::new().config(&config).engine(engine);
    connect_and_accept(&connector, &listener)
}

fn exchange((one, other): &(Endpoint, Endpoint), rounds: u32) {
    for number in 0..rounds {
        for (from, to) in [(one, other), (other, one)] {
            from.send(&number.to_le_bytes()).unwrap();
            let message = to.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!(*message, number.to_le_bytes());
        }
    }
}

#[test]
fn logger_that_panics_loses_its_lines_only() {
    let _guard = LoggerGuard::take();
    let engine = Engine::new().unwrap();
    let before = pair(&engine);
    *action() = LogAction::Panic;
    let lines = LINES.load(Ordering::SeqCst);
    let during = pair(&engine);
    for pair in [&before, &during] {
        exchange(pair, 10);
        let peer = pair.1.clone();
        let closing = thread::spawn(move || peer.close());
        pair.0.close().unwrap();
        closing.join().unwrap().unwrap();
    }
    engine.shutdown();
    assert!(
        LINES.load(Ordering::SeqCst) > lines,
        "the library must call the logger"
    );
    targets::assert_no_violation();
}

#[test]
fn logger_that_blocks_an_engine_delays_no_connection() {
    let _guard = LoggerGuard::take();
    let engine = Engine::new().unwrap();
    let before = pair(&engine);
    let (called, calls) = channel();
    let (release, released) = channel();
    *action() = LogAction::Block(called, Arc::new(Mutex::new(released)));
    let (done, finished) = channel();
    let rest = thread::spawn(move || {
        let during = pair(&engine);
        exchange(&before, 1000);
        exchange(&during, 1000);
        drop((before, during));
        engine.shutdown();
        done.send(()).unwrap();
    });
    calls.recv_timeout(TIME_LIMIT).unwrap();
    finished
        .recv_timeout(TIME_LIMIT)
        .expect("a blocked logger must not block the engine");
    rest.join().unwrap();
    drop(release);
    targets::assert_no_violation();
}

#[test]
fn logger_may_send_its_lines_over_a_connection() {
    let _guard = LoggerGuard::take();
    let engine = Engine::new().unwrap();
    let (source, sink) = pair(&engine);
    let (read, lines) = channel();
    let reader = thread::spawn(move || {
        loop {
            match sink.recv_timeout(TIME_LIMIT) {
                Ok(line) => drop(read.send(String::from_utf8(line.to_vec()).unwrap())),
                Err(Error::Disconnected(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    });
    *action() = LogAction::Send(source.clone());
    let other = pair(&engine);
    exchange(&other, 10);
    drop(other);
    let next = || lines.recv_timeout(TIME_LIMIT).unwrap();
    while !next().contains("established over") {}
    // The library also logs the end of the connection that carries the log lines.
    source.close().unwrap();
    reader.join().unwrap();
    targets::assert_no_violation();
}
