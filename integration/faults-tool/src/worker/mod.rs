//! One side's program: it has the connections, and keeps the books.
//!
//! It says on stdout, a line each: `port N` where it listens, `flowing` when all connections are
//! there and something has come on each, `book …` for each connection that has ended, `problem …`,
//! and `done`. A server that restarts says `restarted` when it has had its last restart and all are
//! back. On stdin the client is told to `connect ADDRESS`, each to `go` on after the first messages
//! and to `stop`, such a server that it is `over`, and one that is stuck to `quit`.

mod client;
mod conversation;
mod operations;
mod page;
mod reader;
mod sender;
mod server;
mod signals;

use std::{
    fs::File,
    io::{self, BufRead, Write},
    net::SocketAddr,
    path::PathBuf,
    process::{self, ExitCode},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use rdmsg::{Config, Connector, Engine, Listener, crossbeam_channel};
use toolbox::{Health, Lab, Side, pattern};

pub(crate) use self::page::journal;
use self::{conversation::Conversation, signals::Signals};
use crate::{
    book::Book,
    scenario::{Fault, Scenario},
    scenarios,
};

/// Where a worker keeps its journal.
pub(crate) const JOURNAL: &str = "/tmp/faults-journal";

/// What a worker has to know.
#[derive(Args, Debug)]
pub(crate) struct Order {
    #[arg(long)]
    pub(crate) scenario: String,
    #[arg(long)]
    pub(crate) seed: u64,
    /// Listen on this address; without one, connect to that which is told
    #[arg(long)]
    pub(crate) listen: Option<SocketAddr>,
    /// Keep the books in this file as well
    #[arg(long)]
    pub(crate) journal: Option<PathBuf>,
}

/// What all connections of this side share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    pub(crate) side: Side,
    pub(crate) config: Config,
    journal: Option<Arc<File>>,
    news: Sender<News>,
    /// Told of each connection that flows, for servers that go by that.
    flows: (
        crossbeam_channel::Sender<()>,
        crossbeam_channel::Receiver<()>,
    ),
    open: Mutex<Open>,
}

/// The connections that have not ended.
#[derive(Debug, Default)]
struct Open {
    go: bool,
    stop: bool,
    conversations: Vec<Arc<Conversation>>,
}

impl Open {
    /// Tells one connection what all were told.
    fn tell(&self, signals: &Signals) {
        signals.tell(|told| (told.go, told.stop) = (self.go, self.stop));
    }
}

/// What happens, for the main thread.
#[derive(Debug)]
pub(crate) enum News {
    /// Something came on a connection, or it has ended without.
    Flowing,
    Ended(Book),
    Problem(String),
    /// The part that is played here is over.
    Over,
    /// A line came on stdin.
    Told(String),
}

/// Plays one side of a scenario.
pub(crate) fn run(order: &Order) -> Result<ExitCode> {
    let lab = Lab::get();
    let scenario = scenarios::named(&order.scenario)?;
    let side = match order.listen {
        Some(_) => Side::Server,
        None => Side::Client,
    };
    let (news, inbox) = channel();
    let journal = order.journal.as_ref().map(File::create).transpose()?;
    let worker = Arc::new(Worker {
        config: scenario.effective_config(),
        scenario,
        seed: order.seed,
        side,
        journal: journal.map(Arc::new),
        news,
        flows: crossbeam_channel::unbounded(),
        open: Mutex::default(),
    });
    warm_up(&lab)?;
    let before = count(&lab)?;
    listen_to_stdin(worker.news.clone());
    match order.listen {
        None => {
            let engine = Engine::new()?;
            client::connect(&worker, told_address(&inbox)?, &engine);
            worker.follow(&inbox);
            engine.shutdown();
        }
        Some(address) => {
            let over = server::serve(&worker, address)?;
            worker.follow(&inbox);
            if worker.scenario.fault == Fault::ProcessLeaves {
                return Ok(ExitCode::SUCCESS);
            }
            over.finish();
            // Of connections that ended only now.
            for news in inbox.try_iter() {
                say_of(&news);
            }
        }
    }
    // A device that was removed counts anew, if at all.
    let removed = worker.scenario.fault == Fault::DeviceRemoved && side == Side::Server;
    if !removed && let Err(problem) = count(&lab)?.compare(&before) {
        say(&format!("problem {problem}"));
    }
    say("done");
    Ok(ExitCode::SUCCESS)
}

