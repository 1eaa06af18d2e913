use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{Connector, attempts::Attempts};
use crate::{
    Endpoint, Engine, Error,
    engine::{Command, Established, Promise, Reply},
};

/// A connection that is being established: see [`Connector::start`].
///
/// Dropping it gives the connection up.
#[derive(Debug)]
#[must_use = "a connection that is not awaited is given up"]
pub struct Connecting {
    connector: Connector,
    engine: Engine,
    attempts: Attempts,
    promise: Arc<Promise<Established>>,
}

impl Connecting {
    pub(super) fn new(
        connector: Connector,
        engine: Engine,
        mut attempts: Attempts,
    ) -> Result<Self, Error> {
        let promise = attempt(&connector, &engine, &mut attempts, None)?;
        Ok(Self {
            connector,
            engine,
            attempts,
            promise,
        })
    }
}

/// Begins the next attempt after the last one `failed`, or returns that error.
fn attempt(
    connector: &Connector,
    engine: &Engine,
    attempts: &mut Attempts,
    failed: Option<Error>,
) -> Result<Arc<Promise<Established>>, Error> {
    let Some(attempt) = attempts.next(failed.as_ref()) else {
        return Err(failed.unwrap_or(Error::TimedOut));
    };
    let (promise, pledge) = Promise::new();
    engine.send(connector.command(&attempt, Reply::Task(pledge)))?;
    Ok(promise)
}

impl Future for Connecting {
    type Output = Result<Endpoint, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let error = match this.promise.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(established)) => {
                    let endpoint = Endpoint::new(established, this.engine.clone());
                    return Poll::Ready(Ok(endpoint));
                }
                Poll::Ready(Err(error)) => error,
            };
            let next = attempt(
                &this.connector,
                &this.engine,
                &mut this.attempts,
                Some(error),
            );
            match next {
                Ok(promise) => this.promise = promise,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(key) = self.promise.give_up() {
            // It fails where the engine has ended, and the connection with it.
            let _ = self.engine.send(Command::GiveUp { key });
        }
    }
}
