//! Listening, connecting, accepting, rejecting, disconnecting.
#![allow(unsafe_code)]

use std::net::SocketAddr;

use libc::c_int;
use rdma_status::{CmEventType, OsError};

use super::CmId;
use crate::{
    cm::{ConnParam, PrivateData},
    sys::{cvt, ffi},
    verbs::QpType,
};

/// A call that rejects a request.
type Reject = unsafe extern "C" fn(*mut ffi::rdma_cm_id, *const libc::c_void, u8) -> c_int;

impl CmId {
    /// The number of ports that are tried when the connection manager chooses them. It chooses at
    /// random, so that a free one is found even if most are in use.
    pub const FREE_PORT_TRIES: u32 = 64;

    /// Listens on `addr` with an id that `create` makes: [`bind_addr`](Self::bind_addr) and
    /// [`listen`](Self::listen).
    ///
    /// With port 0 the connection manager chooses a free port. It does not know which ports TCP
    /// uses, but iWARP shares them: if TCP uses the port, `rdma_listen(3)` fails. The call then
    /// tries another id, up to 64 of them. Up to `backlog` requests are queued until they are read.
    ///
    /// # Errors
    ///
    /// Those of the two calls, and of `create`. `EADDRINUSE` with port 0 if all ports that the call
    /// tried were in use. `EADDRINUSE` also if another id listens on the port on all addresses, or
    /// listens on it on one address and `addr` stands for all; the kernel returns `EADDRNOTAVAIL`
    /// in this case.
    pub fn listen_on(
        create: impl Fn() -> Result<Self, OsError>,
        addr: SocketAddr,
        backlog: i32,
    ) -> Result<Self, OsError> {
        let mut tries = if addr.port() == 0 {
            Self::FREE_PORT_TRIES
        } else {
            1
        };
        loop {
            let mut id = create()?;
            tries -= 1;
            match id.bind_addr(addr).and_then(|()| id.listen(backlog)) {
                Ok(()) => return Ok(id),
                Err(error) if error.errno == libc::EADDRINUSE && tries > 0 => {}
                Err(error) if Self::is_port_taken(&create, addr, error) => {
                    return Err(OsError::new(error.call, libc::EADDRINUSE));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether binding `addr` failed because of its port: with port 0 the address is available.
    fn is_port_taken(
        create: impl Fn() -> Result<Self, OsError>,
        mut addr: SocketAddr,
        error: OsError,
    ) -> bool {
        if error.errno != libc::EADDRNOTAVAIL || addr.port() == 0 {
            return false;
        }
        addr.set_port(0);
        create().and_then(|mut id| id.bind_addr(addr)).is_ok()
    }

    /// Listens for connect requests; each is a CONNECT_REQUEST.
    ///
    /// Up to `backlog` of them are queued until they are read.
    ///
    /// # Errors
    ///
    /// Those of [`rdma_listen(3)`](https://man7.org/linux/man-pages/man3/rdma_listen.3.html).
    #[doc(alias = "rdma_listen")]
    pub fn listen(&mut self, backlog: i32) -> Result<(), OsError> {
        self.inner.with(|id, local| {
            // Set even if the call fails, as it can fail after the kernel's part has succeeded.
            local.listens = true;
            // SAFETY: the id exists and is locked.
            cvt("rdma_listen", unsafe { ffi::rdma_listen(id, backlog) }).map(drop)
        })
    }

    /// Requests a connection.
    ///
    /// The result is ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR. If the id does not own
    /// the queue pair, CONNECT_RESPONSE takes the place of ESTABLISHED.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` above [`PrivateData::CONNECT_MAX`] bytes of private data, for datagrams
    /// [`PrivateData::UD_CONNECT_MAX`]; `EINVAL` before the address is resolved; otherwise those of
    /// [`rdma_connect(3)`](https://man7.org/linux/man-pages/man3/rdma_connect.3.html).
    #[doc(alias = "rdma_connect")]
    pub fn connect(&mut self, param: &ConnParam) -> Result<(), OsError> {
        const CALL: &str = "rdma_connect";
        let limit = if self.is_datagram() {
            PrivateData::UD_CONNECT_MAX
        } else {
            PrivateData::CONNECT_MAX
        };
        param.private_data.check(CALL, limit)?;
        let mut raw = param.to_raw();
        self.inner.call_bound(CALL, |id| {
            // SAFETY: the id exists, is locked, and has a device; the parameters are a local that
            // points into `param`.
            unsafe { ffi::rdma_connect(id, &raw mut raw) }
        })?;
        self.complete(
            CALL,
            &[CmEventType::ESTABLISHED, CmEventType::CONNECT_RESPONSE],
        )
    }

    /// Accepts a request.
    ///
    /// The result is ESTABLISHED on both sides, for datagrams on the peer's only.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` above [`PrivateData::ACCEPT_MAX`] bytes of private data, for datagrams
    /// [`PrivateData::UD_ACCEPT_MAX`]; otherwise those of
    /// [`rdma_accept(3)`](https://man7.org/linux/man-pages/man3/rdma_accept.3.html).
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self, param: &ConnParam) -> Result<(), OsError> {
        const CALL: &str = "rdma_accept";
        let datagram = self.is_datagram();
        let limit = if datagram {
            PrivateData::UD_ACCEPT_MAX
        } else {
            PrivateData::ACCEPT_MAX
        };
        param.private_data.check(CALL, limit)?;
        let mut raw = param.to_raw();
        self.inner.call_bound(CALL, |id| {
            // SAFETY: the id exists, is locked, and has a device; the parameters are a local that
            // points into `param`.
            unsafe { ffi::rdma_accept(id, &raw mut raw) }
        })?;
        if datagram {
            return Ok(());
        }
        self.complete(CALL, &[CmEventType::ESTABLISHED])
    }

    /// Rejects a request, with private data for the peer's program.
    ///
    /// The peer's REJECTED has the reason CONSUMER_DEFINED.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` above [`PrivateData::REJECT_MAX`] bytes, for datagrams
    /// [`PrivateData::UD_ACCEPT_MAX`]; otherwise those of
    /// [`rdma_reject(3)`](https://man7.org/linux/man-pages/man3/rdma_reject.3.html).
    #[doc(alias = "rdma_reject")]
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        self.reject_by("rdma_reject", ffi::rdma_reject, private_data)
    }

    /// Rejects a request because of its options of [enhanced connection establishment](super::Ece).
    ///
    /// The peer's REJECTED has the reason VENDOR_OPTION_NOT_SUPPORTED.
    ///
    /// # Errors
    ///
    /// Those of [`reject`](Self::reject).
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        self.reject_by("rdma_reject_ece", ffi::rdma_reject_ece, private_data)
    }

    fn reject_by(
        &mut self,
        name: &'static str,
        reject: Reject,
        private_data: &[u8],
    ) -> Result<(), OsError> {
        let limit = if self.is_datagram() {
            PrivateData::UD_ACCEPT_MAX
        } else {
            PrivateData::REJECT_MAX
        };
        let data =
            PrivateData::try_from(private_data).map_err(|error| OsError::new(name, error.errno))?;
        data.check(name, limit)?;
        self.inner.call(name, |id| {
            // SAFETY: the id exists and is locked; the bytes belong to a local and are fewer than
            // 256.
            unsafe { reject(id, data.as_ptr().cast(), data.len() as u8) }
        })
    }

    /// Disconnects, and moves the queue pair to its error state immediately.
    ///
    /// The result is DISCONNECTED on both sides, on this one when the peer disconnects as well.
    ///
    /// Without a connection it may have no effect, and cause no event. A synchronous id waits for
    /// the event only if there is a connection; if the peer does not answer, for about a minute.
    ///
    /// # Errors
    ///
    /// Those of
    /// [`rdma_disconnect(3)`](https://man7.org/linux/man-pages/man3/rdma_disconnect.3.html):
    /// `EINVAL` if nothing was connected yet. For a synchronous id `ETIMEDOUT` if it is
    /// disconnected and the peer did not confirm it.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<(), OsError> {
        const CALL: &str = "rdma_disconnect";
        self.inner.call(CALL, |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_disconnect(id) }
        })?;
        if self.mode.is_connected() {
            self.complete(CALL, &[CmEventType::DISCONNECTED])?;
        }
        Ok(())
    }

    /// Completes the connection after a CONNECT_RESPONSE.
    ///
    /// The program must have moved its own queue pair to the RTS state before.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the id owns the queue pair: librdmacm did it already; otherwise those of
    /// [`rdma_establish(3)`](https://man7.org/linux/man-pages/man3/rdma_establish.3.html).
    #[doc(alias = "rdma_establish")]
    pub fn establish(&mut self) -> Result<(), OsError> {
        self.inner.call("rdma_establish", |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_establish(id) }
        })?;
        self.mode.set_connected(true);
        Ok(())
    }

    /// Notifies the connection manager of a message that arrived before ESTABLISHED.
    ///
    /// The device reports such a message by the asynchronous event
    /// [`COMM_EST`](crate::verbs::AsyncEventType::COMM_EST).
    ///
    /// # Errors
    ///
    /// Those of [`rdma_notify(3)`](https://man7.org/linux/man-pages/man3/rdma_notify.3.html).
    #[doc(alias = "rdma_notify")]
    pub fn notify_comm_est(&mut self) -> Result<(), OsError> {
        self.inner.call("rdma_notify", |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_notify(id, ffi::ibv_event_type::IBV_EVENT_COMM_EST) }
        })
    }

    /// Returns whether it is for datagrams.
    ///
    /// They are "connected" by other messages, with other limits for private data.
    fn is_datagram(&self) -> bool {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            QpType::from_raw(unsafe { (*id).qp_type }) == QpType::UD
        })
    }
}
