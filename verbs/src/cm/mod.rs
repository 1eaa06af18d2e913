//! Connections between socket addresses, established by librdmacm. Dropping an object of this
//! module destroys the corresponding C object.
//!
//! # Use
//!
//! A program creates an [`EventChannel`] and [`CmId`]s on this channel. It calls the operations of
//! an id (`bind_addr`, `listen`, `resolve_addr`, `resolve_route`, [`create_qp`](CmId::create_qp),
//! `connect`, `accept`), and reads their results from the channel. Alternatively, the program
//! creates a synchronous id with [`CmId::new_sync`]. The operations of a synchronous id block until
//! they are complete.
//!
//! # Events
//!
//! [`EventChannel::poll_event`] copies the event, takes ownership of the new id of a
//! CONNECT_REQUEST, and acknowledges the event before it returns. Therefore dropping an id never
//! waits for the program to acknowledge an event. It may still take long, because the kernel waits
//! for messages in flight.
//!
//! # Thread safety
//!
//! While librdmacm reads an event of an id, it writes to fields of that id, for example to the
//! pointer to the id's device and to the route. Therefore each channel has a lock. A thread holds
//! this lock while it reads an event, and during each call on an id of the channel, except
//! `rdma_destroy_id`. As a result, any thread may use an id.
//!
//! A synchronous id has its own channel, and waits for its events without holding a lock.
//!
//! # Cleanup
//!
//! Handles may be dropped in any order. A queue pair owns a handle to its id, and an id owns a
//! handle to its channel, so the C objects are destroyed in the order that librdmacm requires.

// This module owns every librdmacm object that the crate uses. It guarantees three things. Each
// event that was read is acknowledged. No thread uses an id while an event of that id is read,
// except to destroy it: librdmacm then waits until its events are acknowledged. A removed device is
// released when no object of the crate uses it. The callers of this module are the crates `rdmsg`,
// `rsocket` and `valkey`, and programs. The engine of `rdmsg` uses its ids only on its own thread,
// but may destroy them on another. This module starts no thread, sets no deadlines of its own, and
// retries no call except in [`CmId::listen_on`]. The callers decide how to handle an event.

// These modules are declared first, in this order. As a result, the documentation of `EventChannel`
// begins with `new`, and that of `CmEvent` with the methods that return its content.
mod event_channel;

mod event;

mod addr_info;
mod conn_param;
mod devices;
mod id;
mod owned_id;
mod private_data;

pub(crate) use self::devices::SOFTWARE_VENDOR_IDS;
pub use self::{
    addr_info::{AddrInfo, AddrInfoHints},
    conn_param::{ConnEventParam, ConnParam, UdEventParam},
    devices::Devices,
    event::CmEvent,
    event_channel::EventChannel,
    id::{CmId, Ece, PortSpace},
    private_data::PrivateData,
};

/// Checks at compile time that the types are `Send` and `Sync`, as the module documentation states.
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<AddrInfo>();
    send_and_sync::<CmEvent>();
    send_and_sync::<CmId>();
    send_and_sync::<Devices>();
    send_and_sync::<EventChannel>();
};
