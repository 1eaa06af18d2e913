use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use rdmsg::{Endpoint, Error};
use toolbox::{Side, clock_millis, lock};

use super::{
    Report, State, Worker, operations::Operations, problem, reader::Reader, report, sender,
};
use crate::{
    plan::{Content, Ending, Half, Plan},
    record::{End, Record},
    scenario::Traffic,
};

/// One side of a connection. The value is created before the connection is established, and exists
/// at least until the connection has ended.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) worker: Arc<Worker>,
    pub(super) plan: Plan,
    /// The state of one-sided operations. Empty if the plan contains no such operations.
    pub(super) operations: OnceLock<Operations>,
    record: Mutex<Record>,
    /// Whether this connection has been counted as flowing. The connection is counted when its
    /// first message arrives, or when it ends without a message. With [`Ending::Leave`], the
    /// connection is counted when it is established.
    flows: AtomicBool,
}

impl Conversation {
    pub(super) fn begin(worker: &Arc<Worker>, connection: u32) -> Arc<Self> {
        let record = Record {
            connection,
            ..Record::default()
        };
        let conversation = Arc::new(Self {
            worker: Arc::clone(worker),
            plan: Plan::new(&worker.scenario, worker.seed, connection),
            operations: OnceLock::new(),
            record: Mutex::new(record),
            flows: AtomicBool::new(false),
        });
        worker.state().open.push(Arc::clone(&conversation));
        conversation
    }

    /// Sends and receives until the connection has ended. Prints the record, and returns how the
    /// connection ended.
    pub(super) fn run(self: Arc<Self>, endpoint: Result<Endpoint, Error>) -> End {
        let end = match endpoint {
            Ok(endpoint) => self.exchange(endpoint),
            Err(error) => End::NotEstablished(error.to_string()),
        };
        self.end(&end);
        self.is_flowing();
        let is_other = |open: &Arc<Self>| !Arc::ptr_eq(open, &self);
        self.worker.state().open.retain(is_other);
        report(&Report::Record(self.record().clone()));
        end
    }

    /// Records how the connection has ended, and wakes the threads in [`wait`](Self::wait). Later
    /// calls do not change the record.
    pub(super) fn end(&self, end: &End) {
        let mut record = self.record();
        if record.end == End::Open {
            (record.end, record.ended) = (end.clone(), clock_millis());
        }
        drop(record);
        self.worker.change(|_| ());
    }

    fn exchange(self: &Arc<Self>, endpoint: Endpoint) -> End {
        if self.plan.ending == Ending::Leave {
            // Count this connection as flowing now, because neither side sends a message before the
            // order `stop`.
            self.is_flowing();
            if self.worker.side == Side::Server {
                self.wait(|state, _| state.stop);
                sender::send_all(self, &endpoint);
                return End::Open;
            }
        }
        if self.plan.traffic == Traffic::Operations {
            match Operations::offer(&endpoint) {
                // The call succeeds, because no other thread sets this cell.
                Ok(operations) => drop(self.operations.set(operations)),
                Err(error) => {
                    return End::Broken(format!("cannot offer memory for operations: {error:?}"));
                }
            }
        }
        let reader = Reader::new(self, endpoint.clone());
        let end = thread::scope(|scope| {
            scope.spawn(|| sender::send_all(self, &endpoint));
            reader.read()
        });
        let statistics = endpoint.statistics();
        let delivered = end != End::Dropped && endpoint.close().is_ok();
        let mut record = self.record();
        (record.resumes, record.resent) = (statistics.resumes, statistics.resent);
        record.delivered = delivered;
        end
    }

    /// Returns this side's part of the plan.
    pub(super) fn half(&self) -> &Half {
        self.plan.half(self.worker.side)
    }

    /// Returns the messages that the side `from` sends.
    pub(super) fn content(&self, from: Side) -> Content {
        Content::new(self.worker.seed, self.record().connection, from, &self.plan)
    }

    /// Counts this connection as flowing, unless it has already been counted.
    pub(super) fn is_flowing(&self) {
        if !self.flows.swap(true, Relaxed) {
            self.worker.flows();
        }
    }

    /// Reports to the conductor that a rule was violated on this connection.
    pub(super) fn problem(&self, text: &str) {
        problem(format!("{text}; {self}"));
    }

    /// Locks the record.
    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }

    /// Waits until `until` returns true, or until the connection has ended.
    pub(super) fn wait(&self, until: impl Fn(&State, &Record) -> bool) {
        let is_over = |state: &State| {
            let record = self.record();
            until(state, &record) || record.end != End::Open
        };
        drop(self.worker.wait(is_over));
    }
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (side, record, plan) = (self.worker.side, self.record(), &self.plan);
        write!(f, "the {side}: {record:?}; {plan:?}")
    }
}
