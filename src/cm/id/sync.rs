//! Ids whose steps return when they are done.
//!
//! librdmacm has such a mode, too, in which a call sleeps in the kernel until an event comes. It would sleep with the id locked, and
//! whoever drops the id's queue pair meanwhile would sleep as well. So the mode is made here of what the other mode has: a channel of
//! the id's own, on which a step's event is waited for with nothing locked.
#![allow(unsafe_code)]

use std::{
    ptr,
    time::{Duration, Instant},
};

use super::{CmId, mode::Mode};
use crate::{
    cm::{AddrInfo, CmEvent, EventChannel, PortSpace},
    status::{CmEventType, OsError},
    sys::{cvt, cvt_ptr, ffi},
};

impl CmId {
    /// Makes an id without a channel: its steps return when they are done.
    ///
    /// How long that may take, the step's timeout says, and where it has none, the connection manager: when the peer does not answer,
    /// about a minute. [`get_request`](Self::get_request) waits for ever.
    ///
    /// # Errors
    ///
    /// Of [`rdma_create_id(3)`](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html), and as [`EventChannel::new`].
    pub fn new_sync(ps: PortSpace) -> Result<Self, OsError> {
        let mut this = Self::new(&EventChannel::new()?, ps, 0)?;
        this.mode = Mode::sync(None);
        Ok(this)
    }

    /// Makes a synchronous id for what [`AddrInfo::new`] found: bound to it on the passive side; with address and route resolved on
    /// the active side. The queue pair is for [`create_qp`](Self::create_qp) to make.
    ///
    /// # Errors
    ///
    /// Of [`rdma_create_ep(3)`](https://man7.org/linux/man-pages/man3/rdma_create_ep.3.html), and as [`EventChannel::new`].
    #[doc(alias = "rdma_create_ep")]
    #[doc(alias = "rdma_destroy_ep")]
    pub fn create_ep(info: &AddrInfo) -> Result<Self, OsError> {
        const CALL: &str = "rdma_create_ep";
        let channel = EventChannel::new()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is a local, the list exists and is not changed; without attributes no queue pair is made.
        let ret = unsafe {
            ffi::rdma_create_ep(
                &raw mut raw,
                info.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        cvt(CALL, ret)?;
        let this = Self::from_raw(cvt_ptr(CALL, raw)?, &channel, Mode::sync(None));
        // It comes with a channel that librdmacm made for it, and destroys now.
        this.inner.call("rdma_migrate_id", |id| {
            // SAFETY: id and channel exist and are locked; librdmacm acknowledges the one event that was read itself.
            unsafe { ffi::rdma_migrate_id(id, channel.as_ptr()) }
        })?;
        Ok(this)
    }

    /// What came of the last step of an id of [`new_sync`](Self::new_sync), its private data for instance.
    ///
    /// `None` before the first step and for an id of a channel.
    #[must_use]
    pub fn last_event(&self) -> Option<&CmEvent> {
        match &self.mode {
            Mode::Async => None,
            Mode::Sync { last_event, .. } => last_event.as_deref(),
        }
    }

    /// Waits for the next connect request of a synchronous listener. The new id is synchronous, too; what the request carries is in its
    /// [`last_event`](Self::last_event).
    ///
    /// # Errors
    ///
    /// `EINVAL` for an id of a channel, and for one that does not listen; `ENODEV` when the device was removed; as [`EventChannel::new`],
    /// and then the request is rejected.
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&mut self) -> Result<Self, OsError> {
        loop {
            if let Some(request) = self.get_request_timeout(Duration::MAX)? {
                return Ok(request);
            }
        }
    }

    /// As [`get_request`](Self::get_request), for as long as `timeout`: `None` if nobody asked for a connection.
    ///
    /// # Errors
    ///
    /// As [`get_request`](Self::get_request).
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
                log::debug!("a listener's {} is of no interest", event.event());
                continue;
            };
            request.inner.migrate(&EventChannel::new()?)?;
            request.mode = Mode::sync(Some(Box::new(event)));
            return Ok(Some(request));
        }
    }

    /// Ends a step that is under way: at once, or, for a synchronous id, with one of the events `wanted`.
    pub(super) fn complete(
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

/// What an event says about a step that waits for one of `wanted`: that it is done, the error number that it failed with, or nothing.
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
        // The peer was fast: it is gone before this side knew that it was there.
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
    fn a_step_ends_with_its_own_event_or_with_a_failure() {
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
    fn an_event_about_something_else_ends_no_step() {
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
