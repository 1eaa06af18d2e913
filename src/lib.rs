//! Connection-managed messaging over RDMA: [`Listener`], [`Endpoint`], whole [`Message`]s; and
//! [streams](Stream) of bytes.
//!
//! # A server and a client
//!
//! ```no_run
//! use rdmsg::{Endpoint, Listener};
//!
//! # fn main() -> Result<(), rdmsg::Error> {
//! // On one host: a server that echoes messages, with a thread for each connection.
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
//! // On another: a client.
//! let endpoint = Endpoint::connect("10.8.0.1:7471")?;
//! endpoint.send(b"hello")?;
//! assert_eq!(*endpoint.recv()?, *b"hello");
//! endpoint.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Terms
//!
//! * A **message** is a sequence of bytes that arrives whole or not at all, and in order. A
//!   received [`Message`] is a view of the buffer in which it arrived.
//! * A **credit** is the right to send one message, for which the receiver has a buffer posted. The
//!   **window** ([`Config::receive_window`]) is the number of credits. Dropping a [`Message`]
//!   returns its credit to the peer; holding it applies backpressure.
//! * A message up to the **eager size** goes into a posted buffer, and one of a few eager sizes
//!   into several. A longer, **large** message stays in the memory of its sender until the device
//!   of the receiver has read it.
//! * A **completion** ([`Completion`]) reports an event of a connection: a received message, the
//!   delivery of a message that was sent with an id, the end of an operation, or the end of the
//!   connection.
//! * **Close** delivers all messages and reports whether they arrived. Each side gets one
//!   [`CloseReason`], the first cause of the end.
//! * **Private data** are bytes that the two sides exchange while they connect.
//! * The **transport** is RDMA, or TCP if no device serves the address. Both give the same
//!   guarantees. [`Endpoint::transport`] returns the one in use.
//! * An **RDMA device** (an adapter, or software RoCE on any network interface) reads and writes
//!   the memory of a program by itself. The memory must be **registered**: locked, and known to the
//!   device. A **queue pair** is the end of a connection at the device.
//! * A [`Region`] is registered memory that the peer reads and writes by [one-sided
//!   operations](guide::messages#one-sided-operations), without the program of this side.
//! * An [`Engine`] is a thread that makes and ends connections, and polls those on which no thread
//!   waits.
//!
//! ```text
//!      your program                                             the peer's program
//!   ┌─────────────────┐                                      ┌─────────────────┐
//!   │ Endpoint::send ─┼──┐                                ┌──┼→ Endpoint::recv │
//!   └─────────────────┘  │ uses a credit                  │  └───────┬─────────┘
//!   ┌─ connection ───────▼──────┐          ┌─ connection ─┴──────────▼──┐ Message: dropping it
//!   │ send buffers              │          │ receive buffers (window)   │ returns the credit
//!   │ [....] [....] [....]      │          │ [....] [####] [....]       │
//!   └───────────┬───────────────┘          └─────────────▲──────────────┘
//!               │ work request                           │ work completion
//!   ┌─ device ──▼───────────────┐   RoCE   ┌─ device ────┴──────────────┐
//!   │ reads registered memory   ├─────────►│ writes registered memory   │
//!   └───────────────────────────┘  packets └────────────────────────────┘
//! ```
//!
//! # Guide
//!
//! [The guide](guide) has eleven pages, from [installing](guide::installing) over a
//! [cookbook](guide::cookbook) of services to [troubleshooting](guide::troubleshooting) by error
//! text.
//!
//! rdmsg neither encrypts nor authenticates. SECURITY.md in the repository lists the costs that a
//! hostile peer can cause, and the measures that a program needs.
//!
//! # Features
//!
//! * `rdma`, on by default: RDMA by librdmacm and libibverbs, which are opened at their first use.
//!   Only Rust is needed to build. A program also starts on hosts without these libraries; there it
//!   uses TCP, or returns [`Error::NoRdma`], which names the packages.
//! * `linked`: the program is linked with these libraries instead. The build needs their headers
//!   and libclang. The program does not start without the libraries.
//! * `tokio`: endpoints, listeners and streams for tasks, in the module `tokio`.
//! * `axum`, `hyper-util`, `tonic`: the traits of these crates for the types of `tokio`, and a
//!   connector for clients of HTTP and gRPC.
//! * `metrics`: [`observe`] can pass its numbers to the crate `metrics`.
//!
//! Without the feature `rdma` the crate supports TCP and connections within the process, and has no
//! [`cm`], [`verbs`] and [`rsocket`].
//!
//! # Layers below
//!
//! [`cm`] and [`verbs`] are safe layers over librdmacm and libibverbs, for programs that need the
//! calls themselves. [`status`] has the codes of both. [`rsocket`] has byte streams that speak the
//! protocol of librdmacm's rsockets with C programs.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

