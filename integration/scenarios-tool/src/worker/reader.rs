use std::{mem, sync::Arc, thread, time::Duration};

use rdmsg::{
    Completion, Endpoint, Error, Message,
    crossbeam_channel::{Receiver, Select, Sender, TryRecvError, bounded},
};
use toolbox::Side;

use super::{conversation::Conversation, operations::Operations};
use crate::{
    judge::End,
    plan::{Content, Ending},
    scenario::{Reading, Talk},
};

/// The pause of a slow reader after each message.
const SLOW: Duration = Duration::from_millis(20);

/// The time between two looks of a reader that holds all messages at whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The pause of the thread that tries several connections in turn when none has a message.
const TURN: Duration = Duration::from_millis(1);

/// A reader for a thread that serves several, and the place for its end.
pub(super) type Job = (Reader, Sender<End>);

/// Takes all messages and completions of one side of a connection.
#[derive(Debug)]
pub(super) struct Reader {
    conversation: Arc<Conversation>,
    endpoint: Endpoint,
    operations: Option<Arc<Operations>>,
    content: Content,
    /// Each until this number of messages has come, or until the order to stop.
    kept: Vec<(u64, Kept)>,
}

impl Reader {
    pub(super) fn new(
        conversation: &Arc<Conversation>,
        endpoint: Endpoint,
        operations: Option<Arc<Operations>>,
    ) -> Self {
        Self {
            conversation: Arc::clone(conversation),
            endpoint,
            operations,
            content: conversation.content(conversation.worker.side.other()),
            kept: Vec::new(),
        }
    }

    /// Reads until the end of the connection, or until this side drops it.
    pub(super) fn read(mut self) -> End {
        let reading = self.conversation.half().reading;
        let worker = &self.conversation.worker;
        let several = match reading {
            Reading::Selecting => worker.selecting.clone(),
            Reading::Trying => worker.trying.clone(),
            Reading::Prompt | Reading::Slow | Reading::Keeping | Reading::Receiving => loop {
                if self.conversation.worker.told().stop {
                    self.kept.drain(..).for_each(|(_, kept)| kept.release());
                }
                let next = if reading == Reading::Receiving {
                    self.endpoint.recv().map(Completion::Received)
                } else if self.kept.is_empty() {
                    self.endpoint.next_completion()
                } else {
                    self.endpoint.next_completion_timeout(LOOK)
                };
                if let Some(end) = self.take(next) {
                    return end;
                }
            },
        };
        let (sender, end) = bounded(1);
        several.send((self, sender)).expect("its thread ends later");
        end.recv().unwrap_or(End::Open)
    }

    /// Takes one result, and returns the end with the last one.
    fn take(&mut self, next: Result<Completion, Error>) -> Option<End> {
        let conversation = Arc::clone(&self.conversation);
        let succeed = || conversation.write(|book| book.succeeded += 1);
        let taken = match next {
            Ok(Completion::Received(message)) => self.take_message(message),
            Ok(Completion::Sent(number)) => {
                succeed();
                self.confirm(number)
            }
            Ok(Completion::Failed { .. }) => {
                conversation.write(|book| book.failed += 1);
                Ok(())
            }
            Ok(Completion::Written(_)) => {
                succeed();
                Ok(())
            }
            Ok(Completion::Read(id)) => {
                succeed();
                let operations = self.operations.as_ref().ok_or("a READ from no operation");
                operations
                    .map_err(str::to_owned)
                    .and_then(|operations| operations.check_read(id))
            }
            // The sender waits for room by itself.
            Ok(Completion::Room) | Err(Error::TimedOut) => Ok(()),
            Ok(Completion::Disconnected(reason)) | Err(Error::Disconnected(reason)) => {
                return Some(self.end(End::new(&reason)));
            }
            other => return Some(self.end(End::Broken(format!("{other:?}")))),
        };
        if let Err(problem) = taken {
            conversation.problem(&problem);
            // One report is enough, and the peer learns of the end.
            self.endpoint.abort(2);
            return Some(self.end(End::Broken(problem)));
        }
        let has_dropped = match conversation.plan.ending {
            Ending::Drop(by, after) if by == conversation.worker.side => {
                conversation.book().received == after
            }
            _ => false,
        };
        has_dropped.then(|| self.end(End::Dropped))
    }

    /// Messages outlive the reader for a while.
    fn end(&mut self, end: End) -> End {
        for (_, kept) in mem::take(&mut self.kept) {
            self.keep_for_a_time(kept);
        }
        self.conversation.end(&end);
        end
    }

