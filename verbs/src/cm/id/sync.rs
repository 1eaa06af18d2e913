//! Synchronous ids, whose operations block until they are complete.
//!
//! librdmacm has a synchronous mode of its own, in which a call blocks in the kernel until an event
//! arrives. This crate would hold the id's lock during that call, and a thread that drops the id's
//! queue pair would have to wait for the lock. Therefore this module does not use that mode: a
//! synchronous id is an asynchronous id of librdmacm with its own channel, and each operation waits
//! for its event without holding a lock.
#![allow(unsafe_code)]

use std::{
    ptr::{self, NonNull},
    time::{Duration, Instant},
};

use rdma_status::{CmEventType, OsError};

use super::{CmId, cm_id::Mode};
use crate::{
    cm::{AddrInfo, CmEvent, EventChannel, PortSpace},
    sys::{cvt, ffi},
};

impl CmId {
    /// Creates a synchronous id, whose operations block until they are complete.
    ///
    /// An operation with a timeout returns within that time. If the peer does not respond, other
    /// operations fail after about a minute, when the connection manager gives up. Only
    /// [`get_request`](Self::get_request) waits without a limit.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_create_id(3)`](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html) and of
    /// [`EventChannel::new`].
    pub fn new_sync(ps: PortSpace) -> Result<Self, OsError> {
        let mut this = Self::new(&EventChannel::new()?, ps, 0)?;
        this.mode = Mode::sync(None);
        Ok(this)
    }

    /// Creates a synchronous id for the result of [`AddrInfo::new`].
    ///
    /// On the passive side, the id is bound to the address. On the active side, the address and the
    /// route are resolved. [`create_qp`](Self::create_qp) creates the queue pair.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_create_ep(3)`](https://man7.org/linux/man-pages/man3/rdma_create_ep.3.html) and of
    /// [`EventChannel::new`].
    #[doc(alias = "rdma_create_ep")]
    #[doc(alias = "rdma_destroy_ep")]
    pub fn create_ep(info: &AddrInfo) -> Result<Self, OsError> {
        const CALL: &str = "rdma_create_ep";
        let channel = EventChannel::new()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a local variable, and the list in `info` exists and is not changed. The
        // call creates no queue pair, because it receives no queue pair attributes.
        cvt(CALL, || unsafe {
            ffi::rdma_create_ep(
                &raw mut raw,
                info.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        })?;
        let raw = NonNull::new(raw).ok_or(OsError::new(CALL, libc::EIO))?;
        let this = Self::from_raw(raw, &channel, Mode::sync(None));
        // librdmacm created a channel for this id, and destroys that channel during the migration.
        this.inner.call("rdma_migrate_id", |id| {
            // SAFETY: `id` and `channel` exist, and the lock of `channel` is held. `rdma_create_ep`
            // has acknowledged all its events except the last. This call acknowledges the last one,
            // so it does not block.
            unsafe { ffi::rdma_migrate_id(id, channel.as_ptr()) }
        })?;
        Ok(this)
    }

    /// For a synchronous id, returns the event that the most recent operation waited for.
    ///
    /// Returns `None` if no operation has waited for an event yet, or if the id is asynchronous.
    #[must_use]
    pub fn last_event(&self) -> Option<&CmEvent> {
        match &self.mode {
            Mode::Async => None,
            Mode::Sync { last_event, .. } => last_event.as_deref(),
        }
    }

    /// Waits for the next connect request of a synchronous listener.
    ///
    /// The returned id is also synchronous. Its [`last_event`](Self::last_event) is the request.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the id is asynchronous or does not listen, and `ENODEV` if the device
    /// was removed. If [`EventChannel::new`] fails for the new id, returns that error and rejects
    /// the request.
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&mut self) -> Result<Self, OsError> {
        loop {
            if let Some(request) = self.get_request_timeout(Duration::MAX)? {
                return Ok(request);
            }
        }
    }

