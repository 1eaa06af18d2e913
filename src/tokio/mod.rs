//! Connections for tasks of a [tokio] runtime (feature `tokio`).
//!
//! [`Endpoint`] and [`Listener`] carry whole messages, like those in the root of the crate, and a
//! [`RequestListener`] leaves each request to the program;
//! [`Stream`] and [`StreamListener`] stand in for [`tokio::net::TcpStream`] and
//! [`TcpListener`](::tokio::net::TcpListener), with whatever is made for
//! [`AsyncRead`](::tokio::io::AsyncRead) and [`AsyncWrite`](::tokio::io::AsyncWrite): hyper, tonic,
//! tokio-rustls, the codecs of tokio-util.
//!
//! The features `axum`, `hyper-util` and `tonic` implement the traits of these crates for streams
//! and listeners, so that a service takes the types as they are.
//!
//! * Tasks need no switch to another thread: the runtime watches the connection's completion
//!   events, as it does a socket, and the task that is polled polls the completion queue itself. It
//!   sleeps rather than spins, whatever [`Polling`](crate::Polling) says.
//! * Every future may be dropped at any time. A `recv` that is dropped loses no message; a `send`
//!   has sent the whole message, or nothing; a `connect` cancels the attempt.
//! * Calls count against a task's budget of [`coop`](::tokio::task::coop), so that a connection
//!   that always has completions delays no other task.
//! * A connection belongs to the runtime in whose context it is made. Making one outside of any
//!   panics, as with tokio's own.
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
