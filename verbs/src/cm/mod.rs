//! Connections by address, with librdmacm. The objects of this module clean up when they are
//! dropped.
//!
//! # Use
//!
//! A program creates an [`EventChannel`] and [`CmId`]s on it. It calls the steps (`bind_addr`,
//! `listen`, `resolve_addr`, `resolve_route`, [`create_qp`](CmId::create_qp), `connect`, `accept`),
//! and reads their results from the channel. Alternatively it creates an id with
//! [`CmId::new_sync`], whose steps return when they have completed.
//!
//! # Events
//!
//! [`EventChannel::poll_event`] copies the event, takes ownership of the new id of a
//! CONNECT_REQUEST, and acknowledges the event before it returns. `rdma_destroy_id` waits for
//! unacknowledged events; with this module there are none, so it does not block.
//!
//! # Thread safety
//!
//! librdmacm writes to an id, its device and its route while it reads an event of that id.
//! Therefore each channel has a lock, which is held while an event is read, and during each call on
//! an id of that channel. So any thread may use an id.
//!
//! A synchronous id has a channel of its own, and waits for its events without holding a lock.
//!
//! # Cleanup
//!
//! Handles may be dropped in any order. A queue pair holds its id, an id holds its channel, and the
//! C objects are destroyed in the order that librdmacm requires.

// This module owns every librdmacm object that the crate uses. It guarantees three things: each
// event that was read is acknowledged, no thread uses an id while an event of that id is read, and
// a removed device is released when no object of the crate uses it. Its callers are `rsocket`, the
// engine, whose thread alone uses the engine's ids, and programs. The module starts no thread,
// retries nothing, and has no deadlines but those of its callers. The layers above decide on the
// consequences of an event.

// These modules come first, in this order, so that the documentation of `EventChannel` begins with
// `new`, and that of `CmEvent` with the methods that return its content.
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

/// Checks at compile time that the types are `Send` and `Sync`, as the documentation above states.
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<AddrInfo>();
    send_and_sync::<CmEvent>();
    send_and_sync::<CmId>();
    send_and_sync::<Devices>();
    send_and_sync::<EventChannel>();
};
