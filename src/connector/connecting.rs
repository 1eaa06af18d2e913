use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{Connector, attempts::Attempts, lookup::look_up};
use crate::{
    addresses::{Addresses, ToAddresses},
    endpoint::Endpoint,
    engine::{Command, Engine, Established, Promise, Reply},
    error::Error,
    os::leak,
    tally::{count_failure, count_given_up},
};

/// A connection that is being established, returned by [`Connector::start`].
///
/// Dropping this value cancels the connection attempt.
#[derive(Debug)]
#[must_use = "a connection that is not awaited is given up"]
pub struct Connecting {
    connector: Connector,
    engine: Engine,
    step: Step,
    /// Whether the future has returned its result.
    is_done: bool,
}

#[derive(Debug)]
enum Step {
    /// Another thread is looking up the host name.
    LookUp(Arc<Promise<Addresses>>),
    /// A connection attempt is in progress.
    Attempt(Attempts, Arc<Promise<Established>>),
}

impl Connecting {
    pub(crate) fn new(connector: Connector, address: &impl ToAddresses) -> Result<Self, Error> {
        connector.check()?;
        let (engine, step) = match address.name() {
            Some(name) => (connector.ready_engine(None)?, Step::LookUp(look_up(name))),
            None => attempt_first(&connector, &address.to_addresses()?)?,
        };
        Ok(Self {
            connector,
            engine,
            step,
            is_done: false,
        })
    }
}

fn attempt_first(connector: &Connector, addresses: &Addresses) -> Result<(Engine, Step), Error> {
    let engine = connector.engine_for(addresses)?;
    let mut attempts = connector.attempts(addresses);
    let promise = attempt(connector, &engine, &mut attempts, None)?;
    Ok((engine, Step::Attempt(attempts, promise)))
}

/// Starts the next attempt. `failed` is the error of the previous attempt. If no attempt is left,
/// returns this error.
fn attempt(
    connector: &Connector,
    engine: &Engine,
    attempts: &mut Attempts,
    failed: Option<Error>,
) -> Result<Arc<Promise<Established>>, Error> {
    let Some(attempt) = attempts.next(failed.as_ref()) else {
        return Err(failed.unwrap_or(Error::TimedOut));
    };
    let (promise, promise_sender) = Promise::new();
    engine.send(connector.command(&attempt, Reply::Task(promise_sender)))?;
    Ok(promise)
}

impl Future for Connecting {
    type Output = Result<Endpoint, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.engine.handle().is_inherited() {
            return Poll::Ready(Err(Error::Forked));
        }
        let outcome = ready!(self.advance(cx));
        self.is_done = true;
        Poll::Ready(outcome.inspect_err(count_failure))
    }
}

impl Connecting {
    /// Polls the lookup, then the attempts one after the other, until one succeeds or none is left.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<Endpoint, Error>> {
        let Self {
            connector,
            engine,
            step,
            ..
        } = self;
        loop {
            match step {
                Step::LookUp(promise) => {
                    let addresses = ready!(promise.poll(cx))?;
                    (*engine, *step) = attempt_first(connector, &addresses)?;
                }
                Step::Attempt(attempts, promise) => match ready!(promise.poll(cx)) {
                    Ok(established) => {
                        attempts.succeeded();
                        return Poll::Ready(Ok(Endpoint::new(established, engine.clone())));
                    }
                    Err(error) => *promise = attempt(connector, engine, attempts, Some(error))?,
                },
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if self.engine.handle().is_inherited() {
            // In a forked child the promise may contain a connection that belongs to the parent,
            // so the child must not drop the promise.
            match &self.step {
                Step::LookUp(promise) => leak(Arc::clone(promise)),
                Step::Attempt(_, promise) => leak(Arc::clone(promise)),
            }
            return;
        }
        if !self.is_done {
            count_given_up();
        }
        match &self.step {
            Step::LookUp(promise) => {
                promise.give_up();
            }
            Step::Attempt(_, promise) => {
                if let Some(key) = promise.give_up() {
                    // This call fails if the engine has ended. Then the connection has ended too.
                    let _ = self.engine.send(Command::GiveUp { key });
                }
            }
        }
    }
}
