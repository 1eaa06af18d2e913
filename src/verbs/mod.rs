//! libibverbs: devices, memory, queues and work requests, each one an object that cleans up after itself.
//!
//! # Objects
//!
//! | Object | Made of | C |
//! |---|---|---|
//! | [`DeviceList`], [`Device`] | | `ibv_get_device_list` |
//! | [`Context`] | a device | `ibv_open_device` |
//! | [`ProtectionDomain`] | a context | `ibv_alloc_pd` |
//! | [`MemoryRegion`] | a protection domain | `ibv_reg_mr` |
//! | [`CompletionChannel`] | a context | `ibv_create_comp_channel` |
//! | [`CompletionQueue`] | a context, maybe a channel | `ibv_create_cq` |
//! | [`SharedReceiveQueue`] | a protection domain | `ibv_create_srq` |
//! | [`QueuePair`] | a protection domain and completion queues | `ibv_create_qp` |
//! | [`AddressHandle`] | a protection domain | `ibv_create_ah` |
//!
//! # Resource cleanup
//!
//! Every handle counts references, and each object holds those it is made of. So handles may be dropped in any order: the C objects
//! go in the one order that libibverbs accepts. A queue pair holds the memory regions of everything posted on it, too, and
//! a region's memory is unmapped only after the device has let go of it.
//!
//! libibverbs waits, when it destroys an object, for events of that object which were read and not acknowledged. This module
//! acknowledges each event before it returns it, so nothing ever waits.
//!
//! # Thread safety
//!
//! All handles are [`Send`] and [`Sync`], as libibverbs locks each object itself. What several threads post on one queue pair is
//! posted in some order of whole calls; completions polled by several threads go to one of them each.
//!
//! # Memory
//!
//! The device, and a peer that has been given a key, may change registered memory at any time. No safe method hands out a
//! reference into it: [`MemoryRegion::copy_in`] and [`MemoryRegion::copy_out`] copy.

mod access;
mod address_handle;
mod async_event;
mod bit_flags;
mod completion_channel;
mod completion_queue;
mod context;
mod device;
mod device_attr;
mod device_attr_ex;
mod device_memory;
mod extended_completion;
mod gid;
mod mapping;
mod memory_region;
mod modify_error;
mod port_attr;
mod posting;
mod protection_domain;
mod qp_attr;
mod qp_init_attr;
mod qp_state;
mod queue_pair;
mod recv_queue;
mod recv_wr;
mod send_ops;
mod send_queue;
mod send_wr;
mod sge;
mod shared_bytes;
mod shared_receive_queue;
mod work_completion;

pub use access::AccessFlags;
pub use address_handle::{AddressHandle, AhAttr, GlobalRoute};
pub use async_event::{AsyncElement, AsyncEvent, AsyncEventType};
pub use completion_channel::CompletionChannel;
pub use completion_queue::CompletionQueue;
pub use context::Context;
pub use device::{Device, DeviceList, NodeType, TransportType};
pub use device_attr::{AtomicCap, DeviceAttr, DeviceCapFlags};
pub use device_attr_ex::{DeviceAttrEx, OdpCaps, OdpTransportCaps};
pub use device_memory::DeviceMemory;
pub use extended_completion::ExtendedCompletion;
pub use gid::{Gid, GidEntry, GidType};
pub(crate) use mapping::Mapping;
pub use memory_region::{Advice, MemoryRegion};
pub use modify_error::ModifyError;
pub use port_attr::{LinkLayer, Mtu, PortAttr, PortState};
pub use posting::PostError;
pub use protection_domain::ProtectionDomain;
pub use qp_attr::{AltPath, MigState, QpAttr, QpAttrMask};
pub use qp_init_attr::{QpCap, QpInitAttr, QpType};
pub use qp_state::QpState;
pub(crate) use queue_pair::QpOwner;
pub use queue_pair::QueuePair;
pub use recv_wr::RecvWr;
pub(crate) use send_wr::Op as SendOp;
pub use send_wr::{Inline, Payload, RemoteAddr, SendWr};
pub use sge::{Sge, SgeList};
pub use shared_receive_queue::{SharedReceiveQueue, SrqAttr};
pub use work_completion::{Success, WcError, WcFlags, WcOpcode, WorkCompletion};

/// What the documentation above says of threads.
#[cfg(test)]
const _: () = {
    const fn assert_send_sync<T: Send + Sync>() {}

    assert_send_sync::<DeviceList>();
    assert_send_sync::<Device>();
    assert_send_sync::<Context>();
    assert_send_sync::<ProtectionDomain>();
    assert_send_sync::<MemoryRegion>();
    assert_send_sync::<DeviceMemory>();
    assert_send_sync::<CompletionChannel>();
    assert_send_sync::<CompletionQueue>();
    assert_send_sync::<SharedReceiveQueue>();
    assert_send_sync::<QueuePair>();
    assert_send_sync::<AddressHandle>();
    assert_send_sync::<WorkCompletion>();
    assert_send_sync::<SendWr<'_>>();
    assert_send_sync::<RecvWr<'_>>();
};
