//! The worker: the process of one side, which runs that side's connections and writes their
//! records.
//!
//! The worker prints each [`Report`] to stdout as one line of JSON. It reads orders from stdin. The
//! client receives the server's addresses as JSON. Both sides receive `go` after all connections
//! have received their first messages, and later `stop`. The server receives `over` after the
//! client has ended. If the scenario hangs or fails, both sides receive `quit`.

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

use anyhow::Result;
use clap::Args;
use nix::sys::resource::{Resource, setrlimit};
use rdmsg::{
    Connector, Engine, Listener,
    crossbeam_channel::{Sender, bounded, unbounded},
};
use serde::{Deserialize, Serialize};
use toolbox::{Lab, Side, TIME_LIMIT, lock, pattern};

use self::{conversation::Conversation, reader::Job};
use crate::{
    health::{Health, settle},
    record::Record,
    scenario::{Fault, Scenario},
};

/// The maximum number of open file descriptors. Each connection needs up to four descriptors.
const DESCRIPTORS: u64 = 16 << 10;

#[derive(Args, Debug)]
pub(crate) struct Order {
    scenario: String,
    seed: u64,
    /// Listen on this address; without an address, connect
    listen: Option<SocketAddr>,
    /// The number of the first connection
    #[arg(long, default_value_t = 0)]
    first: u32,
}

/// A line that a worker prints to stdout.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The server listens on these addresses.
    Listens(Vec<SocketAddr>),
    /// All connections are counted as flowing. Normally, this means that each has received a
    /// message: see `Conversation::flows`. A server with restarts prints this line after each
    /// start.
    Flowing,
    /// The record of a connection that has ended.
    Record(Record),
    /// The resource counts of the victim of an attack.
    Health(Health),
    Problem(String),
}

/// The state that all connections of this process share.
#[derive(Debug)]
struct Worker {
    scenario: Scenario,
    seed: u64,
    side: Side,
    /// The channels to the two threads that each read several connections: the first with `Select`,
    /// and the second with `try_recv`.
    readers: [Sender<Job>; 2],
    state: Mutex<State>,
    /// Notified when `state` changes, when a connection has received its final message, and when a
    /// connection ends. A thread that holds the lock of `state` may lock a record, but no thread
    /// locks `state` while it holds the lock of a record.
    changed: Condvar,
    /// This sender is dropped when no reference to the worker remains. The drop wakes the receiver
    /// in `run`.
    _alive: Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The addresses on which the server listens.
    addresses: Vec<SocketAddr>,
    /// Whether the order `go` has arrived. The conductor sends `go` after both sides have reported
    /// [`Report::Flowing`].
    go: bool,
    /// Whether the order `stop` has arrived. On each connection without a planned number of
    /// messages, each side then sends only a few more messages.
    stop: bool,
    /// The number of connections that have been counted as flowing since the last start of the
    /// server: see `Conversation::flows`.
    flowing: u32,
    /// Whether the order `over` has arrived, after which the server stops accepting connections.
    over: bool,
    /// The connections that have not yet ended.
    open: Vec<Arc<Conversation>>,
}

/// Runs one side of a scenario.
pub(crate) fn run(order: &Order) -> Result<()> {
    env_logger::init();
    let lab = Lab::get();
    // Ignore the error: raising the limit needs a privilege, and the default suffices for few
    // connections.
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
        state: Mutex::default(),
        changed: Condvar::new(),
        _alive: alive,
    });
    let obeying = Arc::downgrade(&worker);
    // Do not join this thread: it can wait for input until the process exits.
    thread::spawn(move || obey(&obeying));
    warm_up(&lab)?;
    let before = count(&lab)?;
    // These threads end when the worker is dropped. At that time, all connections have ended.
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
    // Held messages have references to the worker. Wait until all held messages are released,
    // because they occupy resources that are counted next.
    let _ = ended.recv();
    // The counters of a device that was removed and created again have restarted at zero, so do not
    // compare them.
    if fault != Fault::DeviceRemoved || side == Side::Client {
        settle(&before, most, || count(&lab))?;
    }
    Ok(())
}

/// Carries out the orders on stdin until the worker is dropped.
fn obey(worker: &Weak<Worker>) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Some(worker) = worker.upgrade() else {
            return;
        };
        match &*line {
            "go" => worker.change(|state| state.go = true),
            "stop" => worker.change(|state| state.stop = true),
            "over" => worker.change(|state| state.over = true),
            line => match serde_json::from_str(line) {
                Ok(addresses) => worker.change(|state| state.addresses = addresses),
                Err(_) => worker.report_and_exit(),
            },
        }
    }
}

/// Makes one connection within this process. The first connection of a process allocates memory and
/// descriptors that the process retains. Call this function before the first count, so that all
/// counts include this memory and these descriptors.
fn warm_up(lab: &Lab) -> Result<()> {
    let engine = Engine::new()?;
    let listener = Listener::builder().engine(&engine).bind(lab.at(0))?;
    let (connector, address) = (Connector::new().engine(&engine), listener.local_addr());
    let connecting = thread::spawn(move || connector.connect(address));
    let server = listener.accept_timeout(TIME_LIMIT)?;
    let client = connecting.join().expect("the client must not panic")?;
    client.send(&pattern(1, 100_000))?;
    server.recv_timeout(TIME_LIMIT)?;
    client.close()?;
    engine.shutdown();
    Ok(())
}

/// Counts the resources while no connection exists. The memory that librdmacm uses for an open
/// device depends on the last call for this device. Each count must follow the same call, so this
/// function first binds a listener.
fn count(lab: &Lab) -> Result<Health> {
    let engine = Engine::new()?;
    drop(Listener::builder().engine(&engine).bind(lab.at(0))?);
    engine.shutdown();
    Health::now(lab.resources(), lab.rnr_naks())
}

/// Prints a line for the conductor.
pub(crate) fn report(report: &Report) {
    let line = serde_json::to_string(report)
        .expect("a report must be convertible to JSON, because it contains no map");
    let mut stdout = io::stdout().lock();
    // Ignore the error: writing fails only if the conductor has ended.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Reports to the conductor that a rule was violated.
fn problem(text: String) {
    report(&Report::Problem(text));
}

impl Worker {
    /// Counts one more connection as flowing. When all connections are counted, prints
    /// [`Report::Flowing`].
    fn flows(&self) {
        let mut state = self.state();
        state.flowing += 1;
        if state.flowing == self.scenario.connections() {
            report(&Report::Flowing);
            self.changed.notify_all();
        }
    }

    /// Prints the records and plans of all open connections, and exits the process with status 1.
    fn report_and_exit(&self) -> ! {
        for conversation in &self.state().open {
            problem(format!("a connection is still open: {conversation}"));
        }
        process::exit(1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until `until` returns true. Returns the locked state.
    fn wait(&self, until: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_while(self.state(), |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}
