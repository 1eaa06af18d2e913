//! A web service that uses hyper, and a client.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::{http1, http2},
    header::{HOST, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::Result;

/// The time limit for receiving the header of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// The number of bytes per frame of a [`Pattern`].
const PIECE: usize = 64 * 1024;

/// The byte values 0 to 255, twice. [`Pattern`] copies each row of 256 bytes from this array,
/// starting at an offset that depends on the row.
const RAMP: [u8; 512] = {
    let mut ramp = [0; 512];
    let mut at = 0;
    while at < ramp.len() {
        ramp[at] = at as u8;
        at += 1;
    }
    ramp
};

/// The type of all request and response bodies.
pub type AnyBody = BoxBody<Bytes, hyper::Error>;

/// The number of requests that this process has answered.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// Serves one connection with HTTP/1 or HTTP/2 until the client closes the connection. If `stop` is
/// cancelled, completes the requests in progress and then closes the connection.
///
/// # Errors
///
/// Fails if the connection breaks.
pub async fn serve<S>(stream: S, stop: CancellationToken) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT);
    builder.http2().timer(TokioTimer::new());
    let service = service_fn(async |request| Ok::<_, Infallible>(answer(request)));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended
}

fn answer(request: Request<Incoming>) -> Response<AnyBody> {
    ANSWERED.fetch_add(1, Ordering::Relaxed);
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/") => text(StatusCode::OK, "rdmsg\n".to_owned()),
        (&Method::GET, "/answered") => {
            let answered = ANSWERED.load(Ordering::Relaxed);
            text(StatusCode::OK, format!("{answered}\n"))
        }
        // hyper sends the request body back while the body arrives. If the client does not read the
        // response, hyper stops reading the request.
        (&Method::POST, "/echo") => Response::new(request.into_body().boxed()),
        (&Method::GET, path) => {
            let count = path.strip_prefix("/bytes/").map(str::parse);
            match count {
                Some(Ok(count)) => Response::new(Pattern::new(count).boxed()),
                Some(Err(_)) => text(
                    StatusCode::BAD_REQUEST,
                    "invalid number of bytes\n".to_owned(),
                ),
                None => text(
                    StatusCode::NOT_FOUND,
                    "this page does not exist\n".to_owned(),
                ),
            }
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "this page does not exist\n".to_owned(),
        ),
    }
}

fn text(status: StatusCode, text: String) -> Response<AnyBody> {
    let mut response = Response::new(full_body(text));
    *response.status_mut() = status;
    response
}

/// Returns a body with these bytes.
pub fn full_body(bytes: impl Into<Bytes>) -> AnyBody {
    let body = Full::new(bytes.into());
    body.map_err(|never| match never {}).boxed()
}

/// A body that is generated while it is sent. The value of each byte depends on its position in the
/// body.
#[derive(Debug)]
pub struct Pattern {
    at: u64,
    len: u64,
}

impl Pattern {
    /// Creates a body of `len` bytes.
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self { at: 0, len }
    }

    /// Returns the bytes of a body from position `at` up to, but excluding, position `end`.
    #[must_use]
    pub fn piece(at: u64, end: u64) -> Bytes {
        let mut piece = Vec::with_capacity((end - at) as usize);
        let mut at = at;
        while at < end {
            let row = at >> 8;
            let row_end = end.min((row + 1) << 8);
            let first = (at + row + (row >> 8)) as u8 as usize;
            piece.extend_from_slice(&RAMP[first..first + (row_end - at) as usize]);
            at = row_end;
        }
        piece.into()
    }
}

impl Body for Pattern {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let end = self.len.min(self.at + PIECE as u64);
        if self.at == end {
            return Poll::Ready(None);
        }
        let piece = Self::piece(self.at, end);
        self.at = end;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.len
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len - self.at)
    }
}

/// An HTTP client on one connection. With HTTP/2, several handles can send requests concurrently on
/// this connection.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there is no third")]
pub enum Client {
    /// An HTTP/1 connection, which carries one request at a time.
    Http1(http1::SendRequest<AnyBody>),
    /// An HTTP/2 connection, which carries concurrent requests.
    Http2(http2::SendRequest<AnyBody>),
}

impl Client {
    /// Starts HTTP/1 or HTTP/2 on a connection. Spawns a task that drives the connection.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks.
    pub async fn start<S>(stream: S, http2: bool) -> Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        if http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new());
            let (client, connection) = builder.handshake(stream).await?;
            // Ignore the result of this task. If the connection breaks, the caller that waits for a
            // response gets the error.
            tokio::spawn(connection);
            Ok(Self::Http2(client))
        } else {
            let (client, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Ok(Self::Http1(client))
        }
    }

    /// Sends a request, and waits for the header of the response.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks.
    pub async fn send(&mut self, method: Method, path: &str, body: AnyBody) -> Result<Answer> {
        let request = Request::builder().method(method);
        Ok(match self {
            Self::Http1(client) => {
                client.ready().await?;
                let mut request = request.uri(path).body(body)?;
                let host = HeaderValue::from_static("rdmsg");
                request.headers_mut().insert(HOST, host);
                client.send_request(request).await?
            }
            Self::Http2(client) => {
                client.ready().await?;
                let request = request.uri(format!("http://rdmsg{path}")).body(body)?;
                client.send_request(request).await?
            }
        })
    }

    /// Returns a second handle to the same HTTP/2 connection. With HTTP/1, returns `None`.
    #[must_use]
    pub fn share(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(client) => Some(Self::Http2(client.clone())),
        }
    }
}

/// The response of a server.
pub type Answer = Response<Incoming>;
