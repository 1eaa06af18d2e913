//! Byte streams that speak the protocol of librdmacm's rsockets: with C programs that call `rsocket(7)`, and with TCP programs that run
//! under `librspreload.so`.
//!
//! A [`Stream`] is used like a [`std::net::TcpStream`], a [`Listener`] like a [`std::net::TcpListener`]. Programs that speak to
//! programs of this crate do better with an [`Endpoint`](crate::Endpoint), which has messages, deadlines and a graceful close.
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! use rdmsg::rsocket::{Listener, Stream};
//!
//! # fn main() -> std::io::Result<()> {
//! // On one host:
//! let listener = Listener::bind("0.0.0.0:7471")?;
//! let (mut stream, peer) = listener.accept()?;
//! println!("{peer} is there");
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
//! # What is not served
//!
//! C programs that write into memory of their peer by offset, with `riomap` and `riowrite`: those
//! calls have no counterpart here. A stream has no place for a peer's mappings, so `riomap` fails
//! there with `ENOMEM` where it is for the peer to write to, and `riowrite` writes nothing. To
//! write a peer's memory from Rust there is [`Region`](crate::Region).
//!
//! # How it works
//!
//! Each side has a ring of memory for what comes in, and tells the other where half of it is while they connect. Whoever has bytes
//! writes them right there, with immediate data that says how many, and when a half has been read its reader tells where the next one
//! is. How many such writes may be under way is limited by credits. See [`rsocket(7)`](https://man7.org/linux/man-pages/man7/rsocket.7.html).
//!
//! A stream makes progress in the calls of the threads that use it. In between the peer may go on writing until the ring is full.

mod config;
mod link;
mod listener;
mod receiving;
mod send_ring;
mod sending;
#[cfg(test)]
mod simulation;
mod stream;
mod waiting;
mod wire;

pub use self::{config::Config, listener::Listener, stream::Stream};
