#![allow(unsafe_code)]

use std::net::SocketAddr;

use libc::c_int;
use rdma_status::OsError;

use crate::sys::{cvt, ffi, sockaddr};

/// The multicast groups that an id has joined and not left.
#[derive(Default)]
pub(super) struct Groups(Vec<SocketAddr>);

impl Groups {
    /// Records that the id has joined `group`.
    pub(super) fn joined(&mut self, group: SocketAddr) {
        self.0.push(group);
    }

    /// Leaves one group.
    ///
    /// # Safety
    ///
    /// `id` is the id whose groups these are. It exists, and is used by nothing else during the
    /// call. All events that were read of it are acknowledged, so the call does not block.
    pub(super) unsafe fn leave(
        &mut self,
        id: *mut ffi::rdma_cm_id,
        group: SocketAddr,
    ) -> Result<(), OsError> {
        if let Some(place) = self.0.iter().position(|joined| *joined == group) {
            self.0.swap_remove(place);
        }
        // SAFETY: as the caller's.
        cvt("rdma_leave_multicast", unsafe { leave(id, group) }).map(drop)
    }

    /// Leaves all groups, as must be done before the queue pair and the id are destroyed.
    ///
    /// The kernel refuses to destroy a queue pair that is in one, which librdmacm does not report;
    /// and the memory that librdmacm allocated for a group is not freed with the id.
    ///
    /// # Safety
    ///
    /// As [`leave`](Self::leave).
    pub(super) unsafe fn leave_all(&mut self, id: *mut ffi::rdma_cm_id) {
        for group in self.0.drain(..) {
            // SAFETY: as the caller's.
            if let Err(error) = cvt("rdma_leave_multicast", unsafe { leave(id, group) }) {
                warn!("{group}: {error}");
            }
        }
    }
}

/// # Safety
///
/// As [`Groups::leave`].
unsafe fn leave(id: *mut ffi::rdma_cm_id, group: SocketAddr) -> c_int {
    let mut addr = sockaddr::from_std(group);
    // SAFETY: the caller vouches for the id; the address is a local as large as any.
    unsafe { ffi::rdma_leave_multicast(id, (&raw mut addr).cast()) }
}
