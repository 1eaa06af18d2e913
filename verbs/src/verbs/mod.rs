//! libibverbs: devices, memory, queues and work requests as objects that clean up after themselves.
//!
//! # Objects
//!
//! | Object | Created from | C |
//! |---|---|---|
//! | [`DeviceList`], [`Device`] | | `ibv_get_device_list` |
//! | [`Context`] | a device | `ibv_open_device` |
//! | [`ProtectionDomain`] | a context | `ibv_alloc_pd` |
//! | [`MemoryRegion`] | a protection domain | `ibv_reg_mr` |
//! | [`CompletionChannel`] | a context | `ibv_create_comp_channel` |
//! | [`CompletionQueue`] | a context, optionally a channel | `ibv_create_cq` |
//! | [`SharedReceiveQueue`] | a protection domain | `ibv_create_srq` |
//! | [`QueuePair`] | a protection domain and completion queues | `ibv_create_qp` |
//! | [`AddressHandle`] | a protection domain | `ibv_create_ah` |
//!
//! # Resource cleanup
//!
//! All handles are reference counted, and each object holds the objects from which it was created.
//! So handles may be dropped in any order: the C objects are destroyed in the order that libibverbs
//! accepts. A queue pair also holds the memory regions of all requests posted on it, and a region's
//! memory is unmapped only after it has been deregistered.
//!
//! When libibverbs destroys an object, it waits for events of that object that were read and not
//! acknowledged. This module acknowledges each event before it returns it, so destruction never
//! blocks.
//!
//! # Thread safety
//!
//! All handles are [`Send`] and [`Sync`], as libibverbs locks each object itself. When several
//! threads post on one queue pair, each call's requests stay together, in some order of the calls.
//! When several threads poll one completion queue, each completion is returned to one of them.
//!
//! # Memory
//!
//! The device, and a peer that has been given a key, may change registered memory at any time. No
//! safe method returns a reference to it: [`MemoryRegion::copy_in`] and [`MemoryRegion::copy_out`]
//! copy.

// This layer owns every object of libibverbs that the crate uses. It guarantees that safe code
// cannot use one after its destruction, post what a queue cannot take, or alias memory that the
// device writes; what it cannot check is an `unsafe fn` of the crate, for the layers above to
// justify. It is called by `cm`, by `rsocket`, by the engine's memory and queues, and by programs.
// It never blocks except in functions whose name or documentation mentions it, starts no thread,
// and does not know connections or messages: its users connect queue pairs.
//
// Its folders use each other in one direction only:
// device ← memory, completion ← work_request ← queue_pair.

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
    memory::{AccessFlags, Advice, DeviceMemory, MemoryRegion, ProtectionDomain},
    queue_pair::{
        AltPath, MigState, ModifyError, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
        QueuePair, SharedReceiveQueue, SrqAttr,
    },
    work_request::{
        AddressHandle, AhAttr, GlobalRoute, Inline, Payload, PostError, RawSend, RawSge, RecvWr,
        RemoteAddr, SendOp, SendWr, Sge, SgeList,
    },
};

/// Asserts the statements above on threads.
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
