//! Byte streams in the protocol of Valkey over RDMA.
//!
//! A [`Stream`] connects to a Valkey server that was built with RDMA support (`--rdma-bind`,
//! `--rdma-port`). It is used like a [`std::net::TcpStream`]: the program writes RESP requests and
//! reads the replies.
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! use rdmsg_valkey::Stream;
//!
//! # fn main() -> std::io::Result<()> {
//! let mut stream = Stream::connect("10.8.0.1:6379")?;
//! stream.write_all(b"PING\r\n")?;
//! let mut reply = [0; 7];
//! stream.read_exact(&mut reply)?;
//! assert_eq!(&reply, b"+PONG\r\n");
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `tokio`, the module `tokio` provides a stream for tasks. Redis clients that
//! accept any stream can use it, such as the crate `redis` in `examples/redis_client.rs`. A
//! [`Listener`] implements the server side of the protocol, for programs that replace a Valkey
//! server.
//!
//! # Protocol
//!
//! [Valkey's documentation](https://valkey.io/topics/RDMA/) describes the protocol. Each side
//! announces a buffer, and the peer writes into this buffer. The immediate data of each write
//! contains the number of written bytes. After the peer has filled a buffer and the owner has read
//! all of its bytes, the owner announces the buffer again. 32-byte commands negotiate features,
//! announce buffers and keep the connection alive. The protocol defines no features yet.
//!
//! This crate checks each command and each number that the peer sends. A violation ends the
//! connection with a [`ProtocolError`].
//!
//! # Limitations
//!
//! * The protocol does not limit the number of messages that the peer sends. If the program makes
//!   no calls, the peer may send while no receive is posted: see [`Config::receive_queue`].
//! * iWARP devices do not support immediate data, so connecting over them fails with `Unsupported`.
//! * The protocol provides neither encryption nor authentication of hosts.
#![deny(unsafe_code)]
#![cfg_attr(not(feature = "tokio"), forbid(unsafe_code))]

// The Valkey project defines this protocol. Therefore this crate shares no code with `proto` and
// the engine. For RDMA, this crate uses only the public modules `cm` and `verbs` of `rdma-verbs`.

mod command;
mod config;
mod connection;
mod error;
mod link;
mod listener;
mod ring;
mod session;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
mod waiting;

pub use self::{config::Config, error::ProtocolError, listener::Listener, stream::Stream};
