//! Connections for tasks of a [tokio] runtime (feature `tokio`).
//!
//! [`Endpoint`] and [`Listener`] carry whole messages, like the types with the same names in the
//! root of the crate. A [`RequestListener`] lets the program accept or reject each request.
//! [`Stream`] and [`StreamListener`] replace [`tokio::net::TcpStream`] and
//! [`TcpListener`](::tokio::net::TcpListener). Streams work with every crate that uses
//! [`AsyncRead`](::tokio::io::AsyncRead) and [`AsyncWrite`](::tokio::io::AsyncWrite), such as
//! hyper, tonic, tokio-rustls and tokio-util.
//!
//! The features `axum`, `hyper-util` and `tonic` implement traits of the crates with these names
//! for streams and listeners, so that a service can use streams and listeners directly.
//!
//! * No switch to another thread is needed: the runtime watches the connection's completion events,
//!   as it watches a socket, and the task polls the completion queue itself. Tasks never spin,
//!   whatever the value of [`Polling`](crate::Polling).
//! * Every future can be dropped at any time. Dropping a `recv` loses no message. A dropped `send`
//!   has sent either the whole message or nothing. Dropping a `connect` cancels the attempt.
//! * Calls consume the task's budget of [`coop`](::tokio::task::coop), so a connection that always
//!   has completions does not starve other tasks.
//! * A connection belongs to the runtime in whose context it is created. As with tokio's own types,
//!   creating a connection outside of a runtime panics.
//!
//! # Examples
//!
//! ```no_run
//! use rdmsg::tokio::Listener;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), rdmsg::Error> {
//! let listener = Listener::bind("0.0.0.0:7471").await?;
//! loop {
//!     let endpoint = listener.accept().await?;
//!     tokio::spawn(async move {
//!         while let Ok(message) = endpoint.recv().await {
//!             if endpoint.send(&message).await.is_err() {
//!                 break;
//!             }
//!         }
//!     });
//! }
//! # }
//! ```

mod endpoint;
mod frameworks;
mod halves;
mod incoming;
mod listener;
mod methods;
mod pair;
mod reader;
mod request_listener;
mod sink;
mod stream;
mod stream_halves;
mod stream_listener;
mod turn;
mod writer;

#[cfg(feature = "hyper-util")]
pub use self::frameworks::HttpConnector;
#[cfg(any(feature = "axum", feature = "hyper-util"))]
pub use self::frameworks::PeerAddr;
pub use self::{
    endpoint::Endpoint,
    halves::{ReceiveHalf, SendHalf},
    incoming::Incoming,
    listener::Listener,
    request_listener::{Request, RequestListener},
    sink::MessageSink,
    stream::Stream,
    stream_halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf},
    stream_listener::StreamListener,
};
