#![allow(unsafe_code)]

use std::{
    os::fd::AsFd,
    ptr::{self, NonNull},
    slice,
    time::Duration,
};

use nix::errno::Errno;
use rdma_status::{CmEventType, CmStatus, OsError, RejectReason};

use super::{ConnEventParam, Devices, EventChannel, PrivateData, UdEventParam, owned_id::OwnedId};
use crate::{
    sys::{self, cvt, ffi},
    verbs::{AhAttr, QpType},
};

/// A copy of an event of a [`CmId`](super::CmId). The copy stays valid after librdmacm has freed
/// the original event.
///
/// See [`rdma_get_cm_event(3)`](https://man7.org/linux/man-pages/man3/rdma_get_cm_event.3.html) for
/// the meaning and content of each event.
#[derive(Debug)]
#[doc(alias = "rdma_cm_event")]
pub struct CmEvent {
    event: CmEventType,
    status: i32,
    context: u64,
    listen_context: Option<u64>,
    conn: Option<ConnEventParam>,
    ud: Option<UdEventParam>,
    private_data: PrivateData,
    request: Option<OwnedId>,
}

impl CmEvent {
    /// Copies an event of an id on `channel`. If the event is a CONNECT_REQUEST, takes ownership of
    /// the new id.
    ///
    /// # Safety
    ///
    /// `raw` is an unacknowledged event from librdmacm, and the calling thread holds the channel's
    /// lock.
    pub(super) unsafe fn copy(raw: *mut ffi::rdma_cm_event, channel: &EventChannel) -> Self {
        // SAFETY: the caller guarantees that `raw` is an unacknowledged event.
        let mut this = unsafe { Self::copy_data(raw) };
        if this.event == CmEventType::CONNECT_REQUEST {
            // SAFETY: the caller guarantees that `raw` is an unacknowledged event.
            let id = unsafe { (*raw).id };
            this.request = NonNull::new(id).map(|id| {
                // SAFETY: a CONNECT_REQUEST carries a new id on the listener's channel, and this id
                // has no owner yet.
                unsafe { OwnedId::from_request(id, channel) }
            });
        }
        this
    }

    /// Copies an event without taking ownership of its id.
    ///
    /// # Safety
    ///
    /// `raw` is an unacknowledged event from librdmacm. No thread reads another event of the same
    /// id during the call.
    pub(super) unsafe fn copy_data(raw: *mut ffi::rdma_cm_event) -> Self {
        // SAFETY: the caller guarantees that `raw` is an unacknowledged event.
        let raw = unsafe { &*raw };
        let event = CmEventType::from_raw(raw.event);
        let multicast =
            event == CmEventType::MULTICAST_JOIN || event == CmEventType::MULTICAST_ERROR;
        // SAFETY: `raw.id` is null or an id that exists at least until the event is acknowledged.
        let id = unsafe { raw.id.as_ref() };
        // SAFETY: `raw.listen_id` is null or an id that exists at least until the event is
        // acknowledged.
        let listen_id = unsafe { raw.listen_id.as_ref() };
        let (mut conn, mut ud, mut private_data) = (None, None, PrivateData::default());
        if matches!(event, CmEventType::USER | CmEventType::INTERNAL) {
            // In these events the field `id` may be null, and neither `conn` nor `ud` is set.
        } else if multicast || id.is_some_and(|id| QpType::from_raw(id.qp_type) == QpType::UD) {
            // SAFETY: for datagram ids and for multicast events, librdmacm writes the member `ud`,
            // or zeroes it if this type of event carries no parameters.
            let param = unsafe { &raw.param.ud };
            ud = Some(UdEventParam {
                ah_attr: AhAttr::from_raw(param.ah_attr),
                qp_num: param.qp_num,
                qkey: param.qkey,
            });
            // In a multicast event, the pointer is the context that was passed when joining.
            if !multicast {
                // SAFETY: librdmacm sets `private_data` and `private_data_len` together, to bytes
                // inside the event.
                private_data =
                    unsafe { copy_private_data(param.private_data.cast(), param.private_data_len) };
            }
        } else {
            // SAFETY: for connection ids, librdmacm writes the member `conn`, or zeroes it if this
            // type of event carries no parameters.
            let param = unsafe { &raw.param.conn };
            conn = Some(ConnEventParam::from_raw(param));
            // SAFETY: librdmacm sets `private_data` and `private_data_len` together, to bytes
            // inside the event.
            private_data =
                unsafe { copy_private_data(param.private_data.cast(), param.private_data_len) };
        }
        Self {
            event,
            status: raw.status,
            // In a CONNECT_REQUEST, this is the listener's context: librdmacm has copied that
            // context into the new id, and `from_request` later clears the copy.
            context: id.map_or(0, |id| id.context as u64),
            listen_context: listen_id.map(|id| id.context as u64),
            conn,
            ud,
            private_data,
            request: None,
        }
    }

