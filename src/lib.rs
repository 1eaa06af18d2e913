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
//! # Words
//!
//! * A **message** is a sequence of bytes that arrives whole or not at all, and in order.
//! * A **credit** is the right to send one message: the receiver has a receive posted for it. The
//!   **window** is the number of credits.
//! * A **grant** renews credits. It travels with messages of the other direction, or alone.
//! * An **eager** message goes into a buffer that is posted for it; a **large** one is read by its
//!   receiver from memory that its sender **exposes**.
//! * The **hello** is what the two sides exchange while they connect; [`Negotiated`] is the result.
//! * A connection is **drained** when the device has returned all its work requests.
//!
//! # Guide
//!
//! [The guide](guide) has a page for each topic.
//!
//! [Concepts](guide::concepts): what the words mean, on one page; when to use something else.
//!
//! [Installing](guide::installing): three builds, and what each needs.
//!
//! [Connecting](guide::connecting): [`Listener::bind`] and [`Endpoint::connect`] take names and
//! addresses; [`Connector`] and [`Config`] add time limits, retries and private data.
//!
//! [Flow control](guide::flow_control): a received [`Message`] is a view of the buffer that the
//! device wrote. While it is held it keeps its place in the window, and when all places are taken
//! the peer's [`send`](Endpoint::send) waits. Nothing is ever dropped.
//!
//! [Waiting](guide::waiting): a thread that waits polls by itself. For several connections there
//! are channels for [`crossbeam_channel::select!`], and file descriptors for event loops.
//!
//! [Large messages](guide::large_messages): above the [eager size](Config::eager_size) the receiver
//! reads a message from the sender's memory, up to 1 GiB by default.
//!
//! [Streams](guide::streams): [`Stream`] and [`StreamListener`] carry bytes, with the methods of
//! [`std::net`].
//!
//! [Moving from TCP](guide::moving_from_tcp): from [`std::net`], from tokio, from a protocol with
//! lengths in front; what is different then.
//!
//! [One-sided operations](guide::one_sided) read and write a peer's [`Region`] without the peer's
//! program.
//!
//! [Ending](guide::ending): [`Endpoint::close`] delivers what was sent and reports whether
//! everything arrived; each side gets one [`CloseReason`]. A process that ends normally closes what
//! is open first.
//!
//! [Sizing](guide::sizing) and [tuning](guide::tuning): memory, thousands of connections, latency,
//! throughput.
//!
//! [Security](guide::security): what protects memory, and what nothing protects.
//! [Processes](guide::processes): daemons, fork, `Command` and dropped privileges.
//! [Containers](guide::containers): what they need. [Observing](guide::observing): numbers, a live
//! view, logs.
//!
//! [Troubleshooting](guide::troubleshooting): the texts of errors with causes and remedies.
//!
//! # Features
//!
//! * `rdma`, on by default: RDMA by librdmacm and libibverbs. The program is linked with them, and
//!   their headers and libclang are needed to build.
//! * `dlopen`: RDMA by the same libraries, opened when they are first used. Only Rust is needed to
//!   build; a program starts where they are not installed, and uses TCP there, or returns
//!   [`Error::NoRdma`], which names the packages.
//! * `tokio`: endpoints, listeners and streams for tasks, in the module `tokio`.
//! * `axum`, `hyper-util`, `tonic`: the traits of these crates for the types of `tokio`, and a
//!   connector for clients of HTTP and gRPC.
//! * `metrics`: [`observe`] can pass its numbers on to the crate `metrics`.
//!
//! With both of the first two it is `dlopen`; with neither there is TCP alone, and no [`cm`],
//! [`verbs`] and [`rsocket`].
//!
//! # Layers below
//!
//! [`cm`] and [`verbs`] are safe layers over librdmacm and libibverbs, for programs that need the
//! calls themselves. [`status`] has the codes of both. [`rsocket`] has byte streams that speak the
//! protocol of librdmacm's rsockets with C programs.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

#[macro_use(debug, error, error_sparsely, info, trace, warn, warn_sparsely)]
extern crate rdmsg_os;

mod addresses;
mod config;
mod connector;
mod endpoint;
mod engine;
mod error;
mod group;
mod interest;
mod link;
mod listener;
mod listener_builder;
mod machine;
pub mod observe;
mod poll;
mod private_data;
mod remote_access;
mod send_buffer;
mod stream;
mod sync;
#[cfg(feature = "tokio")]
pub mod tokio;
mod transport;
mod transport_kind;

pub use crossbeam_channel;
#[doc(inline)]
pub use rdma_status as status;
#[cfg(feature = "rdma")]
#[doc(inline)]
pub use rdma_verbs::{cm, verbs};
use rdmsg_os as os;
use rdmsg_proto as proto;
#[cfg(feature = "rdma")]
#[doc(inline)]
pub use rdmsg_rsocket as rsocket;

pub use crate::{
    addresses::{Addresses, ToAddresses},
    config::{Config, Polling, Transport},
    connector::{Connecting, Connector},
    endpoint::{Endpoint, Flushing, NotSent},
    engine::{Engine, EngineStatistics, Request},
    error::{Error, TrySendError},
    group::Group,
    interest::Interest,
    link::{Completion, Immediate, Message},
    listener::{Listener, RequestListener},
    listener_builder::ListenerBuilder,
    machine::Denied,
    proto::{
        Capabilities, CloseReason, Mismatch, Negotiated, PeerTimeout, Phase, Statistics, Violation,
    },
    remote_access::RemoteAccess,
    send_buffer::SendBuffer,
    stream::{ReadHalf, Stream, StreamListener, WriteHalf},
    transport::{DeviceCounters, EngineLimits, Region, RemoteRegion},
    transport_kind::TransportKind,
};

/// The guide: a page for each topic, from the first connection to the meaning of every error text.
///
/// The examples of all pages are compiled.
pub mod guide {
    pub mod concepts {
        #![doc = include_str!("../docs/guide/concepts.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod installing {
        #![doc = include_str!("../docs/guide/installing.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod connecting {
        #![doc = include_str!("../docs/guide/connecting.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod flow_control {
        #![doc = include_str!("../docs/guide/flow_control.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod waiting {
        #![doc = include_str!("../docs/guide/waiting.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod large_messages {
        #![doc = include_str!("../docs/guide/large_messages.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod streams {
        #![doc = include_str!("../docs/guide/streams.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod moving_from_tcp {
        #![doc = include_str!("../docs/guide/moving_from_tcp.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod one_sided {
        #![doc = include_str!("../docs/guide/one_sided.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod ending {
        #![doc = include_str!("../docs/guide/ending.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod sizing {
        #![doc = include_str!("../docs/guide/sizing.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod tuning {
        #![doc = include_str!("../docs/guide/tuning.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod security {
        #![doc = include_str!("../docs/guide/security.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod processes {
        #![doc = include_str!("../docs/guide/processes.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod containers {
        #![doc = include_str!("../docs/guide/containers.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod observing {
        #![doc = include_str!("../docs/guide/observing.md")]

        #[cfg(doc)]
        use crate::*;
    }

    pub mod troubleshooting {
        #![doc = include_str!("../docs/guide/troubleshooting.md")]

        #[cfg(doc)]
        use crate::*;
    }
}

/// Runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
