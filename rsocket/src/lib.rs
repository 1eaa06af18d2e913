//! Byte streams in the protocol of librdmacm's rsockets.
//!
//! The peers are C programs that use `rsocket(7)`, and TCP programs that run under
//! `librspreload.so`. A [`Stream`] is used like a [`std::net::TcpStream`], and a [`Listener`] like
//! a [`std::net::TcpListener`]. If both programs can use the crate `rdmsg`, an `rdmsg::Endpoint` is
//! preferable, because it has messages, deadlines and a graceful close.
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
//! // On another host, in Rust or in C:
//! let mut stream = Stream::connect("10.8.0.1:7471")?;
//! let mut greeting = String::new();
//! stream.read_to_string(&mut greeting)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Limitations
//!
//! This crate does not support C programs that write to their peer's memory with `riomap` and
//! `riowrite`, because it does not implement these functions. A stream has no table for mappings of
//! the peer, so in the C program `riomap` with `PROT_WRITE` fails with `ENOMEM`, and `riowrite`
//! writes nothing. A program in Rust can write to a peer's memory with `rdmsg::Region`.
//!
//! # Protocol
//!
//! Each side has a ring of memory for incoming bytes. It announces the first half of the ring to
//! the peer in the private data of the connection, and the second half after the connection is
//! established. The sender writes bytes directly into announced memory, with immediate data that
//! contains the number of bytes. When the receiver has read one half, it announces that half again.
//! Credits limit the number of outstanding writes.
//!
//! iWARP has no immediate data. On iWARP, a four-byte message therefore follows each write. iWARP
//! also requires that the connecting side sends the first message. See
//! [`rsocket(7)`](https://man7.org/linux/man-pages/man7/rsocket.7.html).
//!
//! A stream makes progress only while a thread calls one of its methods. Between these calls the
//! peer can continue to write until the ring is full.

// librdmacm defines the rsockets protocol. Therefore this crate shares no code with `proto` and the
// engine, and uses only `cm` and `verbs`, as an application would. The crate owns the queue pairs
// and the memory of its connections. It guarantees that bytes arrive unchanged and in order, or
// that the stream fails. It disconnects a peer that exceeds its windows or credits. It starts one
// thread for each stream with keepalive, and no other threads.

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
