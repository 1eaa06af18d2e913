use std::{mem, thread, time::Duration};

use rdmsg::{Completion, Endpoint, Error, Message};
use toolbox::{Side, clock_millis};

use super::{conversation::Conversation, operations::Operations};
use crate::{book::End, scenario::Reading};

/// How long somebody who reads slowly does something else after each message.
const SOMETHING_ELSE: Duration = Duration::from_millis(20);

/// How often somebody who keeps messages looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Takes what comes, until the end.
pub(super) fn read(
    conversation: &Conversation,
    endpoint: &Endpoint,
    operations: Option<&Operations>,
) -> End {
    let mut reader = Reader {
        conversation,
        operations,
        kept: Vec::new(),
        disorder: false,
    };
    let end = reader.read(endpoint);
    conversation.page.write(|book| book.ended = clock_millis());
    conversation.signals.tell(|told| told.over = true);
    end
}

struct Reader<'a> {
    conversation: &'a Conversation,
    operations: Option<&'a Operations>,
    kept: Vec<Message>,
    /// Whether completions came in another order than the messages were sent in.
    disorder: bool,
}

impl Reader<'_> {
    fn read(&mut self, endpoint: &Endpoint) -> End {
        loop {
            if self.conversation.signals.now().stop {
                self.kept.clear();
            }
            let next = if self.kept.is_empty() {
                endpoint.next_completion()
            } else {
                endpoint.next_completion_timeout(LOOK)
            };
            match next {
                Ok(Completion::Received(message)) => {
                    if let Err(problem) = self.take(message) {
                        self.conversation.problem(&problem);
                        endpoint.abort(2);
                    }
                }
                Ok(Completion::Sent(number)) => self.confirm(number),
                Ok(Completion::Failed { .. }) => {
                    self.conversation.page.write(|book| book.failed += 1);
                }
                Ok(Completion::Disconnected(reason)) => return End::new(&reason),
                Ok(other) => self.operated(&other),
                Err(Error::TimedOut) => {}
                Err(error) => return End::Broken(format!("{error:?}")),
            }
        }
    }

    /// An operation is done.
    fn operated(&self, completion: &Completion) {
        let checked = match (self.operations, completion) {
            (Some(_), Completion::Written(_)) => Ok(()),
            (Some(operations), Completion::Read(id)) => operations.check_read(*id),
            (_, other) => Err(format!("an unexpected completion: {other:?}")),
        };
        self.conversation.page.write(|book| book.succeeded += 1);
        if let Err(problem) = checked {
            self.conversation.problem(&problem);
        }
    }

    fn take(&mut self, message: Message) -> Result<(), String> {
        let Conversation {
            worker,
            page,
            signals,
            group,
            ..
        } = self.conversation;
        if self.operations.is_some() && self.conversation.remote.get().is_none() {
            let remote = Operations::remote(&message)?;
            // It was empty just now, and nobody else writes it.
            let _ = self.conversation.remote.set(remote);
            return Ok(());
        }
        let number = page.read().received;
        let content = self.conversation.content(worker.side.other());
        let last = content.check(number, &message)?;
        page.write(|book| book.received += 1);
        if last {
            signals.tell(|told| told.all = true);
        }
        self.conversation.is_flowing();
        if worker.side == Side::Server && !signals.now().stop {
            match group.server {
                Reading::Prompt => {}
                Reading::Slow => thread::sleep(SOMETHING_ELSE),
                Reading::Keeping => self.kept.push(message),
            }
        }
        Ok(())
    }

    /// Completions of messages come in the order of sending, as the messages themselves.
    fn confirm(&mut self, number: u64) {
        let before = self.conversation.page.read().confirmed;
        // Once is enough to see it.
        if number < before && !mem::replace(&mut self.disorder, true) {
            self.conversation.problem(&format!(
                "message {number} is confirmed after message {}",
                before - 1
            ));
        }
        self.conversation.page.write(|book| {
            book.succeeded += 1;
            book.confirmed = book.confirmed.max(number + 1);
        });
    }
}
