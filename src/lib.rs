//! Connection-managed messaging over RDMA: [`Listener`], [`Endpoint`], whole [`Message`]s, and no
//! queue pair in sight.
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
//! * A **credit** is the right to send one message: the receiver has a receive posted for it. The
//!   **window** is how many there are.
//! * A **grant** renews credits. It travels with messages of the other direction, or alone.
//! * An **eager** message goes into a buffer that is posted for it; a **large** one is read by its
//!   receiver from memory that its sender **lends**.
//! * The **hello** is what the two sides tell each other while they connect: [`Negotiated`] is what
//!   comes of it.
//! * A connection is **drained** when all its work requests have come back from the device.
//!
//! # Flow control
//!
//! A received [`Message`] is a view of the buffer that the device wrote. Keeping it keeps its place
//! in the window, and when all places are taken the peer's [`send`](Endpoint::send) waits. Nothing
//! is ever dropped, and the device never has to say "receiver not ready". [`Message::into_vec`]
//! copies the bytes out and frees the place.
//!
//! # Waiting
//!
//! Whoever waits, polls: a thread in [`recv`](Endpoint::recv), or in [`send`](Endpoint::send) with
//! a full window, polls the completion queue itself, as [`Polling`] says. To wait for several
//! connections at once use their [`completions`](Endpoint::completions) in
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
//! Programs with an event loop of their own register the [`event_fd`](Endpoint::event_fd)s of each
//! endpoint, one for each [`Interest`], and the one of each [listener](Listener::event_fd), and
//! call [`try_recv`](Endpoint::try_recv), [`try_send`](Endpoint::try_send) and
//! [`try_accept`](Listener::try_accept) when it is readable:
//!
//! ```no_run
//! use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
//! use rdmsg::Interest;
//! # use rdmsg::Endpoint;
//!
//! # fn serve(endpoints: &[Endpoint]) -> Result<(), Box<dyn std::error::Error>> {
//! let epoll = Epoll::new(EpollCreateFlags::empty())?;
//! for (endpoint, token) in endpoints.iter().zip(0..) {
//!     let fd = endpoint.event_fd(Interest::Readable)?;
//!     epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
//! }
//! let mut events = [EpollEvent::empty(); 64];
//! loop {
//!     let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
//!     for event in &events[..count] {
//!         while let Some(message) = endpoints[event.data() as usize].try_recv()? {
//!             println!("{} bytes", message.len());
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! # Many connections
//!
//! By default a connection has receive buffers of its own,
//! [`receive_window`](Config::receive_window) × [`eager_size`](Config::eager_size) bytes of them. A
//! server with thousands of clients of which few speak at a time lets them
//! [share](Config::shared_receive):
//!
//! ```no_run
//! use rdmsg::{Config, Engine, Listener};
//!
//! # fn main() -> Result<(), rdmsg::Error> {
//! let mut config = Config::default();
//! config.shared_receive = Some(26_000); // buffers for at least 1000 connections, of
//! config.eager_size = 2048; // so many bytes each
//! config.send_depth = 16;
//! let listener = Listener::bind_with("0.0.0.0:7471", &config, &Engine::shared()?)?;
//! # Ok(())
//! # }
//! ```
//!
//! Whoever is busy may use more of them, up to its window, and no connection ever stops another
//! one. To spread many connections over several processors make several [engines](Engine::new),
//! with a listener or a connector each.
//!
//! # Large messages
//!
//! Messages up to the [eager size](Config::eager_size) go right into a buffer that waits for them.
//! A longer one stays in memory of its sender until the receiver's library has read it, which costs
//! one exchange more, but no buffer has to wait for it: the limit is [`Config::max_message`], 1 GiB
//! by default. The peer can read exactly the message's bytes, and nothing any more once it has
//! taken them. The order of messages is kept across both kinds, and how much memory they take on
//! either side is bounded by [`Config::large_memory`].
//!
//! Whoever fills a buffer anyway can fill memory of the connection's and save the copy:
//!
//! ```no_run
//! # fn main() -> Result<(), rdmsg::Error> {
//! # let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
//! let mut buffer = endpoint.buffer(8 << 20)?;
//! buffer.fill(7);
//! endpoint.send_owned(buffer)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Knowing what arrived
//!
//! `send` returns when a message is on its way. Three things tell that it has arrived:
//! [`Endpoint::flush`] waits for all that was sent so far; [`Endpoint::send_with_id`] gives it an
//! id that comes back as [`Completion::Sent`], in the order of sending; and a
//! [`close`](Endpoint::close) that succeeds vouches for everything. All of them speak of the peer's
//! library. What its application makes of a message only an answer can tell.
//!
//! Each id comes back exactly once, as a success or as [`Completion::Failed`]. Completions of all
//! kinds are taken with [`Endpoint::next_completion`] or from [`Endpoint::completions`].
//!
//! # Memory of the peer
//!
//! One-sided operations read and write a peer's memory without its program: the peer makes a
//! [`Region`], says what others may do with it, and sends its [`RemoteRegion`].
//!
//! ```no_run
//! use rdmsg::{Completion, Endpoint, RemoteAccess, RemoteRegion};
//!
//! # fn main() -> Result<(), rdmsg::Error> {
//! // The one who has the memory:
//! # let endpoint = Endpoint::connect("10.8.0.1:7471")?;
//! let table = endpoint.region(1 << 20, RemoteAccess::READ)?;
//! table.copy_in(0, b"what others may know");
//! endpoint.send(&table.remote().to_bytes())?;
//!
//! // The one who reads it:
//! let message = endpoint.recv()?;
//! if let Ok(bytes) = message.as_ref().try_into() {
//!     let remote = RemoteRegion::from_bytes(bytes);
//!     let here = endpoint.region(20, RemoteAccess::NONE)?;
//!     endpoint.read(&here, 0..20, &remote, 0, 1)?;
//!     while !matches!(endpoint.next_completion()?, Completion::Read(1)) {}
//!     let mut known = [0; 20];
//!     here.copy_out(0, &mut known);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Watching
//!
//! [`Endpoint::statistics`] and [`Engine::statistics`] count messages, bytes, stalls and grants and
//! say what is held; [`Endpoint::device_counters`] has what the device counts, lost packets for
//! instance. With the `log` crate's `debug` level each connection tells its steps, under one name:
//! `conn 17 to 10.8.0.1:7471`. Single messages are logged at no level above `trace`.
//!
//! # The end
//!
//! [`Endpoint::close`] delivers what was sent, tells the peer, and says whether everything arrived.
//! Dropping the last handle does the same in the background, within [`Config::close_timeout`]. A
//! connection closes as a whole: when one side has closed, the other can send no more, and what it
//! sent before still arrives. Programs that say "I am done" and go on receiving say so in a
//! message. However a connection ends, each side learns it once, after all messages, with the first
//! cause: [`CloseReason`]. A peer that vanishes is noticed by a failing send, or by
//! [keepalive](Config::keepalive_interval) where nothing is sent.
//!
//! A device that is removed ends the connections and listeners on it, and may come back under its
//! own name or another: nothing of a process that was told of it keeps the device. A listener on
//! all addresses goes on with whatever devices there are; one on a single address ends, or binds
//! itself again ([`Config::rebind`]). Connecting again is the application's affair. What an
//! application still holds delays the removal, as long as the driver waits for its users: messages
//! that were received, buffers and regions are the device's as well. And a device that was used,
//! but on which there is neither a connection nor a listener on its address when it is removed, is
//! let go of only when the process connects or listens again while there is another.
//!
//! # When the process ends
//!
//! A return from `main`, and `exit(3)` (`std::process::exit`), first close what is open, as
//! [`Engine::shutdown`] does, and wait for that. So what was sent arrives, whether its endpoint was
//! dropped before or is still there. The wait is over when all connections of all engines have
//! ended, and after the longest of their [`close_timeout`](Config::close_timeout)s and two seconds
//! at the latest; a process without connections does not wait. Meanwhile listeners stop, and
//! threads that use endpoints see them end. What is given up is logged at the level `warn`, as it
//! is when an endpoint that was dropped could not deliver everything. A program that wants to know
//! for itself calls [`close`](Endpoint::close).
//!
//! `abort` (and with it a panic where panics abort), `_exit` and signals that kill end the process
//! at once: what is on its way then may be lost, and the peer sees
//! [`CloseReason::PeerDisconnected`]. A program that is ended by a signal, SIGTERM or SIGINT for
//! instance, handles it and returns from `main`; `exit` in the handler itself is not safe. A forked
//! child has none of these threads: it closes nothing, and does not wait. Where it is an engine's
//! own thread that ends the process, in a logger for instance, nobody waits for that engine.
//!
//! # Below
//!
//! [`cm`] and [`verbs`] are the safe layers over librdmacm and libibverbs that all this stands on,
//! for programs that want the raw thing. [`status`] has the codes that both speak in. Beside it is
//! [`rsocket`]: byte streams for talking to C programs that have them.
#![deny(unsafe_code)]

pub mod cm;
mod config;
mod connector;
mod endpoint;
mod engine;
mod error;
mod interest;
mod link;
mod listener;
mod machine;
mod proto;
mod remote_access;
pub mod rsocket;
mod send_buffer;
pub mod status;
mod sync;
mod sys;
mod transport;
pub mod verbs;

pub use crossbeam_channel;

pub use crate::{
    config::{Config, Polling},
    connector::Connector,
    endpoint::{Endpoint, NotSent},
    engine::{Engine, EngineStatistics, Request},
    error::{Error, TrySendError},
    interest::Interest,
    link::{Completion, Immediate, Message},
    listener::Listener,
    machine::Denied,
    proto::{CloseReason, Mismatch, Negotiated, Phase, Statistics, Violation},
    remote_access::RemoteAccess,
    send_buffer::SendBuffer,
    transport::{
        EngineLimits,
        rdma::{DeviceCounters, Region, RemoteRegion},
    },
};

/// The README's examples are compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
