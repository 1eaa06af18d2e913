//! libibverbs: devices, memory, queues and work requests. Dropping the last handle to an object
//! destroys the corresponding C object.
//!
//! # Objects
//!
//! | Object | Created from | C |
//! |---|---|---|
//! | [`DeviceList`], [`Device`] | | `ibv_get_device_list` |
//! | [`Context`] | a device | `ibv_open_device` |
//! | [`ProtectionDomain`] | a context | `ibv_alloc_pd` |
//! | [`ThreadDomain`] | a context | `ibv_alloc_td` |
//! | [`MemoryRegion`] | a protection domain | `ibv_reg_mr` |
//! | [`MemoryWindow`] | a protection domain | `ibv_alloc_mw` |
//! | [`CompletionChannel`] | a context | `ibv_create_comp_channel` |
//! | [`CompletionQueue`] | a context, optionally a channel | `ibv_create_cq` |
//! | [`SharedReceiveQueue`] | a protection domain | `ibv_create_srq` |
//! | [`QueuePair`] | a protection domain and completion queues | `ibv_create_qp` |
//! | [`AddressHandle`] | a protection domain | `ibv_create_ah` |
//!
//! # Resource cleanup
//!
//! Each object owns reference-counted handles to the objects from which it was created. Therefore a
//! program may drop its handles in any order: the C objects are destroyed in the order that
//! libibverbs requires. A queue pair also owns handles to the memory regions of all requests that
//! were posted to it. The memory of a region is unmapped only after the region has been
//! deregistered.
//!
//! If an event of an object was read but not acknowledged, libibverbs blocks when it destroys the
//! object. This module acknowledges each event before it returns the event, so destroying an object
//! never blocks.
//!
//! # Thread safety
//!
//! All handles are [`Send`] and [`Sync`], because locks protect the objects. libibverbs locks all
//! objects except the queue pairs of a [`ThreadDomain`]. The safe functions of this module lock
//! these queue pairs. If several threads post to one queue pair, the requests of each call stay
//! together; the order of the calls is unspecified. If several threads poll one completion queue,
//! each completion is returned to only one of them.
//!
//! # Memory
//!
//! The device, and any peer that knows a region's key, may change registered memory at any time.
//! Therefore no safe method returns a reference to registered memory; [`MemoryRegion::copy_in`] and
//! [`MemoryRegion::copy_out`] copy the bytes.

// This module owns every libibverbs object that the crate uses. It guarantees that safe code cannot
// use an object after its destruction, cannot post a request that the queue does not support, and
// cannot alias memory that the device writes. If a function cannot ensure one of these three
// conditions, the function is an `unsafe fn`, and its callers must ensure the condition.
//
// The callers of this module are `cm`, `rdmsg-rsocket`, `rdmsg-valkey`, the RDMA transport of
// `rdmsg`, and programs. The name or the documentation of each function shows whether the function
// can block. The module starts no thread, and implements neither connections nor messages: its
// callers connect queue pairs.
//
// The submodules depend on each other in one direction only. `memory` and `completion` use
// `device`. `work_request` uses `device`, `memory` and `completion`. `queue_pair` uses all other
// submodules.

mod bit_flags;
mod completion;
mod device;
mod memory;
mod queue_pair;
mod work_request;

pub(crate) use self::queue_pair::QpOwner;
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
    memory::{
        AccessFlags, Advice, DeviceMemory, MemoryRegion, MemoryWindow, ProtectionDomain,
        ThreadDomain,
    },
    queue_pair::{
        AltPath, MigState, ModifyError, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
        QueuePair, RawRecv, SharedReceiveQueue, SrqAttr,
    },
    work_request::{
        AddressHandle, AhAttr, GlobalRoute, Inline, Payload, PostError, RawSend, RawSge, RecvWr,
        RemoteAddr, SendOp, SendWr, Sge, SgeList,
    },
};

/// Checks at compile time that the types are `Send` and `Sync`, as the module documentation states.
#[cfg(test)]
const _: () = {
    const fn assert_send_sync<T: Send + Sync>() {}

    assert_send_sync::<DeviceList>();
    assert_send_sync::<Device>();
    assert_send_sync::<Context>();
    assert_send_sync::<ProtectionDomain>();
    assert_send_sync::<ThreadDomain>();
    assert_send_sync::<MemoryRegion>();
    assert_send_sync::<DeviceMemory>();
    assert_send_sync::<MemoryWindow>();
    assert_send_sync::<CompletionChannel>();
    assert_send_sync::<CompletionQueue>();
    assert_send_sync::<SharedReceiveQueue>();
    assert_send_sync::<QueuePair>();
    assert_send_sync::<AddressHandle>();
    assert_send_sync::<WorkCompletion>();
    assert_send_sync::<SendWr<'_>>();
    assert_send_sync::<RecvWr<'_>>();
};
