//! Joins and leaves multicast groups.
#![allow(unsafe_code)]

use std::{net::SocketAddr, ptr};

use libc::c_int;
use rdma_status::{CmEventType, OsError};

use super::CmId;
use crate::sys::{
    consts::{RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS},
    cvt, ffi, sockaddr,
};

impl CmId {
    /// Joins a multicast group. The id must be a datagram id.
    ///
    /// The event MULTICAST_JOIN or MULTICAST_ERROR reports the result. MULTICAST_JOIN contains the
    /// path to the group.
    ///
    /// If the id has a queue pair when the event is read, the queue pair receives the messages that
    /// are sent to the group. The id leaves the group when
    /// [`leave_multicast`](Self::leave_multicast) is called, or when the queue pair or the id is
    /// dropped. One of these actions is necessary even after MULTICAST_ERROR, because it releases
    /// the memory that librdmacm has allocated for the group.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`rdma_join_multicast(3)`][man].
    ///
    /// [man]: https://man7.org/linux/man-pages/man3/rdma_join_multicast.3.html
    #[doc(alias = "rdma_join_multicast")]
    pub fn join_multicast(&mut self, group: SocketAddr) -> Result<(), OsError> {
        let call = "rdma_join_multicast";
        self.join(call, group, |id, addr| {
            // SAFETY: `id` exists, the lock of its channel is held, and `addr` points to a valid
            // address. librdmacm does not dereference the context, which is null.
            unsafe { ffi::rdma_join_multicast(id, addr, ptr::null_mut()) }
        })
    }

    /// Joins a multicast group for sending only: the id receives no messages of the group.
    ///
    /// In all other respects, this function behaves like [`join_multicast`](Self::join_multicast).
    ///
    /// # Errors
    ///
    /// Returns `EOPNOTSUPP` if the subnet manager does not support send-only members. Otherwise
    /// returns the errors of [`rdma_join_multicast_ex(3)`][man].
    ///
    /// [man]: https://man7.org/linux/man-pages/man3/rdma_join_multicast_ex.3.html
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast_send_only(&mut self, group: SocketAddr) -> Result<(), OsError> {
        let call = "rdma_join_multicast_ex";
        let flags = ffi::rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        self.join(call, group, |id, addr| {
            let mut attr = ffi::rdma_cm_join_mc_attr_ex {
                comp_mask: RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
                join_flags: flags.0,
                addr,
            };
            // SAFETY: `id` exists, and the lock of its channel is held. `attr` is a local variable,
            // and `addr` points to a valid address. librdmacm does not dereference the context,
            // which is null.
            unsafe { ffi::rdma_join_multicast_ex(id, &raw mut attr, ptr::null_mut()) }
        })
    }

    fn join(
        &mut self,
        call: &'static str,
        group: SocketAddr,
        join: impl FnOnce(*mut ffi::rdma_cm_id, *mut libc::sockaddr) -> c_int,
    ) -> Result<(), OsError> {
        let mut addr = sockaddr::from_std(group);
        self.inner.with(|id, local| {
            cvt(call, || join(id, (&raw mut addr).cast()))?;
            local.groups.record_join(group);
            Ok::<_, OsError>(())
        })?;
        self.wait_if_sync(call, &[CmEventType::MULTICAST_JOIN])
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// Returns `EADDRNOTAVAIL` if the id has not joined the group. Otherwise returns the errors of
    /// [`rdma_leave_multicast(3)`][man].
    ///
    /// [man]: https://man7.org/linux/man-pages/man3/rdma_leave_multicast.3.html
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&mut self, group: SocketAddr) -> Result<(), OsError> {
        self.inner.with(|id, local| {
            // SAFETY: `id` exists, the lock of its channel is held, and all events that were read
            // have been acknowledged.
            unsafe { local.groups.leave(id, group) }
        })
    }
}
