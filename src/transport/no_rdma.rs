//! What stands in the place of `rdma` in a build with neither of the features `rdma` and `dlopen`:
//! the same types, of which there are no values, so that the rest of the crate is the same.
#![allow(
    unsafe_code,
    reason = "the functions are as unsafe as those for which they stand"
)]

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    DeviceCounters,
    budget::Customer,
    queues::{Done, SendFlags, SendOp, Sge, TransportParts, WorkId},
};
use crate::{
    config::Config,
    error::Error,
    proto::{CloseReason, CmInput, ReadDepth, TransportTraits},
    remote_access::RemoteAccess,
    status::OsError,
};

/// Defines types without values, with methods that so can never be called.
macro_rules! without_values {
    ($(
        $name:ident {
            $( fn $method:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?; )*
            $( unsafe fn $danger:ident($($given:ident: $of:ty),*) -> $returned:ty; )*
        }
    )*) => { $(
        #[derive(Clone, Debug)]
        pub(crate) struct $name(Infallible);

        impl $name {
            $(
                pub(crate) fn $method(&self, $(_: $type),*) $(-> $result)? {
                    match self.0 {}
                }
            )*
            $(
                pub(crate) unsafe fn $danger(&self, $(_: $of),*) -> $returned {
                    match self.0 {}
                }
            )*
        }
    )* };
}

without_values! {
    MemoryRegion {
        fn len() -> usize;
        fn addr() -> u64;
        fn lkey() -> u32;
        fn rkey() -> u32;
        fn as_ptr() -> *mut u8;
        fn copy_in(offset: usize, bytes: &[u8]);
        fn copy_out(offset: usize, bytes: &mut [u8]);
    }
    Domain {
        fn has(region: &MemoryRegion) -> bool;
        fn allocate(len: usize, remote: RemoteAccess) -> Result<MemoryRegion, OsError>;
        fn read_target(
            region: &MemoryRegion,
            part: Range<usize>,
            peer_may_write: bool
        ) -> Result<Option<MemoryRegion>, OsError>;
        fn peers_write_read_targets() -> bool;
        fn longest_operation() -> u64;
        fn traits() -> TransportTraits;
        fn device_name() -> String;
        fn device_counters() -> DeviceCounters;
        unsafe fn register_read_target(
            start: *mut u8,
            len: usize
        ) -> Result<MemoryRegion, OsError>;
        unsafe fn expose(start: *mut u8, len: usize) -> Result<MemoryRegion, OsError>;
    }
    QueuePair {
        fn max_inline() -> usize;
        fn set_min_rnr_timer() -> Result<(), OsError>;
        fn fail() -> Result<(), OsError>;
        unsafe fn post_recv(id: WorkId, sge: Option<Sge>) -> Result<(), OsError>;
        unsafe fn post_send(
            id: WorkId,
            op: SendOp,
            sges: &[Sge],
            flags: SendFlags
        ) -> Result<(), OsError>;
    }
    SharedReceiveQueue {
        unsafe fn post_recv(id: WorkId, sge: Sge) -> Result<(), OsError>;
    }
    CompletionQueue {
        fn poll() -> Result<usize, OsError>;
        fn done(number: usize) -> Done;
        fn arm() -> Result<(), OsError>;
        fn capacity() -> usize;
    }
    CompletionEvents {
        fn clear();
    }
    ConnectRequest {
        fn listener() -> Option<u64>;
        fn peer_addr() -> Option<SocketAddr>;
        fn private_data() -> &[u8];
        fn reads() -> ReadDepth;
        fn reject(private_data: &[u8]);
    }
    Event {
        fn key() -> u64;
        fn is_disconnect() -> bool;
        fn listener_lost() -> Option<CloseReason>;
        fn input() -> CmInput<'_>;
    }
    ConnectionManager {
        fn poll() -> Result<Option<Report>, OsError>;
    }
    ConnectionId {
        fn create_id(manager: &ConnectionManager, key: u64) -> Result<(), OsError>;
        fn set_ack_timeout(config: &Config);
        fn resolve_addr(peer: SocketAddr, timeout: Duration) -> Result<(), OsError>;
        fn resolve_route(timeout: Duration) -> Result<(), OsError>;
        fn connect(private_data: &[u8], config: &Config) -> Result<(), OsError>;
        fn accept(private_data: &[u8], config: &Config) -> Result<(), OsError>;
        fn reject(private_data: &[u8]) -> Result<(), OsError>;
        fn disconnect() -> Result<(), OsError>;
        fn create_transport(
            manager: &mut ConnectionManager,
            key: u64,
            config: &Config,
            customer: Customer
        ) -> Result<TransportParts, OsError>;
        fn discard();
        fn local_addr() -> Option<SocketAddr>;
        fn take_problem() -> Option<Error>;
        fn is_withdrawn(error: OsError) -> bool;
    }
    ListenId {
        fn has_device() -> bool;
        fn local_addr() -> Option<SocketAddr>;
    }
}

pub(crate) enum Report {
    Request(ConnectRequest),
    Event(Event),
}

impl ConnectionManager {
    pub(crate) fn new() -> Result<Self, OsError> {
        Err(OsError::new("rdma_create_event_channel", libc::ENOSYS))
    }
}

impl ConnectionId {
    pub(crate) fn new(manager: &ConnectionManager) -> Self {
        match manager.0 {}
    }

    pub(crate) fn of_request(request: ConnectRequest, _: u64) -> Self {
        match request.0 {}
    }
}

impl ListenId {
    pub(crate) fn bind(
        manager: &ConnectionManager,
        _: u64,
        _: SocketAddr,
        _: u16,
    ) -> Result<Self, OsError> {
        match manager.0 {}
    }
}

impl AsFd for CompletionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

impl AsFd for ConnectionManager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

impl fmt::Display for Event {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}
