use std::{sync::Arc, thread, time::Duration};

use anyhow::{Result, ensure};
use fastrand::Rng;
use rdmsg::{
    Completion, Endpoint, Error, Message,
    crossbeam_channel::{Receiver, Select, Sender, TryRecvError, bounded},
};
use toolbox::Side;

use super::conversation::Conversation;
use crate::{
    plan::{Content, Ending},
    record::End,
    scenario::{Reading, Traffic},
};

/// The pause of a slow reader after each message.
const SLOW: Duration = Duration::from_millis(20);

/// The interval at which a reader that holds messages checks whether the order `stop` has arrived.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The pause before each round of polls. A new job ends the pause early.
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// A function that drops a held message, after it has checked that the bytes are unchanged.
type Release = Box<dyn FnOnce() + Send>;

/// A reader, and a channel to which the reader's thread sends the [`End`] of the connection.
pub(super) type Job = (Reader, Sender<End>);

/// Receives all messages and completions of one side of a connection.
pub(super) struct Reader {
    conversation: Arc<Conversation>,
    endpoint: Endpoint,
    content: Content,
    /// The held messages, each with the number of a later message. The reader releases a held
    /// message when the later message arrives. When the order `stop` arrives, the reader releases
    /// all held messages.
    held: Vec<(u64, Release)>,
}

impl Reader {
    pub(super) fn new(conversation: &Arc<Conversation>, endpoint: Endpoint) -> Self {
        Self {
            conversation: Arc::clone(conversation),
            endpoint,
            content: conversation.content(conversation.worker.side.other()),
            held: Vec::new(),
        }
    }

    /// Reads until the connection has ended, or until this side drops its handles. Returns how the
    /// connection ended.
    pub(super) fn read(mut self) -> End {
        let reading = self.conversation.half().reading;
        let worker = &self.conversation.worker;
        let several = match reading {
            Reading::Selecting => worker.readers[0].clone(),
            Reading::Trying => worker.readers[1].clone(),
            Reading::Prompt | Reading::Slow | Reading::Keeping | Reading::Receiving => loop {
                if self.conversation.worker.state().stop {
                    self.held.drain(..).for_each(|(_, release)| release());
                }
                let next = if reading == Reading::Receiving {
                    self.endpoint.recv().map(Completion::Received)
                } else if self.held.is_empty() {
                    self.endpoint.next_completion()
                } else {
                    self.endpoint.next_completion_timeout(CHECK_INTERVAL)
                };
                if let Some(end) = self.take(next) {
                    return end;
                }
            },
        };
        let (sender, end) = bounded(1);
        several
            .send((self, sender))
            .expect("the thread that reads several connections must still run");
        end.recv().unwrap_or(End::Open)
    }

    /// Handles the result of one receive. If the connection has ended on this side, returns how the
    /// connection ended.
    fn take(&mut self, next: Result<Completion, Error>) -> Option<End> {
        let taken = match next {
            Ok(completion) => self.take_completion(completion),
            Err(Error::Disconnected(reason)) => Ok(Some(End::new(&reason))),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Ok(Some(End::Broken(format!("{error:?}")))),
        };
        let conversation = &self.conversation;
        let received = conversation.record().received;
        let end = taken.unwrap_or_else(|problem| {
            conversation.problem(&problem.to_string());
            // Abort after the first violation, so that no further violations are reported. The
            // abort notifies the peer.
            self.endpoint.abort(2);
            Some(End::Broken(problem.to_string()))
        });
        if let Ending::Drop(by, after) = conversation.plan.ending
            && by == conversation.worker.side
            && end.is_none()
            && received == after
        {
            conversation.record().ends = true;
            return Some(self.end(End::Dropped));
        }
        end.map(|end| self.end(end))
    }

    /// Records how the connection ended, and returns `end`. Other threads release the held messages
    /// within 1 s, so that some messages outlive the connection.
    fn end(&mut self, end: End) -> End {
        for (number, release) in self.held.drain(..) {
            release_later(self.content.random(number, b't'), release);
        }
        self.conversation.end(&end);
        end
    }

