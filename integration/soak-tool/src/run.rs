use std::{sync::Arc, thread::JoinHandle, time::Instant};

use rdmsg::{Engine, crossbeam_channel::Sender};

use crate::{
    board::Board,
    book::Book,
    control::Control,
    keeper::{self, Kept},
    ledger::Ledger,
    readers::Readers,
    totals::Totals,
};

/// What the connections of one side share, as long as they run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) engine: Engine,
    pub(crate) board: Arc<Board>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) readers: Readers,
    ledger: Arc<Ledger>,
    control: Arc<Control>,
    keeper: Sender<(Instant, Kept)>,
}

impl Run {
    /// Starts the threads that serve all connections. They end when this is gone.
    pub(crate) fn start(
        seed: u64,
        engine: Engine,
        board: &Arc<Board>,
        totals: &Arc<Totals>,
        ledger: &Arc<Ledger>,
        control: &Arc<Control>,
    ) -> (Arc<Self>, Vec<JoinHandle<()>>) {
        let (readers, threads) = Readers::start();
        let (keeper, thread) = keeper::start(board);
        let run = Self {
            seed,
            engine,
            board: Arc::clone(board),
            totals: Arc::clone(totals),
            readers,
            ledger: Arc::clone(ledger),
            control: Arc::clone(control),
            keeper,
        };
        let threads = threads.into_iter().chain([thread]).collect();
        (Arc::new(run), threads)
    }

    /// Keeps a message until then.
    pub(crate) fn keep(&self, until: Instant, message: Kept) {
        self.keeper
            .send((until, message))
            .expect("the keeper ends after all connections");
    }

    /// A connection has ended: this side's book goes to the other one, and is compared with that
    /// one's.
    pub(crate) fn enter(&self, book: Book) {
        if let Err(error) = self.control.send(&book.to_string()) {
            self.board.fail(&format!("the control connection: {error}"));
        }
        if let Err(problem) = self.ledger.enter(book) {
            self.board
                .fail(&format!("connection {}: {problem}", book.connection));
        }
    }
}