    /// Returns the type of the event. The type may be a value that this crate does not define.
    #[must_use]
    pub fn event(&self) -> CmEventType {
        self.event
    }

    /// Returns the status field of the event: 0, a negative error number, or a reject reason.
    #[must_use]
    pub fn status(&self) -> i32 {
        self.status
    }

    /// Returns the status of a failure event as an error number.
    #[must_use]
    pub fn cm_status(&self) -> CmStatus {
        CmStatus::from_raw(self.status)
    }

    /// Returns the status of a REJECTED event as a reject reason.
    #[must_use]
    pub fn reject_reason(&self) -> RejectReason {
        RejectReason::from_raw(self.status)
    }

    /// Returns the [context](super::CmId::set_context) of the event's id.
    ///
    /// For a CONNECT_REQUEST, this is the context of the listener.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Returns the [context](super::CmId::set_context) of the listener if the event is a
    /// CONNECT_REQUEST, otherwise `None`.
    #[must_use]
    pub fn listen_context(&self) -> Option<u64> {
        self.listen_context
    }

    /// Returns the parameters of the connection. All fields are zero if this type of event carries
    /// no parameters.
    ///
    /// Returns `None` for datagram ids, and for events that do not come from the connection
    /// manager.
    #[must_use]
    pub fn conn(&self) -> Option<ConnEventParam> {
        self.conn
    }

    /// Returns the parameters of the datagram peer or of the multicast group.
    ///
    /// Returns `None` for connection ids, and for events that do not come from the connection
    /// manager.
    #[must_use]
    pub fn ud(&self) -> Option<UdEventParam> {
        self.ud
    }

    /// Returns the peer's private data, to which the connection manager may have appended zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Removes the new id of a CONNECT_REQUEST from the event and returns it. Implements
    /// [`take_request`](Self::take_request).
    pub(super) fn take_owned_request(&mut self) -> Option<OwnedId> {
        self.request.take()
    }
}

