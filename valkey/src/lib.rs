//! Byte streams in the protocol of Valkey over RDMA.
//!
//! A [`Stream`] connects to a Valkey server that was built with RDMA (`--rdma-bind`,
//! `--rdma-port`), and is used like a [`std::net::TcpStream`]: the program writes requests of RESP
//! and reads the replies.
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
//! With the feature `tokio`, the module `tokio` has a stream for tasks. Clients of Redis that take
//! any stream use it, such as the crate `redis` in `examples/redis_client.rs`. A [`Listener`] is
//! the other side of the protocol, for servers in place of Valkey's.
//!
//! # Protocol
//!
//! [Valkey's documentation](https://valkey.io/topics/RDMA/) describes the protocol. Each side
//! announces a buffer, to which the other side writes with immediate data that carries the number
//! of bytes. A buffer that is full is announced again after it was read. Commands of 32 bytes
//! negotiate features, of which there are none yet, announce buffers and keep the connection alive.
//!
//! The functions check each command and each number of the peer. A violation ends the connection
//! with a [`ProtocolError`].
//!
//! # Limitations
//!
//! * The peer needs no permission to send. If this side makes no calls, the peer may find no
//!   receive: see [`Config::receive_queue`].
//! * iWARP devices have no immediate data, so the connect fails there with `Unsupported`.
//! * The protocol provides neither encryption nor authentication of hosts.
#![deny(unsafe_code)]
#![cfg_attr(not(feature = "tokio"), forbid(unsafe_code))]

// This layer implements a protocol that is defined elsewhere, so it shares nothing with `proto` and
// the engine, and uses `cm` and `verbs` only, as a program would.

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