    /// Waits up to `timeout` for the next connect request of a synchronous listener.
    ///
    /// Returns `None` if no request arrives in time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get_request`](Self::get_request).
    pub fn get_request_timeout(&mut self, timeout: Duration) -> Result<Option<Self>, OsError> {
        const CALL: &str = "rdma_get_request";
        let listens = self.inner.with(|_, local| local.listens);
        if !listens || matches!(self.mode, Mode::Async) {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let deadline = Instant::now().checked_add(timeout);
        let channel = self.inner.channel();
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let Some(mut event) = channel.wait_event(left)? else {
                return Ok(None);
            };
            if event.event() == CmEventType::DEVICE_REMOVAL {
                self.mode = Mode::sync(Some(Box::new(event)));
                return Err(OsError::new(CALL, libc::ENODEV));
            }
            let Some(mut request) = event.take_request() else {
                debug!(
                    Rdma,
                    "a synchronous listener ignores the event {}, which is not a connect request",
                    event.event()
                );
                continue;
            };
            request.inner.migrate(&EventChannel::new()?)?;
            request.mode = Mode::sync(Some(Box::new(event)));
            return Ok(Some(request));
        }
    }

    /// Completes an operation of a synchronous id: waits for one of the events in `wanted` or for a
    /// failure. Does nothing if the id is asynchronous.
    pub(super) fn wait_if_sync(
        &mut self,
        call: &'static str,
        wanted: &[CmEventType],
    ) -> Result<(), OsError> {
        let Mode::Sync {
            last_event,
            connected,
        } = &mut self.mode
        else {
            return Ok(());
        };
        let channel = self.inner.channel();
        loop {
            let Some(event) = channel.wait_event(Duration::MAX)? else {
                continue;
            };
            let outcome = outcome(event.event(), event.status(), wanted);
            match event.event() {
                CmEventType::ESTABLISHED => *connected = true,
                CmEventType::DISCONNECTED => *connected = false,
                _ => {}
            }
            *last_event = Some(Box::new(event));
            match outcome {
                Some(Ok(())) => return Ok(()),
                Some(Err(errno)) => return Err(OsError::new(call, errno)),
                None => {}
            }
        }
    }
}

/// Returns the result of an operation whose next event is `event`, or `None` if the operation must
/// wait for another event.
///
/// An event in `wanted` with the status 0 means success. If the operation has failed, the error is
/// an `errno`.
fn outcome(
    event: CmEventType,
    status: i32,
    wanted: &[CmEventType],
) -> Option<Result<(), libc::c_int>> {
    match event {
        CmEventType::REJECTED => Some(Err(libc::ECONNREFUSED)),
        _ if status != 0 => Some(Err(status.saturating_abs())),
        _ if wanted.contains(&event) => Some(Ok(())),
        CmEventType::DEVICE_REMOVAL => Some(Err(libc::ENODEV)),
        // The peer disconnected before the event that the operation waits for.
        CmEventType::DISCONNECTED => Some(Err(libc::ECONNRESET)),
        CmEventType::ADDR_ERROR
        | CmEventType::ROUTE_ERROR
        | CmEventType::CONNECT_ERROR
        | CmEventType::UNREACHABLE
        | CmEventType::MULTICAST_ERROR => Some(Err(libc::EIO)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_ends_with_its_event_or_a_failure() {
        let connect = |event, status| outcome(event, status, &[CmEventType::ESTABLISHED]);
        assert_eq!(connect(CmEventType::ESTABLISHED, 0), Some(Ok(())));
        assert_eq!(
            connect(CmEventType::REJECTED, 28),
            Some(Err(libc::ECONNREFUSED))
        );
        assert_eq!(
            connect(CmEventType::UNREACHABLE, -libc::ETIMEDOUT),
            Some(Err(libc::ETIMEDOUT))
        );
        assert_eq!(connect(CmEventType::CONNECT_ERROR, 0), Some(Err(libc::EIO)));
        assert_eq!(
            connect(CmEventType::DISCONNECTED, 0),
            Some(Err(libc::ECONNRESET))
        );
        assert_eq!(
            connect(CmEventType::DEVICE_REMOVAL, 0),
            Some(Err(libc::ENODEV))
        );
        assert_eq!(
            connect(CmEventType::UNREACHABLE, i32::MIN),
            Some(Err(i32::MAX))
        );
    }

    #[test]
    fn unrelated_event_ends_no_operation() {
        for event in [
            CmEventType::ADDR_CHANGE,
            CmEventType::TIMEWAIT_EXIT,
            CmEventType::from_raw(4711),
        ] {
            assert_eq!(outcome(event, 0, &[CmEventType::ESTABLISHED]), None);
        }
        assert_eq!(
            outcome(CmEventType::DISCONNECTED, 0, &[CmEventType::DISCONNECTED]),
            Some(Ok(()))
        );
    }
}