impl EventChannel {
    /// Reads the next event and acknowledges it. Returns `None` if no event is pending, or if a
    /// signal interrupts the call.
    ///
    /// # Errors
    ///
    /// Returns `EBADF` if this process inherited the channel from its parent. Otherwise returns the
    /// errors of `rdma_get_cm_event` and `rdma_ack_cm_event`. A failed connection causes an event,
    /// not an error.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn poll_event(&self) -> Result<Option<CmEvent>, OsError> {
        if self.is_inherited() {
            return Err(OsError::new("rdma_get_cm_event", libc::EBADF));
        }
        let lock = self.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel exists, and `raw` is a local variable. While the lock is held, no
        // other thread uses the ids that librdmacm changes, except in `rdma_destroy_id`, which uses
        // only fields that never change, and frees an id only after its events that were read have
        // been acknowledged.
        let read = cvt("rdma_get_cm_event", || unsafe {
            ffi::rdma_get_cm_event(self.as_ptr(), &raw mut raw)
        });
        let errno = Errno::last_raw();
        match read {
            Ok(_) => {}
            Err(OsError {
                errno: libc::EAGAIN | libc::EINTR,
                ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the call succeeded, so `raw` is an unacknowledged event. Its id belongs to this
        // channel, whose lock is held.
        let mut event = unsafe { CmEvent::copy(raw, self) };
        // If a call that librdmacm makes while it reads the event fails, librdmacm stores the
        // call's result −1 as the status. The error number is in `errno`, which `cvt` had set to 0.
        if event.status == -1 && errno > 0 {
            event.status = -errno;
        }
        if event.event() == CmEventType::DEVICE_REMOVAL {
            // SAFETY: `raw` is an unacknowledged event.
            let id = unsafe { (*raw).id };
            // SAFETY: the event's id exists, because librdmacm frees no id that has an
            // unacknowledged event.
            let device = unsafe { (*id).verbs };
            // SAFETY: the event's id exists, because librdmacm frees no id that has an
            // unacknowledged event.
            unsafe { Devices::handle_removal(device) };
        }
        // SAFETY: `raw` is acknowledged only here, and `event` does not point into it.
        let acknowledged = cvt("rdma_ack_cm_event", || unsafe {
            ffi::rdma_ack_cm_event(raw)
        });
        // Release the lock before the next line. If that line returns an error, it drops `event`
        // and thereby destroys the new id of a CONNECT_REQUEST. Destroying an id acquires this
        // lock.
        drop(lock);
        acknowledged?;
        Ok(Some(event))
    }

    /// Waits up to `timeout` for the next event, and reads it. Returns `None` if no event arrives
    /// in time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`poll_event`](Self::poll_event).
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<CmEvent>, OsError> {
        sys::wait_readable(self.as_fd(), timeout, || self.poll_event())
    }
}

/// Copies private data of an event.
///
/// # Safety
///
/// `data` is null or valid for reads of `len` bytes.
unsafe fn copy_private_data(data: *const u8, len: u8) -> PrivateData {
    if data.is_null() {
        return PrivateData::default();
    }
    // SAFETY: `data` is not null, so the caller guarantees that `data` is valid for reads of `len`
    // bytes.
    let bytes = unsafe { slice::from_raw_parts(data, len.into()) };
    PrivateData::try_from(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    fn zeroed() -> ffi::rdma_cm_event {
        // SAFETY: `rdma_cm_event` consists of integers, pointers and unions of both, for which all
        // zeros is a valid value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    #[test]
    fn an_event_is_copied_with_its_private_data() {
        let data = *b"hello";
        let mut raw = zeroed();
        raw.event = CmEventType::ESTABLISHED.raw();
        raw.status = -5;
        raw.param.conn = ffi::rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: 5,
            responder_resources: 1,
            initiator_depth: 2,
            flow_control: 1,
            retry_count: 3,
            rnr_retry_count: 4,
            srq: 1,
            qp_num: 0x17,
        };
        // SAFETY: `raw` is a local variable with valid fields, which only this call uses.
        let event = unsafe { CmEvent::copy_data(&raw mut raw) };
        assert_eq!(
            (event.event(), event.cm_status()),
            (CmEventType::ESTABLISHED, CmStatus::from_raw(-5))
        );
        assert_eq!(event.private_data(), b"hello");
        assert_eq!(
            event.conn(),
            Some(ConnEventParam {
                responder_resources: 1,
                initiator_depth: 2,
                flow_control: true,
                retry_count: 3,
                rnr_retry_count: 4,
                srq: true,
                qp_num: 0x17
            })
        );
        assert_eq!(event.listen_context(), None);
    }

    #[test]
    fn event_of_an_unknown_type_is_copied() {
        let mut raw = zeroed();
        raw.event = 4711;
        // SAFETY: `raw` is a local variable with valid fields, which only this call uses.
        let event = unsafe { CmEvent::copy_data(&raw mut raw) };
        assert_eq!(event.event().to_string(), "unknown (4711)");
        assert!(event.private_data().is_empty());
    }

    #[test]
    fn a_multicast_event_has_no_private_data() {
        let mut raw = zeroed();
        raw.event = CmEventType::MULTICAST_JOIN.raw();
        let mut context = 7_u32;
        raw.param.ud.private_data = (&raw mut context).cast_const().cast();
        raw.param.ud.qkey = 9;
        // SAFETY: `raw` is a local variable with valid fields, which only this call uses.
        let event = unsafe { CmEvent::copy_data(&raw mut raw) };
        assert!(
            event.private_data().is_empty(),
            "the event must have no private data, because the pointer is the group's context"
        );
        assert_eq!(event.ud().map(|ud| ud.qkey), Some(9));
    }
}
