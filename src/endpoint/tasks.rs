#[cfg(feature = "tokio")]
use std::io::IoSlice;
use std::{
    future::poll_fn,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use super::Endpoint;
use crate::{
    error::{Error, TrySendError},
    link::{Awaited, Completion, Handoff, Message},
    outgoing::Outgoing,
    poll::WaiterId,
};

/// Poll methods for tasks, on any runtime.
///
/// Futures call these methods. After a method has returned `Pending`, the library wakes the task
/// when another call can succeed. The methods never block and need no file descriptor. Dropping a
/// future loses nothing: the next call returns the message or completion that the future has not
/// returned, and a message is sent either completely or not at all.
///
/// There are three events for which a task can wait: a message or completion, capacity to send, and
/// the end of the connection. Only one task at a time can wait for each event. If several tasks
/// wait for the same event, only the task that called last is woken. [`std::future::poll_fn`] turns
/// each method into a future. The feature `tokio` provides types with `async` methods, which poll
/// the device in the task itself. On other runtimes the engine's thread polls the connection after
/// the first call of one of these methods.
impl Endpoint {
    /// Receives the next message.
    ///
    /// Works like [`recv`](Self::recv), for tasks.
    ///
    /// # Errors
    ///
    /// The errors of [`recv`](Self::recv).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::future::poll_fn;
    ///
    /// # async fn serve(endpoint: rdmsg::Endpoint) -> Result<(), rdmsg::Error> {
    /// loop {
    ///     let question = poll_fn(|cx| endpoint.poll_recv(cx)).await?;
    ///     poll_fn(|cx| endpoint.poll_send(cx, &question)).await?;
    /// }
    /// # }
    /// ```
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        self.poll_recv_as(cx, Awaited::Arrival.common())
    }

    pub(crate) fn poll_recv_as(
        &self,
        cx: &mut Context<'_>,
        waiter_id: WaiterId,
    ) -> Poll<Result<Message, Error>> {
        let handoff = Handoff::default();
        let waiter = (waiter_id, Awaited::Arrival);
        self.inner
            .link
            .poll_task(cx, waiter, Some(&handoff), || self.take_from(&handoff))
    }

    /// Receives a message. Returns `None` if there is no message and `stopped` is set. A thread
    /// that sets `stopped` must call [`wake_waiting`](Self::wake_waiting) afterwards.
    pub(crate) fn poll_recv_unless(
        &self,
        cx: &mut Context<'_>,
        stopped: &AtomicBool,
    ) -> Poll<Result<Option<Message>, Error>> {
        let handoff = Handoff::default();
        let waiter = (Awaited::Arrival.common(), Awaited::Arrival);
        self.inner.link.poll_task(cx, waiter, Some(&handoff), || {
            let received = self.take_from(&handoff).map(|received| received.map(Some));
            let stopped = || stopped.load(Ordering::Acquire).then_some(Ok(None));
            received.or_else(stopped)
        })
    }

    /// Takes the next completion of any kind.
    ///
    /// Works like [`next_completion`](Self::next_completion), for tasks.
    ///
    /// # Errors
    ///
    /// The errors of [`next_completion`](Self::next_completion).
    pub fn poll_next_completion(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
        self.poll_next_completion_as(cx, Awaited::Arrival.common())
    }

    pub(crate) fn poll_next_completion_as(
        &self,
        cx: &mut Context<'_>,
        waiter_id: WaiterId,
    ) -> Poll<Result<Completion, Error>> {
        let waiter = (waiter_id, Awaited::Arrival);
        self.inner
            .link
            .poll_task(cx, waiter, None, || self.take_any())
    }

    /// Sends one message.
    ///
    /// Works like [`send`](Self::send), for tasks. The library accepts the message only when the
    /// call returns `Ready`. Pass a [`SendBuffer`](crate::SendBuffer) as `&mut buffer`, because a
    /// buffer passed by value is dropped when the call returns `Pending`.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub fn poll_send<'a>(
        &self,
        cx: &mut Context<'_>,
        message: impl Into<Outgoing<'a>>,
    ) -> Poll<Result<(), Error>> {
        self.poll_send_as(cx, Awaited::Room.common(), message.into())
    }

    pub(crate) fn poll_send_as(
        &self,
        cx: &mut Context<'_>,
        waiter_id: WaiterId,
        message: Outgoing<'_>,
    ) -> Poll<Result<(), Error>> {
        if self.send_at_once(&message) {
            return Poll::Ready(Ok(()));
        }
        let polled = self.with_sending(message, |sending| {
            match self.poll_for_room(cx, waiter_id, || self.inner.link.try_send(sending)) {
                Poll::Ready(sent) => sent.map_err(TrySendError::Failed),
                Poll::Pending => Err(TrySendError::Full),
            }
        });
        match polled {
            Ok(()) => Poll::Ready(Ok(())),
            Err(TrySendError::Full) => Poll::Pending,
            Err(TrySendError::Failed(error)) => Poll::Ready(Err(error)),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_send_batch_as(
        &self,
        cx: &mut Context<'_>,
        waiter_id: WaiterId,
        messages: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.poll_for_room(cx, waiter_id, || self.send_some(messages))
    }

    pub(super) fn poll_for_room<T>(
        &self,
        cx: &mut Context<'_>,
        waiter_id: WaiterId,
        mut attempt: impl FnMut() -> Result<T, TrySendError>,
    ) -> Poll<Result<T, Error>> {
        let waiter = (waiter_id, Awaited::Room);
        self.inner
            .link
            .poll_task(cx, waiter, None, || match attempt() {
                Ok(done) => Some(Ok(done)),
                Err(TrySendError::Full) => None,
                Err(TrySendError::Failed(error)) => Some(Err(error)),
            })
    }

    /// Waits until everything that was sent before the first poll has arrived at the peer's
    /// library.
    ///
    /// Works like [`flush`](Self::flush), for tasks.
    ///
    /// # Errors
    ///
    /// The errors of [`flush`](Self::flush).
    pub async fn flushed(&self) -> Result<(), Error> {
        struct Waiting<'a>(&'a Endpoint, WaiterId);

        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.unregister_waiter(self.1);
            }
        }

        let link = &self.inner.link;
        let mut flush = link.flush()?;
        let waiting = Waiting(self, link.poller.tasks.new_waiter_id());
        poll_fn(|cx| {
            let waiter = (waiting.1, Awaited::Answer);
            link.poll_task(cx, waiter, None, || link.is_flushed(&mut flush))
        })
        .await
    }

    /// Closes the connection, and waits until the peer has acknowledged everything that was sent.
    ///
    /// Works like [`close`](Self::close), for tasks. The first call starts the close, which
    /// continues even if there is no further call.
    ///
    /// # Errors
    ///
    /// The errors of [`close`](Self::close).
    pub fn poll_close(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_close_as(cx, Awaited::Answer.common())
    }

    pub(crate) fn poll_close_as(
        &self,
        cx: &mut Context<'_>,
        waiter_id: WaiterId,
    ) -> Poll<Result<(), Error>> {
        let link = &self.inner.link;
        link.close();
        let waiter = (waiter_id, Awaited::Answer);
        let ended = link.poll_task(cx, waiter, None, || link.ended());
        ended.map(super::verdict)
    }

    /// Registers the connection with the current tokio runtime. The threads of the runtime then
    /// poll the connection.
    #[cfg(feature = "tokio")]
    #[track_caller]
    pub(crate) fn enter_runtime(&self) -> Result<(), Error> {
        self.inner.link.enter_runtime().map_err(Error::from_os)
    }

    /// Deregisters the connection from its runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn leave_runtime(&self) {
        self.inner.link.poller.leave_runtime();
    }

    /// Returns a new waiter id, so that several futures can wait for the same event. The future
    /// that uses the id must [unregister](Self::unregister_waiter) it.
    #[cfg(feature = "tokio")]
    pub(crate) fn new_waiter_id(&self) -> WaiterId {
        self.inner.link.poller.tasks.new_waiter_id()
    }

    pub(crate) fn unregister_waiter(&self, waiter_id: WaiterId) {
        self.inner.link.poller.tasks.unregister(waiter_id);
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use std::time::{Duration, Instant};

    use ::tokio::runtime::Builder;

    use crate::{
        config::Config,
        connector::Connector,
        engine::Engine,
        listener,
        poll::Reliance,
        tokio::{Endpoint, Listener},
        transport_choice::TransportChoice,
    };

    const TIME_LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn runtime_watches_the_next_connection_of_a_session() {
        let config = Config::default().with(|config| {
            config.resume = TIME_LIMIT;
            config.transport = TransportChoice::Tcp;
        });
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let engine = Engine::new().unwrap();
            let builder = listener::Listener::builder()
                .config(&config)
                .engine(&engine);
            let listener = Listener::from(builder.bind("127.0.0.1:0").unwrap());
            let connector = Connector::new().config(&config).engine(&engine);
            let connecting = connector.start(listener.local_addr()).unwrap();
            let client = Endpoint::new(connecting.await.unwrap()).unwrap();
            let server = listener.accept().await.unwrap();
            let start = Instant::now();
            for round in 0..3 {
                let sides = [&client, &server];
                let watched = |side: &Endpoint| {
                    let resumes = side.get_ref().statistics().resumes;
                    resumes == round && !side.get_ref().inner.link.poller.relies(Reliance::Tasks)
                };
                // The runtime starts to watch the connection shortly after the first message.
                while !sides.into_iter().all(watched) {
                    assert!(start.elapsed() < TIME_LIMIT, "round {round}");
                    client.send(b"there").await.unwrap();
                    assert_eq!(server.recv().await.unwrap(), b"there");
                    server.send(b"back").await.unwrap();
                    assert_eq!(client.recv().await.unwrap(), b"back");
                }
                let link = &client.get_ref().inner.link;
                link.with_core(|core| core.recovery().lose(Instant::now()));
            }
        });
    }
}