    fn take_message(&mut self, message: Message) -> Result<(), String> {
        let conversation = &self.conversation;
        if self.operations.is_some() && conversation.remote.get().is_none() {
            let remote = Operations::remote(&message)?;
            // It was empty, and no other thread sets it.
            let _ = conversation.remote.set(remote);
            return Ok(());
        }
        let number = conversation.book().received;
        let last = self.content.check(number, &message)?;
        conversation.write(|book| book.received += 1);
        if last {
            conversation.set(&conversation.all);
        }
        conversation.is_flowing();
        let kept = Kept {
            message,
            number,
            conversation: Arc::clone(conversation),
        };
        if conversation.plan.talk == Talk::Any {
            self.keep_some(kept);
        } else if conversation.worker.side == Side::Server && !conversation.worker.told().stop {
            match conversation.half().reading {
                Reading::Slow => thread::sleep(SLOW),
                Reading::Keeping => self.kept.push((u64::MAX, kept)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Holds the message until others have come, or for a time, or drops it.
    fn keep_some(&mut self, kept: Kept) {
        let due = self.kept.extract_if(.., |(until, _)| *until <= kept.number);
        due.for_each(|(_, kept)| kept.release());
        let config = &self.conversation.half().config;
        // A shared queue guarantees two receives to a connection.
        let window = match config.shared_receive {
            Some(_) => config.receive_window.min(2),
            None => config.receive_window,
        };
        // The last place is for the messages that release others, and a long message could take
        // all of the memory for long ones.
        let is_short = kept.message.len() <= self.conversation.plan.eager_size() as usize;
        let has_room = self.kept.len() + 1 < usize::from(window) && is_short;
        let mut rng = self.content.random(kept.number, b'k');
        match rng.u32(..8) {
            0 => self.keep_for_a_time(kept),
            1 | 2 if has_room => self.kept.push((kept.number + rng.u64(1..=16), kept)),
            _ => {}
        }
    }

    fn keep_for_a_time(&self, kept: Kept) {
        let millis = self.content.random(kept.number, b't').u64(..1000);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(millis));
            kept.release();
        });
    }

    /// Completions of messages come in the order of sending, as the messages do.
    fn confirm(&self, number: u64) -> Result<(), String> {
        let before = self.conversation.book().confirmed;
        self.conversation
            .write(|book| book.confirmed = book.confirmed.max(number + 1));
        if number < before {
            return Err(format!(
                "message {number} is confirmed after message {}",
                before - 1
            ));
        }
        Ok(())
    }
}

/// Reads several connections in one thread, by `Select` or by `try_recv`, until there are no
/// senders of newcomers.
pub(super) fn read_several(newcomers: &Receiver<Job>, selects: bool) {
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        let mut select = Select::new();
        if selects {
            for (reader, _) in &jobs {
                select.recv(reader.endpoint.completions());
            }
        }
        let of_newcomers = select.recv(newcomers);
        let ready = if selects || jobs.is_empty() {
            Some(select.ready())
        } else {
            select.ready_timeout(TURN).ok()
        };
        match ready {
            Some(at) if at == of_newcomers => match newcomers.try_recv() {
                Ok(job) => jobs.push(job),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            },
            Some(at) => {
                let completion = jobs[at].0.endpoint.completions().try_recv();
                if completion.is_ok_and(|one| !give(&mut jobs[at], Ok(one))) {
                    jobs.swap_remove(at);
                }
            }
            None => jobs.retain_mut(|job| {
                while let Some(message) = job.0.endpoint.try_recv().transpose() {
                    if !give(job, message.map(Completion::Received)) {
                        return false;
                    }
                }
                true
            }),
        }
    }
}

/// Gives a reader its next result. Returns whether it goes on.
fn give(job: &mut Job, next: Result<Completion, Error>) -> bool {
    let (reader, sender) = job;
    let Some(end) = reader.take(next) else {
        return true;
    };
    // The conversation waits for it.
    let _ = sender.send(end);
    false
}

/// A message that is held for a while.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) message: Message,
    pub(super) number: u64,
    pub(super) conversation: Arc<Conversation>,
}

impl Kept {
    /// Drops the message. Its bytes must still be the same.
    pub(super) fn release(self) {
        let content = self
            .conversation
            .content(self.conversation.worker.side.other());
        if let Err(problem) = content.check(self.number, &self.message) {
            let problem = format!("a message changed while it was held: {problem}");
            self.conversation.problem(&problem);
        }
    }
}
