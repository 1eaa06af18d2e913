//! Connection-managed messaging over RDMA: [`Listener`], [`Endpoint`], whole [`Message`]s, and no queue pair in sight.
//!
//! # A server and a client
//!
//! ```no_run
//! use rdmsg::{Endpoint, Listener};
//!
//! # fn main() -> Result<(), rdmsg::Error> {
//! // On one host: echo what comes, one thread a connection.
//! let listener = Listener::bind("0.0.0.0:7471")?;
//! std::thread::spawn(move || {
//!     for endpoint in listener.incoming() {
//!         let endpoint = endpoint?;
//!         std::thread::spawn(move || {
//!             while let Ok(message) = endpoint.recv() {
//!                 if endpoint.send(&message).is_err() {
//!                     break;
//!                 }
//!             }
//!         });
//!     }
//!     Ok::<(), rdmsg::Error>(())
//! });
//!
//! // On another: ask.
//! let endpoint = Endpoint::connect("10.8.0.1:7471")?;
//! endpoint.send(b"hello")?;
//! assert_eq!(*endpoint.recv()?, *b"hello");
//! endpoint.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Words
//!
//! * A **message** is a run of bytes that arrives whole, or not at all, and in order.
//! * A **credit** is the right to send one message: the receiver has a receive posted for it. The **window** is how many there are.
//! * A **grant** renews credits. It travels with messages of the other direction, or alone.
//! * The **hello** is what the two sides tell each other while they connect: [`Negotiated`] is what comes of it.
//! * A connection is **drained** when all its work requests have come back from the device.
//!
//! # Flow control
//!
//! A received [`Message`] is a view of the buffer that the device wrote. Keeping it keeps its place in the window, and when all
//! places are taken the peer's [`send`](Endpoint::send) waits. Nothing is ever dropped, and the device never has to say
//! "receiver not ready". [`Message::into_vec`] copies the bytes out and frees the place.
//!
//! # Waiting
//!
//! Whoever waits, polls: a thread in [`recv`](Endpoint::recv), or in [`send`](Endpoint::send) with a full window, polls the completion queue
//! itself, as [`Polling`] says. To wait for several connections at once use their [`completions`](Endpoint::completions) in
//! [`crossbeam_channel::select!`]; then the [`Engine`]'s thread does the polling:
//!
//! ```no_run
//! use rdmsg::{Completion, Endpoint, crossbeam_channel::select};
//!
//! # fn serve(a: &Endpoint, b: &Endpoint) {
//! loop {
//!     let (who, completion) = select! {
//!         recv(a.completions()) -> completion => ("a", completion),
//!         recv(b.completions()) -> completion => ("b", completion),
//!     };
//!     match completion {
//!         Ok(Completion::Received(message)) => println!("{} bytes from {who}", message.len()),
//!         Ok(Completion::Disconnected(reason)) => println!("{who}: {reason}"),
//!         _ => break,
//!     }
//! }
//! # }
//! ```
//!
//! # The end
//!
//! [`Endpoint::close`] delivers what was sent, tells the peer, and says whether everything arrived. Dropping the last handle does the same
//! in the background. However a connection ends, each side learns it once, after all messages, with the first cause:
//! [`CloseReason`]. A peer that vanishes is noticed by a failing send, or by [keepalive](Config::keepalive_interval) where nothing is sent.
//!
//! # Below
//!
//! [`cm`] and [`verbs`] are the safe layers over librdmacm and libibverbs that all this stands on, for programs that want the raw
//! thing. [`status`] has the codes that both speak in.
#![deny(unsafe_code)]

pub mod cm;
mod completion;
mod config;
mod connector;
mod endpoint;
mod engine;
mod error;
mod listener;
mod message;
mod proto;
mod region;
mod remote_access;
mod send_buffer;
pub mod status;
mod sys;
pub mod verbs;

pub use crossbeam_channel;

pub use crate::{
    completion::{Completion, Immediate},
    config::{Config, Polling},
    connector::Connector,
    endpoint::{Endpoint, NotSent},
    engine::{DeviceCounters, Engine, EngineStatistics},
    error::{Error, TrySendError},
    listener::{Listener, Request},
    message::Message,
    proto::{CloseReason, Mismatch, Negotiated, Phase, Statistics, Violation},
    region::{Region, Token},
    remote_access::RemoteAccess,
    send_buffer::SendBuffer,
};

/// The README's examples are compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
