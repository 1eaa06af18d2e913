//! Listens, connects, accepts, rejects and disconnects.
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

/// The type of the librdmacm functions that reject a connection request.
type Reject = unsafe extern "C" fn(*mut ffi::rdma_cm_id, *const libc::c_void, u8) -> c_int;

impl CmId {
    /// The number of ports that [`listen_on`](Self::listen_on) tries if the port is 0. The
    /// connection manager chooses each port at random, so this number is sufficient even if most
    /// ports are in use.
    pub const FREE_PORT_TRIES: u32 = 64;

    /// Creates an id with `create`, binds it to `addr` with [`bind_addr`](Self::bind_addr), and
    /// listens with [`listen`](Self::listen). Up to `backlog` requests are queued until the program
    /// reads them.
    ///
    /// If the port of `addr` is 0, the connection manager chooses a free port. It does not check
    /// TCP sockets, although iWARP and TCP share their port numbers. If a TCP socket uses the
    /// chosen port, `rdma_listen(3)` fails, and this function tries again with a new id. It makes
    /// at most [`FREE_PORT_TRIES`](Self::FREE_PORT_TRIES) attempts.
    ///
    /// # Errors
    ///
    /// Returns the errors of `create`, [`bind_addr`](Self::bind_addr) and [`listen`](Self::listen).
    /// If the port is 0, `EADDRINUSE` means that all chosen ports were in use. If another id uses
    /// the port and one of the two ids is bound to all addresses, the kernel returns
    /// `EADDRNOTAVAIL`, and this function returns `EADDRINUSE` instead.
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

    /// Returns true if `error` means that the port of `addr` is in use. To check this, binds a new
    /// id to the same address with port 0. If this succeeds, the address is valid, so the port is
    /// in use.
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

    /// Listens for connect requests. A CONNECT_REQUEST event reports each request.
    ///
    /// Up to `backlog` requests are queued until the program reads them.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_listen(3)`](https://man7.org/linux/man-pages/man3/rdma_listen.3.html).
    #[doc(alias = "rdma_listen")]
    pub fn listen(&mut self, backlog: i32) -> Result<(), OsError> {
        self.inner.with(|id, local| {
            // The flag is set even if the call fails, because the call can fail after the kernel
            // has started to listen.
            local.listens = true;
            // SAFETY: `id` exists, and the lock of its channel is held.
            cvt("rdma_listen", || unsafe { ffi::rdma_listen(id, backlog) }).map(drop)
        })
    }

