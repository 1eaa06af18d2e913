//! librdmacm: connections by address, as objects that clean up after themselves.
//!
//! # Use
//!
//! A program creates an [`EventChannel`] and [`CmId`]s on it, calls the steps (`bind_addr`,
//! `listen`, `resolve_addr`, `resolve_route`, [`create_qp`](CmId::create_qp), `connect`, `accept`),
//! and reads their results from the channel. Alternatively it creates an id with
//! [`CmId::new_sync`], whose steps return when they have completed.
//!
//! # Events
//!
//! [`EventChannel::poll_event`] copies the event, takes ownership of the new id of a
//! CONNECT_REQUEST, and acknowledges the event before it returns. `rdma_destroy_id` waits for
//! unacknowledged events, so here it never blocks.
//!
//! # Thread safety
//!
//! librdmacm writes to an id, its device and its route while it reads an event of that id. So each
//! channel has a lock, which is held while an event is read, and during every call on an id of that
//! channel. Any thread may therefore use an id.
//!
//! A synchronous id has a channel of its own, and waits for its events without holding a lock.
//!
//! # Cleanup
//!
//! Handles may be dropped in any order. A queue pair holds its id, an id holds its channel, and the
//! C objects are destroyed in the order that librdmacm accepts.

// This layer owns every object of librdmacm that the crate uses. It guarantees that no event stays
// unacknowledged, that no id is used while one of its events is read, and that a device that was
// removed is released once nothing of the crate uses it. It is called by `rsocket`, by the engine,
// whose thread is the only one that uses the engine's ids, and by programs. It starts no thread,
// retries nothing, and has no deadline but those of its callers. The layers above decide the
// consequences of an event.

// These first, in this order, so that the documentation of `EventChannel` begins with `new`, and
// that of `CmEvent` with its content.
mod event_channel;

mod event;

mod addr_info;
mod conn_param;
mod devices;
mod id;
mod owned_id;
mod private_data;

pub(crate) use self::devices::SOFTWARE;
pub use self::{
    addr_info::{AddrInfo, AddrInfoHints},
    conn_param::{ConnEventParam, ConnParam, UdEventParam},
    devices::Devices,
    event::CmEvent,
    event_channel::EventChannel,
    id::{CmId, Ece, PortSpace},
    private_data::PrivateData,
};

/// Asserts the statements above on threads.
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<AddrInfo>();
    send_and_sync::<CmEvent>();
    send_and_sync::<CmId>();
    send_and_sync::<Devices>();
    send_and_sync::<EventChannel>();
};
