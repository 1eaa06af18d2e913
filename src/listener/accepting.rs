use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    endpoint::Endpoint,
    engine::{Command, Engine, Established, Promise},
    error::Error,
    os::leak,
};

/// A connection that is being accepted, returned by [`Request::start_accept`].
///
/// Dropping it before the peer has received the answer rejects the request. Dropping it later
/// closes the connection.
///
/// [`Request::start_accept`]: crate::Request::start_accept
#[derive(Debug)]
#[must_use = "a connection that is not awaited is given up"]
pub struct Accepting {
    engine: Engine,
    promise: Arc<Promise<Established>>,
}

impl Accepting {
    pub(super) fn new(engine: Engine, promise: Arc<Promise<Established>>) -> Self {
        Self { engine, promise }
    }
}

impl Future for Accepting {
    type Output = Result<Endpoint, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.engine.handle().is_inherited() {
            return Poll::Ready(Err(Error::Forked));
        }
        let established = ready!(self.promise.poll(cx));
        Poll::Ready(established.map(|it| Endpoint::new(it, self.engine.clone())))
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        if self.engine.handle().is_inherited() {
            // In a forked child the promise may contain a connection that belongs to the parent. So
            // the promise must not be dropped.
            leak(Arc::clone(&self.promise));
        } else if let Some(key) = self.promise.give_up() {
            // The send fails only if the engine has ended. The connection has then ended, too.
            let _ = self.engine.send(Command::GiveUp { key });
        }
    }
}
