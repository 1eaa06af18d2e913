//! One side's program: it has the connections, and keeps their books.
//!
//! It prints a [`Said`] in JSON on each line of stdout. On stdin the client receives the server's
//! addresses in JSON, both sides `go` after the first messages and `stop`, the server `over` after
//! the client's end, and a side that hangs `quit`.

mod connections;
mod conversation;
mod operations;
mod reader;
mod sender;

use std::{
    io::{self, BufRead, Write},
    net::SocketAddr,
    process,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use rdmsg::{
    Connector, Engine, Listener,
    crossbeam_channel::{Receiver, Sender, bounded, unbounded},
};
use serde::{Deserialize, Serialize};
use toolbox::{Lab, PATIENCE, Side, pattern};

use self::{conversation::Conversation, reader::Job};
use crate::{
    health::{Health, settle},
    judge::Book,
    scenario::{Fault, Scenario},
};

#[derive(Args, Debug)]
pub(crate) struct Order {
    scenario: String,
    seed: u64,
    /// Listen on this address; without one, connect
    listen: Option<SocketAddr>,
}

/// A line of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// The server listens on these addresses.
    Listens(Vec<SocketAddr>),
    /// All connections exist, and each has received something.
    Flowing,
    /// The server has restarted for the last time, and all clients are back.
    Restarted,
    /// A connection has ended.
    Book(Book),
    Problem(String),
}

/// The state that all connections of this side share.
#[derive(Debug)]
struct Worker {
    scenario: Scenario,
    seed: u64,
    side: Side,
    news: Sender<News>,
    /// One for each connection that flows.
    flows: (Sender<()>, Receiver<()>),
    selecting: Sender<Job>,
    trying: Sender<Job>,
    told: Mutex<Told>,
    /// Notified when `told` changes, and when a connection's messages or the connection end.
    changed: Condvar,
    /// Disconnected with the last connection.
    _alive: Sender<()>,
}

#[derive(Debug, Default)]
struct Told {
    /// Every connection has received its first message.
    go: bool,
    /// Each side sends a few more messages, and then the last.
    stop: bool,
    /// The connections that have not ended.
    open: Vec<Arc<Conversation>>,
}

/// An event for the main thread.
#[derive(Debug)]
enum News {
    Flowing,
    Said(Said),
    /// All connections of this side have ended.
    Over,
    /// A line on stdin.
    Told(String),
}

/// Plays one side of a scenario.
pub(crate) fn run(order: &Order) -> Result<()> {
    let lab = Lab::get();
    let (news, inbox) = unbounded();
    let of_stdin = news.clone();
    thread::spawn(move || {
        // It ends with the process.
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = of_stdin.send(News::Told(line));
        }
    });
    warm_up(&lab)?;
    let before = count(&lab)?;
    let (selecting, to_select) = unbounded();
    let (trying, to_try) = unbounded();
    // They end after all connections, when the worker is dropped.
    thread::spawn(move || reader::read_several(&to_select, true));
    thread::spawn(move || reader::read_several(&to_try, false));
    let (alive, ended) = bounded(0);
    let side = order.listen.map_or(Side::Client, |_| Side::Server);
    let worker = Arc::new(Worker {
        scenario: Scenario::named(&order.scenario)?,
        seed: order.seed,
        side,
        news,
        flows: unbounded(),
        selecting,
        trying,
        told: Mutex::default(),
        changed: Condvar::new(),
        _alive: alive,
    });
    let fault = worker.scenario.fault;
    match order.listen {
        None => {
            let addresses = addresses(&inbox)?;
            let engine = Engine::new()?;
            connections::connect(&worker, addresses, &engine);
            worker.follow(&inbox);
            engine.shutdown();
        }
        Some(address) => {
            let (end, ended) = bounded(0);
            let serving = Arc::clone(&worker);
            let server = thread::spawn(move || connections::serve(&serving, address, &ended));
            worker.follow(&inbox);
            if fault == Fault::ProcessLeaves {
                return Ok(());
            }
            drop(end);
            server
                .join()
                .map_err(|_| anyhow!("the server panicked"))??;
        }
    }
    drop(worker);
    // Messages may be held for a while.
    let _ = ended.recv();
    // Connections may have ended only now.
    for news in inbox.try_iter() {
        if let News::Said(said) = news {
            say(&said);
        }
    }
    // A removed device counts from zero again, if at all.
    if fault != Fault::DeviceRemoved || side == Side::Client {
        settle(&before, || count(&lab), Health::is_as)?;
    }
    Ok(())
}

/// Has one connection within this process, with a message that is read, so that later counts
/// include everything that a process keeps after its first connection.
fn warm_up(lab: &Lab) -> Result<()> {
    let engine = Engine::new()?;
    let listener = Listener::builder().engine(&engine).bind(lab.at(0))?;
    let address = listener.local_addr();
    let connector = Connector::new().engine(&engine);
    thread::scope(|scope| {
        let client = scope.spawn(|| -> Result<()> {
            let endpoint = connector.connect(address)?;
            endpoint.send(&pattern(1, 100_000))?;
            Ok(endpoint.close()?)
        });
        let server = listener.accept_timeout(PATIENCE)?;
        server.recv_timeout(PATIENCE)?;
        drop(server);
        client.join().map_err(|_| anyhow!("the warm-up panicked"))?
    })?;
    drop(listener);
    engine.shutdown();
    Ok(())
}

/// The resources without a connection. librdmacm's memory of an opened device depends on the last
/// call, which is the same here each time.
fn count(lab: &Lab) -> Result<Health> {
    let engine = Engine::new()?;
    drop(Listener::builder().engine(&engine).bind(lab.at(0))?);
    engine.shutdown();
    Health::now(lab.resources(), lab.rnr_naks())
}

/// The server's addresses: the first line on stdin.
fn addresses(inbox: &Receiver<News>) -> Result<Vec<SocketAddr>> {
    let News::Told(line) = inbox.recv()? else {
        bail!("news before the addresses");
    };
    Ok(serde_json::from_str(&line)?)
}

/// Prints a line for the conductor.
fn say(said: &Said) {
    let line = serde_json::to_string(said).expect("it has no map");
    let mut stdout = io::stdout().lock();
    // It fails only if the conductor is gone.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

impl Worker {
    /// Takes the news of all connections, until they are over.
    fn follow(&self, inbox: &Receiver<News>) {
        let mut missing = self.scenario.connections();
        for news in inbox {
            match news {
                News::Flowing => {
                    missing = missing.wrapping_sub(1);
                    if missing == 0 {
                        say(&Said::Flowing);
                    }
                }
                News::Said(said) => say(&said),
                News::Over => return,
                News::Told(line) => match line.as_str() {
                    "go" => self.change(|told| told.go = true),
                    "stop" => self.change(|told| told.stop = true),
                    "over" => return,
                    _ => self.give_up(),
                },
            }
        }
    }

    /// Ends the process, with the books and plans of the connections that have not ended.
    fn give_up(&self) -> ! {
        for conversation in &self.told().open {
            say(&Said::Problem(format!("open: {conversation}")));
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

    fn tell(&self, news: News) {
        // It fails only at the end of the process.
        let _ = self.news.send(news);
    }

    fn problem(&self, problem: String) {
        self.tell(News::Said(Said::Problem(problem)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
