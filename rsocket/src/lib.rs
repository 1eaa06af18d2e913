//! Byte streams in the protocol of librdmacm's rsockets.
//!
//! The peers are C programs that use `rsocket(7)`, and TCP programs that run under
//! `librspreload.so`. A [`Stream`] is used like a [`std::net::TcpStream`], a [`Listener`] like a
//! [`std::net::TcpListener`]. Between programs of this crate an `rdmsg::Endpoint` is
//! preferable, which has messages, deadlines and a graceful close.
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! use rdmsg_rsocket::{Listener, Stream};
//!
//! # fn main() -> std::io::Result<()> {
//! // On one host:
//! let listener = Listener::bind("0.0.0.0:7471")?;
//! let (mut stream, peer) = listener.accept()?;
//! println!("{peer} has connected");
//! stream.write_all(b"hello")?;
//!
//! // On another, in Rust or in C:
//! let mut stream = Stream::connect("10.8.0.1:7471")?;
//! let mut greeting = String::new();
//! stream.read_to_string(&mut greeting)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Limitations
//!
//! C programs that write to memory of their peer by offset, with `riomap` and `riowrite`, are not
//! supported: these calls have no counterpart here. A stream has no table for the peer's mappings.
//! So in the C program `riomap` with `PROT_WRITE` fails with `ENOMEM`, and `riowrite` writes
//! nothing. To write a peer's memory from Rust there is `rdmsg::Region`.
//!
//! # Protocol
//!
//! Each side has a ring of memory for incoming bytes, and announces half of it to the other side
//! while connecting. The sender writes bytes directly to that memory, with immediate data that
//! carries their number; when a half has been read, its reader announces the next one. Credits
//! limit the number of outstanding writes. On iWARP, which has no immediate data, a message of four
//! bytes follows each write, and the side that connected speaks first. See
//! [`rsocket(7)`](https://man7.org/linux/man-pages/man7/rsocket.7.html).
//!
//! A stream makes progress during the calls of the threads that use it. Between them the peer can
//! continue to write until the ring is full.

// This layer implements a protocol that is defined elsewhere, so it shares nothing with `proto` and
// the engine, and uses `cm` and `verbs` only, as a program would. It owns its connections' queue
// pairs and memory. It guarantees that bytes arrive in order and unchanged, or that the stream
// fails; a peer that exceeds its windows or credits is disconnected. It starts no thread except for
// keepalive, when that is set.

#[macro_use(debug, warn_sparsely)]
extern crate rdmsg_os;

mod config;
mod link;
mod listener;
mod receiving;
mod sending;
#[cfg(test)]
mod simulation;
mod stream;
mod waiting;
mod wire;

pub use self::{config::Config, listener::Listener, stream::Stream};
