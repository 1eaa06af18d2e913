//! The tarpc transports of a client and of a server.
//!
//! The protocol needs no framing, because each request and each response is one message. serde_json
//! encodes the messages. The client cancels a request with a control message, which reaches the
//! server even if the receive window is full of requests.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Instant,
};

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use rdmsg::{
    Completion, Error, Message,
    tokio::{Endpoint, MessageSink, ReceiveHalf},
};
use serde::{Serialize, de::DeserializeOwned};
use tarpc::{ClientMessage, Response};

/// The client's transport, which sends requests of type `Q` and receives responses of type `A`.
#[derive(Debug)]
pub struct ClientTransport<Q, A> {
    receive: ReceiveHalf,
    send: MessageSink<Vec<u8>>,
    /// The encoded messages that wait for space in the peer's receive window, each with its request
    /// id. They are requests, and cancellations that cannot be sent as control messages. The length
    /// of this queue is limited, because tarpc limits the number of requests in flight.
    waiting: VecDeque<(u64, Vec<u8>)>,
    values: PhantomData<fn(Q) -> A>,
}

impl<Q, A> ClientTransport<Q, A> {
    /// Creates a transport over this endpoint.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let (receive, send) = endpoint.into_split();
        Self {
            receive,
            send: send.into_sink(),
            waiting: VecDeque::new(),
            values: PhantomData,
        }
    }

    /// Sends the waiting messages.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            ready!(self.send.poll_ready_unpin(cx))?;
            if let Some((_, request)) = self.waiting.pop_front() {
                self.send.start_send_unpin(request)?;
            }
        }
        self.send.poll_flush_unpin(cx).map_err(io::Error::from)
    }

    /// Sends the cancellation of a request that was already sent.
    fn cancel(&mut self, id: u64, cancellation: Vec<u8>) -> io::Result<()> {
        match self
            .receive
            .endpoint()
            .get_ref()
            .send_control(&cancellation)
        {
            Ok(()) => Ok(()),
            // The peer does not accept this control message, so send the cancellation as a normal
            // message after the waiting requests.
            Err(
                Error::ControlMessagesNotTaken { .. }
                | Error::ControlMessageTooLong { .. }
                | Error::NotSupported { .. },
            ) => {
                self.waiting.push_back((id, cancellation));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl<Q, A: DeserializeOwned> Stream for ClientTransport<Q, A> {
    type Item = io::Result<Response<A>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let received = ready!(self.receive.poll_next_unpin(cx));
        Poll::Ready(received.map(|message| Ok(serde_json::from_slice(&message?)?)))
    }
}

impl<Q: Serialize, A> Sink<ClientMessage<Q>> for ClientTransport<Q, A> {
    type Error = io::Error;

    /// Never returns `Pending`, because a cancellation must not wait for the requests before it.
    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    fn start_send(self: Pin<&mut Self>, message: ClientMessage<Q>) -> io::Result<()> {
        let this = self.get_mut();
        let encoded = serde_json::to_vec(&message)?;
        match message {
            ClientMessage::Cancel { request_id, .. } => {
                let unsent = this.waiting.iter().position(|(id, _)| *id == request_id);
                match unsent.and_then(|at| this.waiting.remove(at)) {
                    Some(_) => Ok(()),
                    None => this.cancel(request_id, encoded),
                }
            }
            ClientMessage::Request(request) => {
                this.waiting.push_back((request.id, encoded));
                Ok(())
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        this.send.poll_close_unpin(cx).map_err(io::Error::from)
    }
}

/// The server's transport, which receives requests of type `Q` and sends responses of type `A`.
///
/// The transport passes a limited number of requests to tarpc. Further requests stay in their
/// receive buffers, so the client waits when the receive window is full. Cancellations do not wait.
#[derive(Debug)]
pub struct ServerTransport<Q, A> {
    receive: ReceiveHalf,
    send: MessageSink<Vec<u8>>,
    /// The maximum number of running requests.
    most: usize,
    /// The deadlines of the running requests, by id.
    running: HashMap<u64, Instant>,
    /// The waiting requests, oldest first. Each message occupies its receive buffer until the
    /// request runs.
    waiting: VecDeque<(ClientMessage<Q>, Message)>,
    /// The highest request id received so far.
    newest: Option<u64>,
    /// The ids of requests that were cancelled before they arrived.
    cancelled: HashSet<u64>,
    /// The waker of the task that waits until fewer than `most` requests run.
    reader: Option<Waker>,
    /// True after the client has finished its sending direction or closed the connection.
    is_over: bool,
    answers: PhantomData<fn() -> A>,
}

impl<Q: DeserializeOwned, A> ServerTransport<Q, A> {
    /// Creates a transport over this endpoint that runs up to `most` requests concurrently.
    #[must_use]
    pub fn new(endpoint: Endpoint, most: usize) -> Self {
        let (receive, send) = endpoint.into_split();
        Self {
            receive,
            send: send.into_sink(),
            most,
            running: HashMap::new(),
            waiting: VecDeque::new(),
            newest: None,
            cancelled: HashSet::new(),
            reader: None,
            is_over: false,
            answers: PhantomData,
        }
    }

    /// Returns the next waiting request if fewer than `most` requests run.
    fn next_request(&mut self) -> Option<ClientMessage<Q>> {
        if self.running.len() >= self.most {
            // tarpc sends no response after the deadline of a request, so remove requests whose
            // deadline has passed.
            let now = Instant::now();
            self.running.retain(|_, deadline| *deadline > now);
        }
        if self.running.len() >= self.most {
            return None;
        }
        // Dropping the message returns its credit.
        let (request, _message) = self.waiting.pop_front()?;
        if let ClientMessage::Request(request) = &request {
            self.running.insert(request.id, request.context.deadline);
        }
        Some(request)
    }

    /// Handles a received message, which is a request or a cancellation. Returns the decoded
    /// message if it cancels a running request.
    fn take(&mut self, message: Message) -> io::Result<Option<ClientMessage<Q>>> {
        let decoded = serde_json::from_slice(&message)?;
        match &decoded {
            ClientMessage::Request(request) => {
                self.newest = self.newest.max(Some(request.id));
                if !self.cancelled.remove(&request.id) {
                    self.waiting.push_back((decoded, message));
                }
                Ok(None)
            }
            ClientMessage::Cancel { request_id, .. } => {
                let id = *request_id;
                if self.running.remove(&id).is_some() {
                    return Ok(Some(decoded));
                }
                self.waiting.retain(
                    |(waiting, _)| !matches!(waiting, ClientMessage::Request(it) if it.id == id),
                );
                // The cancellation may have arrived before its request.
                if self.newest.is_none_or(|newest| newest < id) {
                    self.cancelled.insert(id);
                }
                Ok(None)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

// `Unpin` is correct, because the methods of this type pin none of its fields.
impl<Q, A> Unpin for ServerTransport<Q, A> {}

impl<Q: DeserializeOwned, A> Stream for ServerTransport<Q, A> {
    type Item = io::Result<ClientMessage<Q>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while !this.is_over {
            if let Some(request) = this.next_request() {
                return Poll::Ready(Some(Ok(request)));
            }
            let endpoint = this.receive.endpoint().get_ref();
            let Poll::Ready(completion) = endpoint.poll_next_completion(cx) else {
                break;
            };
            match completion? {
                Completion::Received(message) | Completion::Control(message) => {
                    if let Some(cancellation) = this.take(message)? {
                        return Poll::Ready(Some(Ok(cancellation)));
                    }
                }
                Completion::Finished => this.is_over = true,
                Completion::Disconnected(reason) if reason.is_clean() => this.is_over = true,
                Completion::Disconnected(reason) => {
                    return Poll::Ready(Some(Err(Error::Disconnected(reason).into())));
                }
                _ => {}
            }
        }
        match this.next_request() {
            Some(request) => Poll::Ready(Some(Ok(request))),
            None if this.is_over && this.waiting.is_empty() => Poll::Ready(None),
            None => {
                this.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<Q, A: Serialize> Sink<Response<A>> for ServerTransport<Q, A> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.send.poll_ready_unpin(cx).map_err(io::Error::from)
    }

    fn start_send(self: Pin<&mut Self>, answer: Response<A>) -> io::Result<()> {
        let this = self.get_mut();
        this.running.remove(&answer.request_id);
        if let Some(reader) = this.reader.take() {
            reader.wake();
        }
        Ok(this.send.start_send_unpin(serde_json::to_vec(&answer)?)?)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.send.poll_flush_unpin(cx).map_err(io::Error::from)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.send.poll_close_unpin(cx).map_err(io::Error::from)
    }
}
