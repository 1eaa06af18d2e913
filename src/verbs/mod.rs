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

mod bit_flags;
mod completion;
mod device;
mod memory;
mod queue_pair;
mod work_request;

pub use self::{
    completion::{
        CompletionChannel, CompletionQueue, ExtendedCompletion, Success, WcError, WcFlags,
        WcOpcode, WorkCompletion,
    },
    device::{
        AsyncElement, AsyncEvent, AsyncEventType, AtomicCap, Context, Device, DeviceAttr,
        DeviceAttrEx, DeviceCapFlags, DeviceList, Gid, GidEntry, GidType, LinkLayer, Mtu, NodeType,
        OdpCaps, OdpTransportCaps, PortAttr, PortState, TransportType,
    },
    memory::{AccessFlags, Advice, DeviceMemory, MemoryRegion, ProtectionDomain},
    queue_pair::{
        AltPath, MigState, ModifyError, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
        QueuePair, SharedReceiveQueue, SrqAttr,
    },
    work_request::{
        AddressHandle, AhAttr, GlobalRoute, Inline, Payload, PostError, RecvWr, RemoteAddr, SendWr,
        Sge, SgeList,
    },
};
pub(crate) use self::{memory::Mapping, queue_pair::QpOwner, work_request::Op as SendOp};

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
