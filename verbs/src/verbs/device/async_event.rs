#![allow(unsafe_code)]

use std::{mem::MaybeUninit, os::fd::BorrowedFd};

use rdma_status::{OsError, open_enum};

use crate::sys::{cvt, ffi, set_nonblocking};

/// An asynchronous event of a device, one of its ports or one of its objects.
///
/// See
/// [`ibv_get_async_event(3)`](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
pub struct AsyncEvent {
    event_type: AsyncEventType,
    element: AsyncElement,
}

/// The object to which an [`AsyncEvent`] refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncElement {
    /// A queue pair.
    QueuePair {
        /// The number of the queue pair.
        qp_num: u32,
    },
    /// A completion queue.
    CompletionQueue {
        /// The cookie that the program passed when it created the completion queue.
        cookie: u64,
    },
    /// A shared receive queue.
    SharedReceiveQueue {
        /// The cookie that the program passed when it created the shared receive queue.
        cookie: u64,
    },
    /// A port, numbered from 1.
    Port(u8),
    /// The whole device.
    Device,
    /// An object that this crate cannot identify.
    ///
    /// Either this crate does not know the type of the event, or this crate never creates objects
    /// of the affected kind, or the port number is invalid.
    Unknown,
}

open_enum! {
    /// The kind of an asynchronous event: `enum ibv_event_type`.
    #[doc(alias = "ibv_event_type")]
    pub struct AsyncEventType(u32);
    /// A completion queue failed, for example because the queue had no free entry for a completion.
    ///
    /// The queue and all queue pairs that use it become unusable.
    CQ_ERR = 0;
    /// A queue pair failed and is now in the error state.
    QP_FATAL = 1;
    /// A peer sent an invalid request to a queue pair.
    QP_REQ_ERR = 2;
    /// A peer sent a request that the queue pair's access flags forbid.
    QP_ACCESS_ERR = 3;
    /// Data arrived on a queue pair that can receive but cannot send yet.
    COMM_EST = 4;
    /// The send queue of a queue pair is drained: all sends that the device began before the drain
    /// have completed.
    SQ_DRAINED = 5;
    /// A queue pair moved to its alternate path.
    PATH_MIG = 6;
    /// A queue pair failed to move to its alternate path.
    PATH_MIG_ERR = 7;
    /// The device failed. The program must destroy all objects on it.
    DEVICE_FATAL = 8;
    /// A port's link came up.
    PORT_ACTIVE = 9;
    /// A port's link went down.
    PORT_ERR = 10;
    /// A port's LID changed.
    LID_CHANGE = 11;
    /// A port's table of partition keys changed.
    PKEY_CHANGE = 12;
    /// The subnet manager changed.
    SM_CHANGE = 13;
    /// A shared receive queue failed.
    SRQ_ERR = 14;
    /// The number of receives in a shared receive queue fell below the queue's low-water mark.
    SRQ_LIMIT_REACHED = 15;
    /// A queue pair in the error state will consume no more receives from its shared receive queue.
    QP_LAST_WQE_REACHED = 16;
    /// The subnet manager requests that clients repeat their registrations with it.
    CLIENT_REREGISTER = 17;
    /// A port's GID table changed.
    GID_CHANGE = 18;
    /// A work queue failed.
    WQ_FATAL = 19;
}

impl AsyncEvent {
    /// Returns the kind of event.
    #[must_use]
    pub const fn event_type(&self) -> AsyncEventType {
        self.event_type
    }

    /// Returns the object to which the event refers.
    #[must_use]
    pub const fn element(&self) -> AsyncElement {
        self.element
    }
}

/// Reads an event of an open device and acknowledges the event. Returns `None` if no event is
/// pending. Makes `fd` non-blocking, and therefore never blocks.
///
/// # Safety
///
/// `context` is open, and `fd` is its descriptor for asynchronous events.
pub(super) unsafe fn poll(
    context: *mut ffi::ibv_context,
    fd: BorrowedFd<'_>,
) -> Result<Option<AsyncEvent>, OsError> {
    set_nonblocking(fd)?;
    let mut raw = MaybeUninit::<ffi::ibv_async_event>::zeroed();
    // SAFETY: the caller guarantees that `context` is open, and `raw` is a local variable.
    let result = cvt("ibv_get_async_event", || unsafe {
        ffi::ibv_get_async_event(context, raw.as_mut_ptr())
    });
    match result {
        Ok(_) => {}
        Err(error) if error.errno == libc::EAGAIN => return Ok(None),
        Err(error) => return Err(error),
    }
    // SAFETY: the call above filled in `raw`. The event's object exists, because the destruction of
    // an object waits until its events are acknowledged.
    let event = unsafe { read(raw.as_ptr()) };
    // SAFETY: `ibv_get_async_event` filled in `raw`, and the event is acknowledged only here.
    unsafe { ffi::ibv_ack_async_event(raw.as_mut_ptr()) };
    Ok(Some(event))
}

