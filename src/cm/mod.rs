//! librdmacm: connections by address, each object one that cleans up after itself.
//!
//! # Use
//!
//! A program makes an [`EventChannel`] and [`CmId`]s on it, calls the steps (`bind_addr`, `listen`, `resolve_addr`, `resolve_route`,
//! [`create_qp`](CmId::create_qp), `connect`, `accept`), and reads from the channel what comes of each. Or it makes an id of its own with
//! [`CmId::new_sync`], whose steps return when they are done.
//!
//! # Events
//!
//! [`EventChannel::poll_event`] copies the event, takes the new id of a CONNECT_REQUEST, and acknowledges the event before it returns.
//! `rdma_destroy_id` waits for unacknowledged events, so here it never waits.
//!
//! # Thread safety
//!
//! librdmacm writes into an id, its device and its route, while it reads an event of that id. So each channel has a lock; reading
//! an event takes it, and so does every call on an id of that channel. Ids may therefore be used by any thread.
//!
//! A synchronous id has a channel of its own, and waits for its events with nothing locked.
//!
//! # Cleanup
//!
//! Handles may be dropped in any order. A queue pair holds its id, an id holds its channel, and the C objects go in the one order that
//! librdmacm accepts.

mod addr_info;
mod conn_param;
mod devices;
mod event_channel;
mod groups;
mod id;
mod owned_id;
mod port_space;
mod private_data;

// Behind `event_channel`, so that the documentation of `EventChannel` begins with `new`.
mod event;

pub use self::{
    addr_info::{AddrInfo, AddrInfoHints},
    conn_param::{ConnEventParam, ConnParam, UdEventParam},
    devices::Devices,
    event::CmEvent,
    event_channel::EventChannel,
    id::{CmId, Ece},
    port_space::PortSpace,
    private_data::PrivateData,
};

/// The handles may be used by any thread.
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<AddrInfo>();
    send_and_sync::<CmEvent>();
    send_and_sync::<CmId>();
    send_and_sync::<Devices>();
    send_and_sync::<EventChannel>();
};
