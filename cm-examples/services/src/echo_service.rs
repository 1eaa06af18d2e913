//! A gRPC service with three calls, whose messages are plain bytes. Usually tonic's generator
//! creates such code from a `.proto` file; this code is written by hand. tonic itself is
//! unmodified.
//!
//! `Once` replies to a message with the same message. `Count` replies to a number N with a stream
//! of N numbers. `Chat` replies to each message of a stream with the same message.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes};
use hyper::http;
use rdmsg::{Connector, Engine, tokio::HttpConnector};
use tokio_stream::{Stream, StreamExt};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{self, ServerStreamingService, StreamingService, UnaryService},
    transport::{Channel, Endpoint},
};
use tower::Service;

use crate::{Result, options::ClientOptions};

const ONCE: &str = "/rdmsg.Echo/Once";
const COUNT: &str = "/rdmsg.Echo/Count";
const CHAT: &str = "/rdmsg.Echo/Chat";

/// A codec that does not change the bytes of a message.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// The stream of messages that a streaming call returns.
pub type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// The implementation of the service.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no state")]
pub struct EchoService;

type Answering<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

impl UnaryService<Bytes> for EchoService {
    type Response = Bytes;
    type Future = Answering<Bytes>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async { Ok(Response::new(request.into_inner())) })
    }
}

impl ServerStreamingService<Bytes> for EchoService {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Answering<Messages>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move {
            let text = String::from_utf8_lossy(request.get_ref()).into_owned();
            let count: u64 = text
                .parse()
                .map_err(|_| Status::invalid_argument(format!("{text:?} is not a number")))?;
            let numbers = tokio_stream::iter(0..count);
            let messages = numbers.map(|number| Ok(number.to_string().into()));
            Ok(Response::new(Box::pin(messages) as Messages))
        })
    }
}

impl StreamingService<Bytes> for EchoService {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Answering<Messages>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async { Ok(Response::new(Box::pin(request.into_inner()) as Messages)) })
    }
}

impl Service<http::Request<Body>> for EchoService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = *self;
        Box::pin(async move {
            let mut grpc = server::Grpc::new(Plain);
            Ok(match request.uri().path() {
                ONCE => grpc.unary(service, request).await,
                COUNT => grpc.server_streaming(service, request).await,
                CHAT => grpc.streaming(service, request).await,
                _ => Status::unimplemented("the service does not have this call").into_http(),
            })
        })
    }
}

/// A client of the service. All clones share one connection.
#[derive(Clone, Debug)]
pub struct EchoClient {
    grpc: client::Grpc<Channel>,
}

impl EchoClient {
    /// Connects with these options. If the connection ends, tonic's channel connects again.
    ///
    /// # Errors
    ///
    /// Fails if the first connection cannot be established.
    pub async fn connect(options: ClientOptions, engine: Engine) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{}", options.host()))?;
        let channel = if options.tcp {
            endpoint.connect().await?
        } else {
            let connector = Connector::new().config(&options.config()).engine(&engine);
            let connector = HttpConnector::new(connector);
            endpoint.connect_with_connector(connector).await?
        };
        Ok(Self {
            grpc: client::Grpc::new(channel),
        })
    }

    async fn ready(&mut self) -> Result<(), Status> {
        let ready = self.grpc.ready().await;
        ready.map_err(|error| Status::unavailable(crate::with_causes(&error)))
    }

    /// Calls `Once`: sends a message, and waits for the reply.
    ///
    /// # Errors
    ///
    /// Returns the status of the call if the call fails.
    pub async fn once(&mut self, message: impl Into<Bytes>) -> Result<Bytes, Status> {
        self.ready().await?;
        let path = http::uri::PathAndQuery::from_static(ONCE);
        let request = Request::new(message.into());
        let answer = self.grpc.unary(request, path, Plain).await?;
        Ok(answer.into_inner())
    }

    /// Calls `Count`: requests a stream of `count` numbers.
    ///
    /// # Errors
    ///
    /// Returns the status of the call if the call fails.
    pub async fn count(&mut self, count: u64) -> Result<Streaming<Bytes>, Status> {
        self.ready().await?;
        let path = http::uri::PathAndQuery::from_static(COUNT);
        let request = Request::new(Bytes::from(count.to_string()));
        let answer = self.grpc.server_streaming(request, path, Plain).await?;
        Ok(answer.into_inner())
    }

    /// Calls `Chat`: sends the messages of a stream, and returns the stream of replies.
    ///
    /// # Errors
    ///
    /// Returns the status of the call if the call fails.
    pub async fn chat<M>(&mut self, messages: M) -> Result<Streaming<Bytes>, Status>
    where
        M: Stream<Item = Bytes> + Send + 'static,
    {
        self.ready().await?;
        let path = http::uri::PathAndQuery::from_static(CHAT);
        let request = Request::new(messages);
        let answer = self.grpc.streaming(request, path, Plain).await?;
        Ok(answer.into_inner())
    }
}
