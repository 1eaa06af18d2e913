use std::{io::IoSlice, sync::Arc};

use fastrand::Rng;
use rdmsg::{Endpoint, Error, TrySendError};
use toolbox::{Side, random};

use crate::{
    board::Work,
    book::{Book, Count, Reason},
    content::{Content, Expected},
    inbox::Inbox,
    plan::{End, Plan},
    run::Run,
    totals::Way,
};

/// One side of a connection, from when it is established until it has ended: this thread sends, a
/// [reader](crate::readers) receives.
pub(crate) struct Session<'a> {
    run: &'a Arc<Run>,
    plan: &'a Plan,
    side: Side,
    work: Work,
}

impl<'a> Session<'a> {
    pub(crate) fn new(run: &'a Arc<Run>, plan: &'a Plan, side: Side) -> Self {
        let work = run
            .board
            .entry(format!("connection {}, {side}, sender, {plan:?}", plan.id));
        work.step("connecting");
        Self {
            run,
            plan,
            side,
            work,
        }
    }

    pub(crate) fn run(&self, endpoint: Result<Endpoint, Error>) -> Book {
        let endpoint =
            endpoint.unwrap_or_else(|error| self.fail(&format!("not established: {error}")));
        let (inbox, news) = Inbox::new(self.run, self.plan, self.side, endpoint.clone());
        self.run
            .readers
            .read(inbox, self.plan.half(self.side).reading);
        let sent = self.send_all(&endpoint);

        match self.plan.end {
            End::Close(by) if by == self.side => {
                self.work.step("waiting for all messages");
                // The end in between is found when the books are compared.
                let _ = news.all.recv();
                self.close(&endpoint);
            }
            End::CloseEarly(by) if by != self.side => {}
            End::CloseEarly(_) | End::CloseBoth => {
                self.close(&endpoint);
            }
            End::Abort(by, code) if by == self.side => endpoint.abort(code),
            End::Close(_) | End::Drop(..) | End::Abort(..) => {}
        }
        self.work.step("waiting for the end");
        let received = news
            .end
            .recv()
            .unwrap_or_else(|_| self.fail("the reader is gone"));
        let reason = received.reason.as_ref().map(|reason| {
            Reason::new(reason).unwrap_or_else(|| self.fail(&format!("it has ended: {reason}")))
        });
        // Who drops it never learns what was delivered. To all others it says so at any time.
        let delivered = reason.is_some() && self.close(&endpoint);
        Book {
            connection: self.plan.id,
            side: self.side,
            sent,
            received: Count {
                messages: received.messages,
                bytes: received.bytes,
            },
            reason,
            delivered,
        }
    }

    /// Whether everything was delivered.
    fn close(&self, endpoint: &Endpoint) -> bool {
        self.work.step("closing");
        match endpoint.close() {
            Ok(()) => true,
            Err(Error::Undelivered(_)) => false,
            Err(error) => self.fail(&format!("closing failed: {error}")),
        }
    }

    fn send_all(&self, endpoint: &Endpoint) -> Count {
        let mut rng = random(&[
            self.run.seed,
            self.plan.id,
            self.side as u64,
            u64::from(b's'),
        ]);
        let mut buffer = Vec::new();
        let mut sent = Count::default();
        let content = Content::new(self.run.seed, self.plan, self.side);
        for message in content.take(self.plan.half(self.side).messages as usize) {
            self.work.message("sending", message.number);
            match send(endpoint, message, &mut buffer, &mut rng) {
                Ok(()) => {}
                Err(Error::Disconnected(_)) => break,
                Err(error) => self.fail(&format!(
                    "sending message {} of {} bytes failed: {error}",
                    message.number, message.len
                )),
            }
            sent.messages += 1;
            sent.bytes += message.len as u64;
            self.run.totals.count(Way::Sent, message.len);
        }
        sent
    }

    fn fail(&self, problem: &str) -> ! {
        let Self { plan, side, .. } = self;
        self.run.board.fail(&format!(
            "connection {}, {side}: {problem}; {plan:?}",
            plan.id
        ))
    }
}

/// Sends a message in one of the ways that there are.
fn send(
    endpoint: &Endpoint,
    message: Expected,
    buffer: &mut Vec<u8>,
    rng: &mut Rng,
) -> Result<(), Error> {
    if rng.u32(..5) == 0 {
        let mut owned = endpoint.buffer(message.len)?;
        message.fill(&mut owned);
        return endpoint.send_owned(owned).map_err(Error::from);
    }
    buffer.resize(message.len, 0);
    message.fill(buffer);
    match rng.u32(..4) {
        0 => {
            let (head, tail) = buffer.split_at(rng.usize(..=message.len));
            endpoint.send_vectored(&[IoSlice::new(head), IoSlice::new(tail)])
        }
        1 => match endpoint.try_send(buffer) {
            Ok(()) => Ok(()),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(_) => endpoint.send(buffer),
        },
        _ => endpoint.send(buffer),
    }
}
