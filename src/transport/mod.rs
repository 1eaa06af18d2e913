//! The transports, which carry frames between the two sides of a connection.
//!
//! A transport consists of a queue pair and its related objects. The layers above post work
//! requests and poll completions. They do not refer to a queue pair, a memory region or a
//! connection manager's id. All transports share `queues` and `memory`. Each transport has its own
//! queue pairs, completions, registrations and connection establishment. A type that each transport
//! implements, such as `ListenId`, is defined in a file of the same name in the folder of each
//! transport, such as `rdma` or `tcp`. The enum that combines these types is defined in another
//! file of the same name, in this folder, in `queues` or in `memory`. The in-memory transport
//! ([`in_memory`]) uses the memory and the keys of `tcp`, so some of these enums have no variant
//! for it.
//!
//! A transport guarantees the following to the message layer:
//!
//! * **Sends** are reliable. Sends arrive in the order of posting. Each send arrives as a whole, in
//!   one posted receive buffer. The bytes of a slot belong to the transport from the post until a
//!   completion covers the slot. The completion of a signalled send also covers the unsignalled
//!   sends before it.
//! * **Receives** are numbered buffers. Each buffer is posted once, completes once, and then
//!   belongs to the caller until it is posted again. A frame that arrives while no receive is
//!   posted ends the connection. Credits prevent such frames.
//! * **Reads, writes and atomic operations** reach exactly the bytes that the peer has exposed or
//!   registered as a region, and need the access rights that the peer has granted. After the peer
//!   has revoked the rights, the bytes cannot be reached. Any other access fails and ends the
//!   connection. These operations and sends complete in the order of posting.
//! * **Completions** are polled by one thread at a time. After [`arm`](PollSide::arm) the next
//!   completion raises one event, which makes the file descriptor for events readable. A completion
//!   that arrived before `arm` may raise no event, so a thread arms, polls once more, and then
//!   sleeps.
//! * **Failures** are reported in order: the first failed request completes with the reason, and
//!   all later requests complete as flushed. After the drain markers are posted, all earlier work
//!   requests complete, and then the markers complete. After the queues are destroyed, the device
//!   no longer accesses any of the memory, even for work requests that have not completed.
//! * **Memory** for large messages of the peer is pinned chunk by chunk, within the process's
//!   [budget](Budget).
#![cfg_attr(
    not(feature = "rdma"),
    allow(dead_code, unused_variables, reason = "only RDMA needs this code")
)]

/// Matches on the transport of a value. The type of the value has the variants `Rdma` and `Tcp`,
/// and possibly `Memory`. Without the `rdma` feature, the `Rdma` arm is removed. `all` applies one
/// arm to all three variants.
macro_rules! by_transport {
    ($value:expr, $inner:ident => $body:expr) => {
        by_transport!($value, { Rdma($inner) => $body, Tcp($inner) => $body })
    };
    ($value:expr, all $inner:ident => $body:expr) => {
        by_transport!($value, {
            Rdma($inner) => $body,
            Tcp($inner) => $body,
            Memory($inner) => $body
        })
    };
    ($value:expr, { $($arms:tt)+ }) => {
        by_transport!(Self, $value, { $($arms)+ })
    };
    ($type:ident, $value:expr, {
        Rdma($rdma:pat) => $of_rdma:expr,
        Tcp($tcp:pat) => $of_tcp:expr
        $(, Memory($memory:pat) => $of_memory:expr)? $(,)?
    }) => {
        match $value {
            #[cfg(feature = "rdma")]
            $type::Rdma($rdma) => $of_rdma,
            $type::Tcp($tcp) => $of_tcp,
            $($type::Memory($memory) => $of_memory,)?
        }
    };
}

mod budget;
mod connection_id;
mod connection_manager;
mod in_memory;
mod limits;
mod listen_id;
mod memory;
mod no_transport;
mod queues;
#[cfg(feature = "rdma")]
mod rdma;
mod tcp;

pub(crate) use self::{
    budget::{Budget, Charge},
    connection_id::ConnectionId,
    connection_manager::{
        ConnectRequest, ConnectionManager, DEVICE, DeviceEvent, Effect, Event, Report,
    },
    in_memory::WireControl,
    listen_id::ListenId,
    memory::{Allocator, Exposed, InboundBuffer, OutboundBuffer, RecvSlice},
    queues::{
        BATCH, Checked, CompletionEvents, Done, OneSidedOp, Operation, OperationKind, Outcome,
        PollSide, PostError, Posted, ReceiveShare, TransportParts, WorkQueues,
    },
    tcp::{HopLimit, WAITS_FOR},
};
pub use self::{
    limits::EngineLimits,
    memory::{DeviceCounters, Region, RemoteRegion},
};