    /// Counts and checks a completion. If the connection has ended, returns how it ended.
    ///
    /// # Errors
    ///
    /// If the completion violates a rule.
    fn take_completion(&mut self, completion: Completion) -> Result<Option<End>> {
        let conversation = &self.conversation;
        let confirmed = conversation.record().confirmed;
        if let Completion::Sent(_) | Completion::Written(_) | Completion::Read(_) = completion {
            conversation.record().succeeded += 1;
        }
        match completion {
            Completion::Received(message) => self.take_message(message)?,
            Completion::Sent(number) => {
                conversation.record().confirmed = confirmed.max(number + 1);
                // The completions arrive in the order in which the messages were sent.
                ensure!(number >= confirmed, "message {number} is confirmed late");
            }
            Completion::Failed { id, .. } | Completion::OutcomeUnknown { id, .. } => {
                conversation.record().failed += 1;
                ensure!(id >= confirmed, "message {id} failed after a confirmation");
            }
            Completion::Read(id) => {
                if let Some(operations) = conversation.operations.get() {
                    operations.check_read(id)?;
                }
            }
            // Do nothing: `send` blocks in the sending thread while the window is full or the
            // session is suspended.
            Completion::Room | Completion::Suspended { .. } | Completion::Resumed { .. } => {}
            Completion::Written(_) => {}
            Completion::Disconnected(reason) => return Ok(Some(End::new(&reason))),
            other => return Ok(Some(End::Broken(format!("{other:?}")))),
        }
        Ok(None)
    }

    fn take_message(&mut self, message: Message) -> Result<()> {
        let conversation = &self.conversation;
        if let Some(operations) = conversation.operations.get()
            && operations.remote.get().is_none()
        {
            return operations.accept(&message);
        }
        let number = conversation.record().received;
        let checked = self.content.check(number, &message);
        let last = checked.map_err(anyhow::Error::msg)?;
        let mut record = conversation.record();
        record.received += 1;
        record.has_last |= last;
        drop(record);
        if last {
            conversation.worker.change(|_| ());
        }
        conversation.is_flowing();
        let (content, holder) = (self.content, Arc::clone(conversation));
        let is_short = message.len() <= conversation.plan.eager_size() as usize;
        let release = Box::new(move || {
            if let Err(problem) = content.check(number, &message) {
                holder.problem(&format!("a message changed while it was held: {problem}"));
            }
        });
        let half = conversation.half();
        if conversation.plan.traffic == Traffic::Any {
            self.hold_some(number, is_short, release);
        } else if conversation.worker.side == Side::Server && !conversation.worker.state().stop {
            match half.reading {
                Reading::Slow => thread::sleep(SLOW),
                Reading::Keeping => self.held.push((u64::MAX, release)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Releases the held messages that are due. Then chooses at random whether to drop the new
    /// message immediately, to hold it until a later message arrives, or to hold it for up to a
    /// second.
    fn hold_some(&mut self, number: u64, is_short: bool, release: Release) {
        let due = self.held.extract_if(.., |(until, _)| *until <= number);
        due.for_each(|(_, release)| release());
        let negotiated = self.endpoint.info().negotiated;
        let window = negotiated.map_or(0, |negotiated| negotiated.recv_window);
        // A shared receive queue guarantees only two receives per connection.
        let window = match self.conversation.half().config.shared_receive {
            Some(_) => window.min(2),
            None => window,
        };
        // Keep one receive free for the later message, whose arrival releases the held messages. Do
        // not hold a large message in this way, because it can use up the memory for large
        // messages, and the later message could then not arrive.
        let has_room = self.held.len() + 1 < usize::from(window) && is_short;
        let mut rng = self.content.random(number, b'k');
        match rng.u32(..8) {
            0 => release_later(rng, release),
            1 | 2 if has_room => self.held.push((number + rng.u64(1..=16), release)),
            _ => {}
        }
    }
}

fn release_later(mut rng: Rng, release: Release) {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(rng.u64(..1000)));
        release();
    });
}

/// Reads several connections in one thread, with `Select` or with `try_recv`, until the sender of
/// `new_jobs` is dropped.
pub(super) fn read_several(new_jobs: &Receiver<Job>, selects: bool) {
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        let mut select = Select::new();
        if selects {
            for (reader, _) in &jobs {
                select.recv(reader.endpoint.completions());
            }
        }
        let of_new_jobs = select.recv(new_jobs);
        let ready = if selects || jobs.is_empty() {
            Some(select.ready())
        } else {
            select.ready_timeout(POLL_PAUSE).ok()
        };
        match ready {
            Some(at) if at == of_new_jobs => match new_jobs.try_recv() {
                Ok(job) => jobs.push(job),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            },
            Some(at) => {
                let completion = jobs[at].0.endpoint.completions().try_recv();
                if completion.is_ok_and(|one| !pass_result(&mut jobs[at], Ok(one))) {
                    jobs.swap_remove(at);
                }
            }
            None => jobs.retain_mut(|job| {
                while let Some(message) = job.0.endpoint.try_recv().transpose() {
                    if !pass_result(job, message.map(Completion::Received)) {
                        return false;
                    }
                }
                true
            }),
        }
    }
}

/// Passes a result to a reader. If the connection has then ended, sends its [`End`] to the job's
/// channel and returns false. Otherwise, returns true.
fn pass_result((reader, ended): &mut Job, next: Result<Completion, Error>) -> bool {
    // The send succeeds, because the thread of the conversation waits on the channel.
    reader.take(next).map(|end| ended.send(end)).is_none()
}
