//! Carries frames between two processes.
//!
//! A transport is a queue pair with its objects. The layers above post work requests and poll
//! completions; none of them names a queue pair, a memory region or a connection manager's id. All
//! transports share `queues` and `memory`; each has queue pairs, completions, registrations and
//! connection establishment of its own. A type that each transport has, such as `ListenId`, has a
//! file of the same name in `rdma`, in `tcp` and in this folder or one of those two, which has the
//! enum of both.
//!
//! A transport guarantees, for the message layer:
//!
//! * **Sends** are reliable and arrive in the order in which they were posted, each whole, in the
//!   receive buffer that was posted first. The bytes of a slot belong to the transport from the
//!   post until a completion covers the slot. Unsignalled sends are covered by the next signalled
//!   one.
//! * **Receives** are numbered buffers. Each is posted once, completes once, and then belongs to
//!   the caller until it is posted again. A frame that arrives without a posted receive ends the
//!   connection; credits prevent that.
//! * **Reads, writes and atomic operations** reach exactly the bytes that the other side has
//!   exposed or put into a region, with the rights that it granted, until it revokes them. Any
//!   other access fails and ends the connection. They complete in the order of posting, together
//!   with sends.
//! * **Completions** are polled, by one thread at a time. After [`arm`](PollSide::arm) the next
//!   completion makes the events' file descriptor readable, once. An earlier completion does not,
//!   so a thread arms, polls once more, and then sleeps.
//! * **Failure is orderly**: the first failed request completes with the reason, all later ones
//!   complete as flushed. After the drain markers are posted, all earlier work requests complete,
//!   and then the markers do. After the queues were destroyed the device accesses none of the
//!   memory, even of work requests that have not completed.
//! * **Memory** for large messages of the peer is pinned chunk by chunk, within the process's
//!   [budget](Budget).
#![cfg_attr(
    not(feature = "rdma"),
    allow(dead_code, unused_variables, reason = "what RDMA alone needs")
)]

/// Matches on the transport of a value, whose type has the variants `Rdma` and `Tcp`. Without the
/// feature `rdma` there is `Tcp` alone.
macro_rules! by_transport {
    ($value:expr, $inner:ident => $body:expr) => {
        by_transport!($value, { Rdma($inner) => $body, Tcp($inner) => $body })
    };
    ($value:expr, { $($arms:tt)+ }) => {
        by_transport!(Self, $value, { $($arms)+ })
    };
    ($type:ident, $value:expr, {
        Rdma($rdma:pat) => $of_rdma:expr,
        Tcp($tcp:pat) => $of_tcp:expr $(,)?
    }) => {
        match $value {
            #[cfg(feature = "rdma")]
            $type::Rdma($rdma) => $of_rdma,
            $type::Tcp($tcp) => $of_tcp,
        }
    };
}

mod budget;
mod connection_id;
mod connection_manager;
mod device_event;
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
    connection_manager::{ConnectRequest, ConnectionManager, DEVICE, Event, Report},
    device_event::{DeviceEvent, Effect},
    listen_id::ListenId,
    memory::{Allocator, Exposed, InboundBuffer, OutboundBuffer, RecvSlice},
    queues::{
        BATCH, Checked, CompletionEvents, Done, OneSidedOp, Outcome, PollSide, Posted,
        ReceiveShare, TransportParts, WorkQueues,
    },
    tcp::{HopLimit, WAITS_FOR},
};
pub use self::{
    limits::EngineLimits,
    memory::{DeviceCounters, Region, RemoteRegion},
};