#[macro_use(
    debug,
    error,
    error_sparsely,
    info,
    info_sparsely,
    trace,
    warn,
    warn_sparsely
)]
extern crate rdmsg_os;

mod addresses;
mod config;
mod connector;
mod endpoint;
mod engine;
pub mod error;
mod group;
mod interest;
mod link;
mod listener;
mod local;
mod machine;
pub mod observe;
mod outgoing;
mod persistent;
mod remote_access;
mod send_buffer;
mod stream;
mod tally;
pub mod testing;
#[cfg(feature = "tokio")]
pub mod tokio;
mod transport;
mod transport_choice;

#[doc(inline)]
pub use crate::error::{Error, TrySendError};
pub use crossbeam_channel;
#[doc(inline)]
pub use rdma_status as status;
#[cfg(feature = "rdma")]
#[doc(inline)]
pub use rdma_verbs::{cm, verbs};
use rdmsg_os as os;
use rdmsg_poll as poll;
use rdmsg_proto as proto;
#[cfg(feature = "rdma")]
#[doc(inline)]
pub use rdmsg_rsocket as rsocket;

pub use crate::{
    addresses::{Addresses, ToAddresses},
    config::{Config, RdmaTuning, RelaxedOrdering},
    connector::{Connecting, Connector},
    endpoint::{Endpoint, Info, OneSided},
    engine::{Engine, EngineStatistics, Request},
    group::Group,
    interest::Interest,
    link::{Completion, Immediate, Message},
    listener::{Accepting, Listener, ListenerBuilder, RequestListener},
    outgoing::Outgoing,
    persistent::{Persistent, PersistentEvent, Redial},
    poll::Polling,
    proto::{Capabilities, CloseReason, Negotiated, Statistics},
    remote_access::RemoteAccess,
    send_buffer::SendBuffer,
    stream::{ReadHalf, Stream, StreamListener, WriteHalf},
    transport::{DeviceCounters, EngineLimits, Region, RemoteRegion},
    transport_choice::{Transport, TransportChoice},
};

pub mod guide {
    //! The guide, in reading order.
    //!
    //! 1. [Installing and processes](installing): builds, software RoCE, containers; daemons, fork,
    //!    `Command`, dropped privileges.
    //! 2. [Connecting](connecting): addresses, transports, time limits, private data,
    //!    unit tests.
    //! 3. [Messages](messages): the window, backpressure, large messages, batches; reading and
    //!    writing memory of the peer.
    //! 4. [Waiting](waiting): threads, channels, groups, event loops, tasks.
    //! 5. [Ending](ending): confirmation of delivery, closing, vanished peers, outages, resuming,
    //!    clients that dial again, the exit of a process.
    //! 6. [Streams](streams): bytes instead of messages; how to move a service from TCP.
    //! 7. [Cookbook](cookbook): how to send, calls, a broker, a replicated log, a copy, restarts,
    //!    outages, credentials, unit tests.
    //! 8. [Tuning](tuning): memory, thousands of connections, latency, throughput.
    //! 9. [Hardware](hardware): adapters, their networks, drivers, and expected results.
    //! 10. [Observing](observing): statistics, a live view, logs, `tracing`, OpenTelemetry; a
    //!     checklist for production.
    //! 11. [Troubleshooting](troubleshooting): error texts with causes and remedies.
    //!
    //! The examples of all pages are compiled.

    macro_rules! pages {
        ($($page:ident),*) => {
            $(pub mod $page {
                #![doc = include_str!(concat!("../docs/guide/", stringify!($page), ".md"))]

                #[cfg(doc)]
                use crate::*;
            })*
        };
    }

    pages!(
        installing,
        connecting,
        messages,
        waiting,
        ending,
        streams,
        cookbook,
        tuning,
        hardware,
        observing,
        troubleshooting
    );
}

/// Runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
