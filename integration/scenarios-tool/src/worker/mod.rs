//! The program of one side, which runs the connections and records their messages and ends.
//!
//! It prints a [`Said`] as JSON on each line of stdout. On stdin, the client receives the server's
//! addresses as JSON. Both sides receive `go` after the first messages, and `stop`; the server
//! receives `over` after the client's end, and a hung side `quit`.

mod connections;
mod conversation;
mod operations;
mod reader;
mod sender;

use std::{
    io::{self, BufRead, Write},
    net::SocketAddr,
    process,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

use anyhow::{Result, anyhow};
use clap::Args;
use nix::sys::resource::{Resource, setrlimit};
use rdmsg::{
    Connector, Engine, Listener,
    crossbeam_channel::{Sender, bounded, unbounded},
};
use serde::{Deserialize, Serialize};
use toolbox::{Lab, Side, TIME_LIMIT, pattern};

use self::{conversation::Conversation, reader::Job};
use crate::{
    health::{Health, settle},
    record::Record,
    scenario::{Fault, Scenario},
};

/// The limit of descriptors: a connection needs up to four.
const DESCRIPTORS: u64 = 16 << 10;

#[derive(Args, Debug)]
pub(crate) struct Order {
    scenario: String,
    seed: u64,
    /// Listen on this address; without one, connect
    listen: Option<SocketAddr>,
    /// The number of the first connection
    #[arg(long, default_value_t = 0)]
    first: u32,
}

/// A line of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// The server listens on these addresses.
    Listens(Vec<SocketAddr>),
    /// All connections are established, and each has received a message. A restarting server
    /// reports this each time.
    Flowing,
    /// A connection has ended.
    Record(Record),
    /// The state of a victim.
    Health(Health),
    Problem(String),
}

/// The state that all connections of this side share.
#[derive(Debug)]
struct Worker {
    scenario: Scenario,
    seed: u64,
    side: Side,
    /// The threads that read several connections, by `Select` and by `try_recv`.
    readers: [Sender<Job>; 2],
    told: Mutex<Told>,
    /// Notified when `told` changes, and when a connection's messages or the connection end.
    changed: Condvar,
    /// Disconnected with the last connection.
    _alive: Sender<()>,
}

#[derive(Debug, Default)]
struct Told {
    /// The server's addresses.
    addresses: Vec<SocketAddr>,
    /// Whether every connection has received its first message.
    go: bool,
    /// Whether to stop: each side sends a few more messages, and then the last one.
    stop: bool,
    /// The number of connections with messages since the server's last start.
    flowing: u32,
    /// Dropping this ends accepting. A server that restarts or exits drops it after all connections
    /// have received messages.
    accepting: Option<Sender<()>>,
    ends_when_flowing: bool,
    /// The connections that have not ended.
    open: Vec<Arc<Conversation>>,
}

/// Plays one side of a scenario.
pub(crate) fn run(order: &Order) -> Result<()> {
    let lab = Lab::get();
    // Fails without the privilege; the usual limit suffices for few connections.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS);
    let (selecting, to_select) = unbounded();
    let (trying, to_try) = unbounded();
    let (alive, ended) = bounded(0);
    let side = order.listen.map_or(Side::Client, |_| Side::Server);
    let worker = Arc::new(Worker {
        scenario: Scenario::named(&order.scenario)?,
        seed: order.seed,
        side,
        readers: [selecting, trying],
        told: Mutex::default(),
        changed: Condvar::new(),
        _alive: alive,
    });
    let obeying = Arc::downgrade(&worker);
    // The thread ends with the process.
    thread::spawn(move || obey(&obeying));
    warm_up(&lab)?;
    let before = count(&lab)?;
    // The threads end after all connections, when the worker is dropped.
    thread::spawn(move || reader::read_several(&to_select, true));
    thread::spawn(move || reader::read_several(&to_try, false));
    let (fault, most) = (worker.scenario.fault, worker.scenario.most_connections());
    match order.listen {
        None => connections::connect(&worker, order.first)?,
        Some(address) => connections::serve(&worker, address)?,
    }
    if fault == Fault::ProcessLeaves && side == Side::Server {
        return Ok(());
    }
    drop(worker);
    // Messages may be held for a while.
    let _ = ended.recv();
    // A removed device restarts its counters, if it returns.
    if fault != Fault::DeviceRemoved || side == Side::Client {
        settle(
            &before,
            || count(&lab),
            |now, before| now.has_no_leak_since(before, most),
        )?;
    }
    Ok(())
}

/// Handles the lines on stdin while there is a worker.
fn obey(worker: &Weak<Worker>) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Some(worker) = worker.upgrade() else {
            return;
        };
        match &*line {
            "go" => worker.change(|told| told.go = true),
            "stop" => worker.change(|told| told.stop = true),
            "over" => worker.change(|told| told.accepting = None),
            line => match serde_json::from_str(line) {
                Ok(addresses) => worker.change(|told| told.addresses = addresses),
                Err(_) => worker.give_up(),
            },
        }
    }
}

/// Uses one connection within this process, so that later counts include everything that a process
/// keeps after its first connection.
fn warm_up(lab: &Lab) -> Result<()> {
    let engine = Engine::new()?;
    let listener = Listener::builder().engine(&engine).bind(lab.at(0))?;
    let (connector, address) = (Connector::new().engine(&engine), listener.local_addr());
    let connecting = thread::spawn(move || connector.connect(address));
    let server = listener.accept_timeout(TIME_LIMIT)?;
    let client = connecting
        .join()
        .map_err(|_| anyhow!("the warm-up panicked"))??;
    client.send(&pattern(1, 100_000))?;
    server.recv_timeout(TIME_LIMIT)?;
    client.close()?;
    engine.shutdown();
    Ok(())
}

/// Counts the resources without a connection. librdmacm's memory of an opened device depends on the
/// last call, which is the same here each time.
fn count(lab: &Lab) -> Result<Health> {
    let engine = Engine::new()?;
    drop(Listener::builder().engine(&engine).bind(lab.at(0))?);
    engine.shutdown();
    Health::now(lab.resources(), lab.rnr_naks())
}

/// Prints a line for the conductor.
pub(crate) fn say(said: &Said) {
    let line = serde_json::to_string(said).expect("it has no map");
    let mut stdout = io::stdout().lock();
    // Fails only if the conductor is gone.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Reports a violation.
fn problem(text: String) {
    say(&Said::Problem(text));
}

impl Worker {
    /// Counts one more connection with messages.
    fn flows(&self) {
        let mut told = self.told();
        told.flowing += 1;
        if told.flowing == self.scenario.connections() {
            if told.ends_when_flowing {
                told.accepting = None;
            }
            drop(told);
            say(&Said::Flowing);
        }
    }

    /// Ends the process, after printing the records and plans of the open connections.
    fn give_up(&self) -> ! {
        for conversation in &self.told().open {
            problem(format!("open: {conversation}"));
        }
        process::exit(1);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }

    fn change(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told());
        self.changed.notify_all();
    }

    /// Waits until `until` is true.
    fn wait(&self, until: impl Fn(&Told) -> bool) -> MutexGuard<'_, Told> {
        let waited = self.changed.wait_while(self.told(), |told| !until(told));
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
