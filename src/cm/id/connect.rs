//! Listening, connecting, accepting, rejecting, disconnecting.
#![allow(unsafe_code)]

use std::net::SocketAddr;

use super::CmId;
use crate::{
    cm::{ConnParam, PrivateData},
    status::OsError,
    sys::{ffi, sockaddr},
};

impl CmId {
    /// Takes connect requests from now on, `backlog` at a time; each is a CONNECT_REQUEST.
    ///
    /// # Errors
    ///
    /// Of [`rdma_listen(3)`](https://man7.org/linux/man-pages/man3/rdma_listen.3.html).
    #[doc(alias = "rdma_listen")]
    pub fn listen(&mut self, backlog: i32) -> Result<(), OsError> {
        self.step("rdma_listen", |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_listen(id, backlog) }
        })
    }

    /// Asks the peer for a connection: ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR, and CONNECT_RESPONSE instead of the first where
    /// the queue pair is not the id's.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` above [`PrivateData::CONNECT_MAX`] bytes of private data; others of
    /// [`rdma_connect(3)`](https://man7.org/linux/man-pages/man3/rdma_connect.3.html).
    #[doc(alias = "rdma_connect")]
    pub fn connect(&mut self, param: &ConnParam) -> Result<(), OsError> {
        param
            .private_data
            .check("rdma_connect", PrivateData::CONNECT_MAX)?;
        let mut raw = param.to_raw();
        self.step("rdma_connect", |id| {
            // SAFETY: the id exists and is locked; the parameters are a local that points into `param`.
            unsafe { ffi::rdma_connect(id, &raw mut raw) }
        })
    }

    /// Accepts a request: ESTABLISHED on both sides.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` above [`PrivateData::ACCEPT_MAX`] bytes of private data; others of
    /// [`rdma_accept(3)`](https://man7.org/linux/man-pages/man3/rdma_accept.3.html).
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self, param: &ConnParam) -> Result<(), OsError> {
        param
            .private_data
            .check("rdma_accept", PrivateData::ACCEPT_MAX)?;
        let mut raw = param.to_raw();
        self.step("rdma_accept", |id| {
            // SAFETY: the id exists and is locked; the parameters are a local that points into `param`.
            unsafe { ffi::rdma_accept(id, &raw mut raw) }
        })
    }

    /// Rejects a request, with bytes for the peer's program: its REJECTED has the reason CONSUMER_DEFINED.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` above [`PrivateData::REJECT_MAX`] bytes; others of
    /// [`rdma_reject(3)`](https://man7.org/linux/man-pages/man3/rdma_reject.3.html).
    #[doc(alias = "rdma_reject")]
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        let data = PrivateData::try_from(private_data)?;
        data.check("rdma_reject", PrivateData::REJECT_MAX)?;
        self.step("rdma_reject", |id| {
            // SAFETY: the id exists and is locked; the bytes are a local's, fewer than 256.
            unsafe { ffi::rdma_reject(id, data.as_ptr().cast(), data.len() as u8) }
        })
    }

    /// Disconnects: DISCONNECTED on both sides. The queue pair goes to its error state.
    ///
    /// # Errors
    ///
    /// Of [`rdma_disconnect(3)`](https://man7.org/linux/man-pages/man3/rdma_disconnect.3.html): `EINVAL` when there is no connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<(), OsError> {
        self.step("rdma_disconnect", |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_disconnect(id) }
        })
    }

    /// After a CONNECT_RESPONSE, when the program has moved its own queue pair to its sending state: completes the connection.
    ///
    /// # Errors
    ///
    /// Of [`rdma_establish(3)`](https://man7.org/linux/man-pages/man3/rdma_establish.3.html).
    #[doc(alias = "rdma_establish")]
    pub fn establish(&mut self) -> Result<(), OsError> {
        self.step("rdma_establish", |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_establish(id) }
        })
    }

    /// Tells the connection manager that the device saw the peer's first message before ESTABLISHED (async event COMM_EST).
    ///
    /// # Errors
    ///
    /// Of [`rdma_notify(3)`](https://man7.org/linux/man-pages/man3/rdma_notify.3.html).
    #[doc(alias = "rdma_notify")]
    pub fn notify_comm_est(&mut self) -> Result<(), OsError> {
        self.step("rdma_notify", |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_notify(id, ffi::ibv_event_type::IBV_EVENT_COMM_EST) }
        })
    }

    /// Joins a multicast group: MULTICAST_JOIN, with the way to the group, or MULTICAST_ERROR. For ids of datagrams.
    ///
    /// # Errors
    ///
    /// Of [`rdma_join_multicast(3)`](https://man7.org/linux/man-pages/man3/rdma_join_multicast.3.html).
    #[doc(alias = "rdma_join_multicast")]
    pub fn join_multicast(&mut self, group: SocketAddr) -> Result<(), OsError> {
        let mut group = sockaddr::from_std(group);
        self.step("rdma_join_multicast", |id| {
            // SAFETY: the id exists and is locked; the address is a local of the size of any. The context is never followed.
            unsafe { ffi::rdma_join_multicast(id, (&raw mut group).cast(), std::ptr::null_mut()) }
        })
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// Of [`rdma_leave_multicast(3)`](https://man7.org/linux/man-pages/man3/rdma_leave_multicast.3.html).
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&mut self, group: SocketAddr) -> Result<(), OsError> {
        let mut group = sockaddr::from_std(group);
        self.step("rdma_leave_multicast", |id| {
            // SAFETY: the id exists and is locked; the address is a local of the size of any.
            unsafe { ffi::rdma_leave_multicast(id, (&raw mut group).cast()) }
        })
    }
}