/// Copies the content of an event.
///
/// The bindings declare the event type as a Rust enum. A number that only a newer kernel defines is
/// not a valid value of that enum. Therefore this function never reads the structure as a whole. It
/// reads each field through a pointer, and reads the event type as a `u32`.
///
/// # Safety
///
/// All fields of `raw` are initialised. The event type may be a number that is not a valid value of
/// the Rust enum. The event's object exists.
unsafe fn read(raw: *const ffi::ibv_async_event) -> AsyncEvent {
    // SAFETY: the caller guarantees that `raw` is valid. Only the address of the field is taken.
    let event_type = unsafe { &raw const (*raw).event_type };
    // SAFETY: C represents an `enum` without negative members as `unsigned int`, and every number
    // is a valid `u32`.
    let event_type = AsyncEventType::from_raw(unsafe { event_type.cast::<u32>().read() });
    // SAFETY: the caller guarantees that `raw` is valid. Only the address of the field is taken.
    let element = unsafe { &raw const (*raw).element };
    // SAFETY: each member of the union begins at the union's first byte, a pointer has the size of
    // the union, and all bytes of the union are initialised.
    let object = unsafe { element.cast::<*const libc::c_void>().read() };
    let element = match event_type {
        AsyncEventType::QP_FATAL
        | AsyncEventType::QP_REQ_ERR
        | AsyncEventType::QP_ACCESS_ERR
        | AsyncEventType::COMM_EST
        | AsyncEventType::SQ_DRAINED
        | AsyncEventType::PATH_MIG
        | AsyncEventType::PATH_MIG_ERR
        | AsyncEventType::QP_LAST_WQE_REACHED => {
            // SAFETY: for these event types, `object` is a queue pair, and the caller guarantees
            // that it exists.
            let qp_num = unsafe { (*object.cast::<ffi::ibv_qp>()).qp_num };
            AsyncElement::QueuePair { qp_num }
        }
        AsyncEventType::CQ_ERR => {
            // SAFETY: for this event type, `object` is a completion queue, and the caller
            // guarantees that it exists.
            let cookie = unsafe { (*object.cast::<ffi::ibv_cq>()).cq_context };
            AsyncElement::CompletionQueue {
                cookie: cookie.addr() as u64,
            }
        }
        AsyncEventType::SRQ_ERR | AsyncEventType::SRQ_LIMIT_REACHED => {
            // SAFETY: for these event types, `object` is a shared receive queue, and the caller
            // guarantees that it exists.
            let cookie = unsafe { (*object.cast::<ffi::ibv_srq>()).srq_context };
            AsyncElement::SharedReceiveQueue {
                cookie: cookie.addr() as u64,
            }
        }
        AsyncEventType::PORT_ACTIVE
        | AsyncEventType::PORT_ERR
        | AsyncEventType::LID_CHANGE
        | AsyncEventType::PKEY_CHANGE
        | AsyncEventType::SM_CHANGE
        | AsyncEventType::CLIENT_REREGISTER
        | AsyncEventType::GID_CHANGE => {
            // SAFETY: for these event types, the union's member is an `int`, and all bytes of the
            // union are initialised.
            let port = unsafe { element.cast::<libc::c_int>().read() };
            u8::try_from(port).map_or(AsyncElement::Unknown, AsyncElement::Port)
        }
        AsyncEventType::DEVICE_FATAL => AsyncElement::Device,
        _ => {
            warn!(
                Rdma,
                "a device raised an asynchronous event of type {event_type}, whose object this \
                 crate cannot identify"
            );
            AsyncElement::Unknown
        }
    };
    AsyncEvent {
        event_type,
        element,
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Calls `read` with an event in the layout of libibverbs, and returns the result.
    fn event(event_type: u32, element: ffi::ibv_async_event_element_t) -> AsyncEvent {
        let mut raw = MaybeUninit::<ffi::ibv_async_event>::zeroed();
        let start = raw.as_mut_ptr();
        // SAFETY: `start` points to the local variable `raw`.
        unsafe { (*start).element = element };
        let field = start.wrapping_byte_add(offset_of!(ffi::ibv_async_event, event_type));
        // SAFETY: `field` is the address of the 4-byte field `event_type` of the local variable
        // `raw`.
        unsafe { field.cast::<u32>().write(event_type) };
        // SAFETY: all fields of `raw` are filled in, and the object in `element` exists during the
        // call of `event`.
        unsafe { read(start) }
    }

    #[test]
    fn types_match_the_headers() {
        use ffi::ibv_event_type as c;
        for (ours, theirs) in [
            (AsyncEventType::CQ_ERR, c::IBV_EVENT_CQ_ERR),
            (AsyncEventType::QP_FATAL, c::IBV_EVENT_QP_FATAL),
            (AsyncEventType::QP_REQ_ERR, c::IBV_EVENT_QP_REQ_ERR),
            (AsyncEventType::QP_ACCESS_ERR, c::IBV_EVENT_QP_ACCESS_ERR),
            (AsyncEventType::COMM_EST, c::IBV_EVENT_COMM_EST),
            (AsyncEventType::SQ_DRAINED, c::IBV_EVENT_SQ_DRAINED),
            (AsyncEventType::PATH_MIG, c::IBV_EVENT_PATH_MIG),
            (AsyncEventType::PATH_MIG_ERR, c::IBV_EVENT_PATH_MIG_ERR),
            (AsyncEventType::DEVICE_FATAL, c::IBV_EVENT_DEVICE_FATAL),
            (AsyncEventType::PORT_ACTIVE, c::IBV_EVENT_PORT_ACTIVE),
            (AsyncEventType::PORT_ERR, c::IBV_EVENT_PORT_ERR),
            (AsyncEventType::LID_CHANGE, c::IBV_EVENT_LID_CHANGE),
            (AsyncEventType::PKEY_CHANGE, c::IBV_EVENT_PKEY_CHANGE),
            (AsyncEventType::SM_CHANGE, c::IBV_EVENT_SM_CHANGE),
            (AsyncEventType::SRQ_ERR, c::IBV_EVENT_SRQ_ERR),
            (
                AsyncEventType::SRQ_LIMIT_REACHED,
                c::IBV_EVENT_SRQ_LIMIT_REACHED,
            ),
            (
                AsyncEventType::QP_LAST_WQE_REACHED,
                c::IBV_EVENT_QP_LAST_WQE_REACHED,
            ),
            (
                AsyncEventType::CLIENT_REREGISTER,
                c::IBV_EVENT_CLIENT_REREGISTER,
            ),
            (AsyncEventType::GID_CHANGE, c::IBV_EVENT_GID_CHANGE),
            (AsyncEventType::WQ_FATAL, c::IBV_EVENT_WQ_FATAL),
        ] {
            assert_eq!(ours.raw(), theirs as u32, "{ours}");
        }
    }

    #[test]
    fn elements_are_distinguished() {
        let port = ffi::ibv_async_event_element_t { port_num: 2 };
        let read = event(AsyncEventType::PORT_ERR.raw(), port);
        assert_eq!(
            (read.event_type(), read.element()),
            (AsyncEventType::PORT_ERR, AsyncElement::Port(2))
        );

        let mut cq = MaybeUninit::<ffi::ibv_cq>::zeroed();
        // SAFETY: `cq` is a local variable, and only its field `cq_context` is written.
        unsafe { (*cq.as_mut_ptr()).cq_context = std::ptr::without_provenance_mut(77) };
        let read = event(
            AsyncEventType::CQ_ERR.raw(),
            ffi::ibv_async_event_element_t {
                cq: cq.as_mut_ptr(),
            },
        );
        assert_eq!(read.element(), AsyncElement::CompletionQueue { cookie: 77 });

        let mut qp = MaybeUninit::<ffi::ibv_qp>::zeroed();
        // SAFETY: `qp` is a local variable, and only its field `qp_num` is written.
        unsafe { (*qp.as_mut_ptr()).qp_num = 0x11 };
        let read = event(
            AsyncEventType::QP_FATAL.raw(),
            ffi::ibv_async_event_element_t {
                qp: qp.as_mut_ptr(),
            },
        );
        assert_eq!(read.element(), AsyncElement::QueuePair { qp_num: 0x11 });
    }

    #[test]
    fn unknown_type_keeps_its_number() {
        let read = event(4711, ffi::ibv_async_event_element_t { port_num: 0 });
        assert_eq!(
            (read.event_type().raw(), read.element()),
            (4711, AsyncElement::Unknown)
        );
        assert_eq!(read.event_type().to_string(), "unknown (4711)");
    }
}