/// Has one connection within this process, with a message that is read, so that what is counted
/// afterwards is what every process has that ever had one.
fn warm_up(lab: &Lab) -> Result<()> {
    let engine = Engine::new()?;
    let listener = Listener::bind_with(lab.at(0), &Config::default(), &engine)?;
    let address = listener.local_addr();
    let connector = Connector::new().engine(&engine);
    let client = thread::spawn(move || -> Result<(), rdmsg::Error> {
        let endpoint = connector.connect(address)?;
        endpoint.send(&pattern(1, 100_000))?;
        endpoint.close()
    });
    let server = listener.accept_timeout(toolbox::PATIENCE)?;
    server.recv_timeout(toolbox::PATIENCE)?;
    drop(server);
    client
        .join()
        .map_err(|_| anyhow!("the client of the warm-up panicked"))??;
    drop(listener);
    engine.shutdown();
    Ok(())
}

/// What there is when no connection is left. What librdmacm keeps on an opened device depends on
/// what was done last, so that is always the same.
fn count(lab: &Lab) -> Result<Health> {
    let engine = Engine::new()?;
    drop(Listener::bind_with(lab.at(0), &Config::default(), &engine)?);
    engine.shutdown();
    Ok(Health::now(lab))
}

/// Where to connect to: the first that is told.
fn told_address(inbox: &Receiver<News>) -> Result<SocketAddr> {
    match inbox.recv()? {
        News::Told(line) => match line.strip_prefix("connect ") {
            Some(address) => Ok(address.parse()?),
            None => bail!("told {line:?} before an address"),
        },
        other => bail!("{other:?} came before an address"),
    }
}

fn listen_to_stdin(news: Sender<News>) {
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            // When the main thread is gone the process ends.
            let Ok(line) = line else { return };
            if news.send(News::Told(line)).is_err() {
                return;
            }
        }
    });
}

/// Says a line to whoever started this.
pub(crate) fn say(line: &str) {
    let mut stdout = io::stdout().lock();
    // Nobody hears it when that one is gone.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Says what whoever started this is to know.
fn say_of(news: &News) {
    match news {
        News::Ended(book) => say(&format!("book {book}")),
        News::Problem(problem) => say(&format!("problem {problem}")),
        News::Flowing | News::Over | News::Told(_) => {}
    }
}

impl Worker {
    /// The connections' life, from the main thread's view, until the last has ended.
    fn follow(&self, inbox: &Receiver<News>) {
        let all = self.scenario.connections();
        let (mut flowing, mut ended) = (0, 0);
        // A side whose connections follow one another says when it has had the last.
        let counted = !matches!(
            self.scenario.fault,
            Fault::ServerRestarts(_) | Fault::ProcessLeaves
        );
        while !(counted && ended == all) {
            match inbox.recv().expect("a sender is here") {
                News::Flowing => {
                    flowing += 1;
                    if flowing == all {
                        say("flowing");
                    }
                }
                news @ (News::Ended(_) | News::Problem(_)) => {
                    ended += u32::from(matches!(news, News::Ended(_)));
                    say_of(&news);
                }
                News::Over => return,
                News::Told(line) if line == "go" => self.tell_all(|open| open.go = true),
                News::Told(line) if line == "stop" => self.tell_all(|open| open.stop = true),
                News::Told(line) if line == "over" => return,
                News::Told(_) => {
                    for conversation in &self.open().conversations {
                        say(&format!("book {}", conversation.page.read()));
                    }
                    process::exit(1);
                }
            }
        }
    }

    /// Tells all connections to go or to stop, those that are still to come included.
    fn tell_all(&self, change: impl FnOnce(&mut Open)) {
        let mut open = self.open();
        change(&mut open);
        for conversation in &open.conversations {
            open.tell(&conversation.signals);
        }
    }

    /// A new connection.
    pub(crate) fn begin(self: &Arc<Self>, connection: u32) -> Arc<Conversation> {
        let mut open = self.open();
        let signals = Signals::default();
        open.tell(&signals);
        let conversation = Arc::new(Conversation::new(self, connection, signals, &self.journal));
        open.conversations.push(Arc::clone(&conversation));
        conversation
    }

    /// A connection has ended.
    pub(crate) fn end(&self, conversation: &Arc<Conversation>) {
        self.open()
            .conversations
            .retain(|open| !Arc::ptr_eq(open, conversation));
        self.tell(News::Ended(conversation.page.read()));
    }

    pub(crate) fn tell(&self, news: News) {
        // Nobody listens any more when the process ends.
        let _ = self.news.send(news);
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