    /// Requests a connection.
    ///
    /// The event ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR reports the result. If the
    /// program did not create the queue pair through the id, CONNECT_RESPONSE replaces ESTABLISHED.
    ///
    /// # Errors
    ///
    /// Returns `EMSGSIZE` if the private data is longer than [`PrivateData::CONNECT_MAX`] bytes, or
    /// [`PrivateData::UD_CONNECT_MAX`] bytes for datagrams. Returns `EINVAL` if the address is not
    /// resolved yet. Otherwise returns the errors of
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
            // SAFETY: `id` exists and has a device, and the lock of its channel is held. `raw` is a
            // local variable that points into `param`, which outlives the call.
            unsafe { ffi::rdma_connect(id, &raw mut raw) }
        })?;
        self.wait_if_sync(
            CALL,
            &[CmEventType::ESTABLISHED, CmEventType::CONNECT_RESPONSE],
        )
    }

    /// Accepts a connection request.
    ///
    /// The event ESTABLISHED reports the result on both sides. For datagrams, only the peer
    /// receives the event.
    ///
    /// # Errors
    ///
    /// Returns `EMSGSIZE` if the private data is longer than [`PrivateData::ACCEPT_MAX`] bytes, or
    /// [`PrivateData::UD_ACCEPT_MAX`] bytes for datagrams. Otherwise returns the errors of
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
            // SAFETY: `id` exists and has a device, and the lock of its channel is held. `raw` is a
            // local variable that points into `param`, which outlives the call.
            unsafe { ffi::rdma_accept(id, &raw mut raw) }
        })?;
        if datagram {
            return Ok(());
        }
        self.wait_if_sync(CALL, &[CmEventType::ESTABLISHED])
    }

    /// Rejects a connection request. The peer's program receives `private_data`.
    ///
    /// The peer's REJECTED event has the reason CONSUMER_DEFINED.
    ///
    /// # Errors
    ///
    /// Returns `EMSGSIZE` if the private data is longer than [`PrivateData::REJECT_MAX`] bytes, or
    /// [`PrivateData::UD_ACCEPT_MAX`] bytes for datagrams. Otherwise returns the errors of
    /// [`rdma_reject(3)`](https://man7.org/linux/man-pages/man3/rdma_reject.3.html).
    #[doc(alias = "rdma_reject")]
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        self.reject_with("rdma_reject", ffi::rdma_reject, private_data)
    }

    /// Rejects a connection request because of its options of [enhanced connection
    /// establishment](super::Ece).
    ///
    /// The peer's REJECTED event has the reason VENDOR_OPTION_NOT_SUPPORTED.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`reject`](Self::reject).
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        self.reject_with("rdma_reject_ece", ffi::rdma_reject_ece, private_data)
    }

    fn reject_with(
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
            // SAFETY: `id` exists, and the lock of its channel is held. `data` is a local variable
            // with fewer than 256 bytes.
            unsafe { reject(id, data.as_ptr().cast(), data.len() as u8) }
        })
    }

    /// Disconnects, and moves the queue pair to the error state immediately.
    ///
    /// The event DISCONNECTED reports the result on both sides. This side receives the event after
    /// the peer has also disconnected.
    ///
    /// If the id is not connected, the call may have no effect and cause no event. A synchronous id
    /// waits for the event only if the id is connected. If the peer does not respond, that wait
    /// takes about a minute.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_disconnect(3)`](https://man7.org/linux/man-pages/man3/rdma_disconnect.3.html):
    /// `EINVAL` if the id has not been connected yet. For a synchronous id, returns `ETIMEDOUT` if
    /// the id is disconnected but the peer has not confirmed the disconnection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<(), OsError> {
        const CALL: &str = "rdma_disconnect";
        self.inner.call(CALL, |id| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            unsafe { ffi::rdma_disconnect(id) }
        })?;
        if self.mode.is_connected() {
            self.wait_if_sync(CALL, &[CmEventType::DISCONNECTED])?;
        }
        Ok(())
    }

    /// Completes the establishment of a connection after a CONNECT_RESPONSE.
    ///
    /// This function is only for ids whose queue pair the program creates itself, not through the
    /// id. Before this call, the program must move that queue pair to the RTS state.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the program created the queue pair through the id, because librdmacm
    /// then completes the establishment itself. Otherwise returns the errors of
    /// [`rdma_establish(3)`](https://man7.org/linux/man-pages/man3/rdma_establish.3.html).
    #[doc(alias = "rdma_establish")]
    pub fn establish(&mut self) -> Result<(), OsError> {
        self.inner.call("rdma_establish", |id| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            unsafe { ffi::rdma_establish(id) }
        })?;
        self.mode.set_connected(true);
        Ok(())
    }

    /// Notifies the connection manager that a message has arrived before the event ESTABLISHED.
    ///
    /// The device reports such a message with the asynchronous event
    /// [`COMM_EST`](crate::verbs::AsyncEventType::COMM_EST).
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_notify(3)`](https://man7.org/linux/man-pages/man3/rdma_notify.3.html).
    #[doc(alias = "rdma_notify")]
    pub fn notify_comm_est(&mut self) -> Result<(), OsError> {
        self.inner.call("rdma_notify", |id| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            unsafe { ffi::rdma_notify(id, ffi::ibv_event_type::IBV_EVENT_COMM_EST) }
        })
    }

    /// Returns whether this id is for datagrams.
    ///
    /// For datagram ids, the connection manager uses different messages, which have different
    /// limits for private data.
    fn is_datagram(&self) -> bool {
        self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            QpType::from_raw(unsafe { (*id).qp_type }) == QpType::UD
        })
    }
}
