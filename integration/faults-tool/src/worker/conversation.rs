use std::{
    fs::File,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rdmsg::{Endpoint, Error, RemoteRegion};
use toolbox::{Side, clock_millis};

use super::{News, Worker, operations::Operations, page::Page, reader, sender, signals::Signals};
use crate::{
    book::End,
    content::Content,
    scenario::{Fault, Group, Talk},
};

/// One side of a connection, from before it is established until it has ended.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) worker: Arc<Worker>,
    pub(crate) connection: u32,
    pub(crate) group: Group,
    pub(crate) page: Page,
    pub(crate) signals: Signals,
    /// Where the peer's memory is, once it has said so.
    pub(crate) remote: OnceLock<RemoteRegion>,
    flows: AtomicBool,
}

impl Conversation {
    pub(crate) fn new(
        worker: &Arc<Worker>,
        connection: u32,
        signals: Signals,
        journal: &Option<Arc<File>>,
    ) -> Self {
        Self {
            worker: Arc::clone(worker),
            connection,
            group: worker.scenario.group(connection),
            page: Page::new(connection, journal.clone()),
            signals,
            remote: OnceLock::new(),
            flows: AtomicBool::new(false),
        }
    }

    /// Sends and receives until the end. Says how that was, and whether the connection came about
    /// at all.
    pub(crate) fn run(self: &Arc<Self>, endpoint: Result<Endpoint, Error>) -> End {
        let end = match endpoint {
            Ok(endpoint) if self.leaves() && self.worker.side == Side::Server => {
                self.leave(endpoint)
            }
            Ok(endpoint) => self.talk(&endpoint),
            Err(error) => End::NotEstablished(error.to_string()),
        };
        self.page.write(|book| {
            book.end = end.clone();
            if book.ended == 0 {
                book.ended = clock_millis();
            }
        });
        self.is_flowing();
        self.worker.end(self);
        end
    }

    fn talk(&self, endpoint: &Endpoint) -> End {
        if self.leaves() {
            // Nothing comes before the server is told to stop.
            self.is_flowing();
        }
        let operations = match self.group.talk {
            Talk::Operations => match Operations::offer(endpoint) {
                Ok(operations) => Some(operations),
                Err(error) => {
                    self.problem(&format!("no memory for operations: {error}"));
                    return End::Broken(format!("{error:?}"));
                }
            },
            Talk::Idle | Talk::Small | Talk::Large | Talk::Mixed => None,
        };
        let operations = operations.as_ref();
        let end = thread::scope(|scope| {
            scope.spawn(|| sender::send_all(self, endpoint, operations));
            reader::read(self, endpoint, operations)
        });
        let delivered = endpoint.close().is_ok();
        self.page.write(|book| book.delivered = delivered);
        end
    }

    /// Sends a few messages when it is told to stop, and goes without a word.
    fn leave(&self, endpoint: Endpoint) -> End {
        self.is_flowing();
        self.signals.wait(|told| told.stop);
        sender::send_last(self, &endpoint);
        drop(endpoint);
        End::Open
    }

    /// Whether the server's process is going to end by itself, which the client is not to be faster
    /// with.
    pub(crate) fn leaves(&self) -> bool {
        self.worker.scenario.fault == Fault::ProcessLeaves
    }

    /// What a side of it sends.
    pub(crate) fn content(&self, from: Side) -> Content {
        Content {
            seed: self.worker.seed,
            connection: self.connection,
            from,
            talk: self.group.talk,
        }
    }

    /// Something has come, or nothing ever will.
    pub(crate) fn is_flowing(&self) {
        if !self.flows.swap(true, Ordering::Relaxed) {
            self.worker.tell(News::Flowing);
            // Only a server that restarts looks, and it looks as long as there are connections.
            let _ = self.worker.flows.0.send(());
        }
    }

    /// Something that must never be.
    pub(crate) fn problem(&self, problem: &str) {
        let Self { connection, .. } = self;
        let side = self.worker.side;
        let problem = format!("connection {connection}, {side}: {problem}");
        self.worker.tell(News::Problem(problem));
    }
}
