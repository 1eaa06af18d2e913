use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rdmsg::{
    CloseReason, Endpoint, Error, Message,
    crossbeam_channel::{Receiver, Sender, bounded},
};
use toolbox::{Side, random};

use crate::{
    board::Work,
    content::Content,
    keeper::Kept,
    plan::{End, Plan},
    run::Run,
    totals::Way,
};

/// What one side of a connection receives: checks it, counts it, and keeps some of it for a while.
#[derive(Debug)]
pub(crate) struct Inbox {
    run: Arc<Run>,
    endpoint: Endpoint,
    connection: u64,
    work: Work,
    content: Content,
    rng: Rng,
    /// Kept until so many messages have come.
    kept: VecDeque<(u64, Kept)>,
    /// How many may be kept that way: one place less than the window has, or nothing would come any
    /// more.
    room: usize,
    eager: usize,
    received: Received,
    /// How many the other side is going to send.
    all: u64,
    /// After how many this side wants no more.
    enough: u64,
    tell_all: Sender<()>,
    tell_end: Sender<Received>,
}

/// What was received until the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// `None` where this side wanted no more.
    pub(crate) reason: Option<CloseReason>,
}

/// What an inbox has to say.
#[derive(Debug)]
pub(crate) struct News {
    /// Everything that the other side is going to send is there; it disconnects where the end comes
    /// first.
    pub(crate) all: Receiver<()>,
    /// The inbox has come to its end.
    pub(crate) end: Receiver<Received>,
}

impl Inbox {
    pub(crate) fn new(run: &Arc<Run>, plan: &Plan, side: Side, endpoint: Endpoint) -> (Self, News) {
        let half = plan.half(side);
        let (tell_all, all) = bounded(1);
        let (tell_end, end) = bounded(1);
        let who = format!("connection {}, {side}, {:?}", plan.id, half.reading);
        let work = run.board.entry(who);
        work.message("receiving", 0);
        let inbox = Self {
            run: Arc::clone(run),
            endpoint,
            connection: plan.id,
            work,
            content: Content::new(run.seed, plan, side.other()),
            rng: random(&[run.seed, plan.id, side as u64, u64::from(b'k')]),
            kept: VecDeque::new(),
            room: match half.config.shared_receive {
                // A connection is sure of two.
                Some(_) => usize::from(half.config.receive_window.min(2)) - 1,
                None => usize::from(half.config.receive_window) - 1,
            },
            eager: plan.eager_size() as usize,
            received: Received::default(),
            all: plan.half(side.other()).messages,
            enough: match plan.end {
                End::Drop(by, after) if by == side => after,
                _ => u64::MAX,
            },
            tell_all,
            tell_end,
        };
        (inbox, News { all, end })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Takes what came. `None` when nothing more is to be taken: the inbox has come to its end.
    pub(crate) fn take(mut self, received: Result<Message, Error>) -> Option<Self> {
        match received {
            Ok(message) => self.take_message(message),
            Err(Error::Disconnected(reason)) => {
                self.received.reason = Some(reason);
                self.end();
                return None;
            }
            Err(error) => self.fail(&format!("receiving failed: {error}")),
        }
        if self.received.messages == self.enough {
            self.end();
            return None;
        }
        Some(self)
    }

    fn take_message(&mut self, message: Message) {
        let expected = self.content.next().expect("the content has no end");
        self.work.message("checking", expected.number);
        if let Err(problem) = expected.check(&message) {
            self.fail(&problem);
        }
        self.received.messages += 1;
        self.received.bytes += message.len() as u64;
        self.run.totals.count(Way::Received, message.len());
        let connection = self.connection;
        self.dispose(Kept {
            message,
            expected,
            connection,
        });
        if self.received.messages == self.all {
            // Nobody waits for it unless this side closes then.
            let _ = self.tell_all.send(());
        }
        self.work.message("receiving", self.received.messages);
    }

    /// Keeps the message for a random while, or lets it go.
    fn dispose(&mut self, message: Kept) {
        let count = self.received.messages;
        let due = self.kept.iter().take_while(|(until, _)| *until <= count);
        let due = due.count();
        self.kept
            .drain(..due)
            .for_each(|(_, kept)| kept.release(&self.run.board));

        match self.rng.u32(..8) {
            0 => self.keep_for_a_time(message),
            // A long one could hold up all further ones by itself.
            1 | 2 if self.kept.len() < self.room && message.message.len() <= self.eager => {
                self.run.totals.keep();
                let until = count + self.rng.u64(1..=16);
                let place = self.kept.partition_point(|(other, _)| *other <= until);
                self.kept.insert(place, (until, message));
            }
            _ => drop(message),
        }
    }

    fn keep_for_a_time(&mut self, message: Kept) {
        self.run.totals.keep();
        let time = Duration::from_millis(self.rng.u64(..1000));
        self.run.keep(Instant::now() + time, message);
    }

    /// Says what was received, when this side's hold on the connection is gone. Kept messages
    /// outlive it.
    fn end(mut self) {
        for (_, kept) in std::mem::take(&mut self.kept) {
            self.keep_for_a_time(kept);
        }
        drop(self.endpoint);
        // Nobody waits for it where the session has failed.
        let _ = self.tell_end.send(self.received);
    }

    pub(crate) fn fail(&self, problem: &str) -> ! {
        let Self {
            connection, run, ..
        } = self;
        run.board
            .fail(&format!("connection {connection}: {problem}"))
    }
}
