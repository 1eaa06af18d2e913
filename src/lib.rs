//! Connection-managed messaging over RDMA: [`Listener`], [`Endpoint`], whole [`Message`]s, and byte
//! [streams](Stream).
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
//! // On another host: a client.
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
//! * A **message** is a sequence of bytes that arrives whole or not at all. Messages arrive in the
//!   order of sending. A received [`Message`] is a view of the buffer in which it arrived.
//! * A **credit** is the right to send one message, for which the receiver has posted a buffer. The
//!   **window** ([`Config::receive_window`]) is the number of credits. Dropping a [`Message`]
//!   returns its credit to the peer; holding it applies backpressure.
//! * A message up to the **eager size** is sent into one posted buffer, and a message of up to a
//!   few times this size into several posted buffers. A longer, **large** message stays in the
//!   memory of its sender until the receiver's device has read it.
//! * A **completion** ([`Completion`]) reports an event of a connection: a received message, the
//!   delivery of a message that was sent with an id, the completion of a one-sided operation, or
//!   the end of the connection.
//! * **Close** sends all pending messages and reports whether they arrived. Each side gets one
//!   [`CloseReason`]: the first event that ended the connection.
//! * **Private data** are bytes that the two sides exchange while they connect.
//! * The **transport** is RDMA, or TCP if no device serves the address. Both give the same
//!   guarantees. [`Info::transport`] is the transport in use.
//! * An **RDMA device** (an adapter, or software RoCE on any network interface) reads and writes
//!   the memory of a program without using the processor. The memory must be **registered**:
//!   locked, and known to the device. A **queue pair** is the device's end point of a connection.
//! * A [`Region`] is registered memory that the peer reads and writes with [one-sided
//!   operations](guide::messages#one-sided-operations), without involving the program on this side.
//! * An [`Engine`] is a thread that establishes and closes connections. It polls the connections on
//!   which no other thread waits.
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
//! [The guide](guide) has eleven pages, including [installation](guide::installing), a
//! [cookbook](guide::cookbook) of services, and [troubleshooting](guide::troubleshooting) by error
//! text.
//!
//! rdmsg provides neither encryption nor authentication. SECURITY.md in the repository lists the
//! costs that a hostile peer can cause, and the precautions that a program needs.
//!
//! # Features
//!
//! * `rdma`, on by default: RDMA through librdmacm and libibverbs, which are loaded with dlopen(3)
//!   at their first use. The build needs only Rust. A program also starts on hosts without these
//!   libraries. There it uses TCP, or connecting fails with [`Error::NoRdma`], which names the
//!   missing packages.
//! * `linked`: links the program with these libraries, which are then not loaded with dlopen(3).
//!   The build needs their headers and libclang, and the program does not start without the
//!   libraries.
//! * `tokio`: endpoints, listeners and streams for tasks, in the module `tokio`.
//! * `axum`, `hyper-util`, `tonic`: implementations of the traits of these crates for the types in
//!   `tokio`, and a connector for HTTP and gRPC clients.
//! * `metrics`: [`observe`] can export its values to the crate `metrics`.
//! * `serde`: reading [`Config`] and [`EngineLimits`] from configuration files.
//!
//! Without the feature `rdma`, the crate supports only the transports TCP and
//! [`Memory`](Transport::Memory), and does not contain the modules [`cm`], [`verbs`] and
//! [`rsocket`].
//!
//! # Layers below
//!
//! [`cm`] and [`verbs`] are safe layers over librdmacm and libibverbs, for programs that need
//! direct access to these libraries. [`status`] contains the status codes of both. [`rsocket`]
//! contains byte streams that are compatible with librdmacm's rsockets, so that the peer can be a C
//! program.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

#[macro_use(
    debug,
    error,
    error_elsewhere,
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
    //! 2. [Connecting](connecting): addresses, transports, time limits, private data, unit tests.
    //! 3. [Messages](messages): the window, backpressure, large messages, batches; reading and
    //!    writing the peer's memory.
    //! 4. [Waiting](waiting): threads, channels, groups, event loops, tasks.
    //! 5. [Ending](ending): confirmation of delivery, closing, vanished peers, outages, resuming,
    //!    clients that reconnect, the exit of a process.
    //! 6. [Streams](streams): bytes instead of messages; how to move a service from TCP.
    //! 7. [Cookbook](cookbook): how to send, calls, a broker, a replicated log, a file copy,
    //!    restarts, outages, credentials, unit tests.
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
