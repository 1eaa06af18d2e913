#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_status::OsError;

use super::{CompletionChannel, ExtendedCompletion, WorkCompletion, extended_completion};
use crate::{
    sys::{
        Process, consts::IBV_WC_STANDARD_FLAGS, cvt_errno, cvt_ptr, ffi, log_destroy_error,
        verbs_ext,
    },
    verbs::device::Context,
};

/// A queue of work completions. Clones refer to the same queue.
///
/// The capacity of the queue must be sufficient for all completions that have not been polled yet.
/// If the queue overruns, the queue fails, and so do all queue pairs that use it.
///
/// See [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_cq>,
    /// The process that created the queue. Only this process destroys it.
    process: Process,
    /// The extended form of `raw`, from which completions are read field by field. `None` if the
    /// queue is not extended.
    extended: Option<NonNull<ffi::ibv_cq_ex>>,
    cqe: u32,
    context: Context,
    channel: Option<CompletionChannel>,
}

// SAFETY: libibverbs allows any thread to use and to destroy a completion queue.
unsafe impl Send for Inner {}
// SAFETY: drivers lock the queue in `ibv_poll_cq` and `ibv_req_notify_cq`. They omit the lock only
// for a queue that was created in a thread domain or for a single thread, and this crate creates no
// such queue. The functions that post requests and destroy queue pairs acquire the same lock when
// they access the queue.
unsafe impl Sync for Inner {}

impl CompletionQueue {
    /// Creates a queue for at least `cqe` completions.
    ///
    /// If a channel is given, each call of [`req_notify`](Self::req_notify) requests one event on
    /// that channel. The event carries the cookie that was passed with the channel.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html): `EINVAL`
    /// if `cqe` is 0 or more than [`DeviceAttr::max_cqe`](crate::verbs::DeviceAttr::max_cqe), or if
    /// the channel belongs to another context.
    #[doc(alias = "ibv_create_cq")]
    pub fn new(
        context: &Context,
        cqe: u32,
        channel: Option<(&CompletionChannel, u64)>,
    ) -> Result<Self, OsError> {
        Self::on_vector(context, cqe, channel, 0)
    }

    /// Creates a queue whose events are signalled by the interrupt vector `comp_vector`.
    ///
    /// Each vector of the device interrupts one processor, so queues on different vectors
    /// distribute the interrupts over processors. [`new`](Self::new) uses vector 0.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the vector is not below [`Context::num_comp_vectors`]. Otherwise returns
    /// the errors of [`new`](Self::new).
    #[doc(alias = "comp_vector")]
    pub fn on_vector(
        context: &Context,
        cqe: u32,
        channel: Option<(&CompletionChannel, u64)>,
        comp_vector: u32,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_cq";
        let number = |value| i32::try_from(value).map_err(|_| OsError::new(CALL, libc::EINVAL));
        let (entries, vector) = (number(cqe)?, number(comp_vector)?);
        let (raw_channel, cookie) = raw_channel(CALL, context, channel)?;
        // SAFETY: `context` and the channel exist and belong to the same device. libibverbs does
        // not dereference the cookie.
        let raw = cvt_ptr(CALL, || unsafe {
            ffi::ibv_create_cq(context.as_ptr(), entries, cookie, raw_channel, vector)
        })?;
        Ok(Self::from_raw(raw, None, context, channel))
    }

    /// Creates a queue that [`poll_extended`](Self::poll_extended) can also poll.
    ///
    /// The interrupt vector `comp_vector` signals the events of the queue. If `timestamps` is true,
    /// each completion contains the time at which it arrived.
    ///
    /// # Errors
    ///
    /// Returns `EOPNOTSUPP` if the driver does not support extended queues, or if `timestamps` is
    /// true but the driver does not support timestamps: see [`completion_timestamp_mask`].
    /// Otherwise returns the errors of [`on_vector`](Self::on_vector).
    ///
    /// [`completion_timestamp_mask`]: crate::verbs::DeviceAttrEx::completion_timestamp_mask
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn new_extended(
        context: &Context,
        cqe: u32,
        channel: Option<(&CompletionChannel, u64)>,
        comp_vector: u32,
        timestamps: bool,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_cq_ex";
        let (raw_channel, cookie) = raw_channel(CALL, context, channel)?;
        let timestamp = ffi::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0;
        let mut attr = ffi::ibv_cq_init_attr_ex {
            cqe,
            cq_context: cookie,
            channel: raw_channel,
            comp_vector,
            wc_flags: IBV_WC_STANDARD_FLAGS | if timestamps { timestamp.into() } else { 0 },
            comp_mask: 0,
            flags: 0,
            parent_domain: ptr::null_mut(),
        };
        // SAFETY: `context` and the channel exist and belong to the same device. libibverbs does
        // not dereference the cookie.
        let raw = cvt_ptr(CALL, || unsafe {
            verbs_ext::ibv_create_cq_ex(context.as_ptr(), &raw mut attr)
        })?;
        // The cast is valid because an extended queue begins with the fields of a plain queue. C's
        // `ibv_cq_ex_to_cq` uses the same cast.
        Ok(Self::from_raw(raw.cast(), Some(raw), context, channel))
    }

    fn from_raw(
        raw: NonNull<ffi::ibv_cq>,
        extended: Option<NonNull<ffi::ibv_cq_ex>>,
        context: &Context,
        channel: Option<(&CompletionChannel, u64)>,
    ) -> Self {
        // SAFETY: `raw` was just created. Its field `cqe` changes only when the queue is resized,
        // and this type never resizes a queue.
        let granted = unsafe { (*raw.as_ptr()).cqe };
        let inner = Inner {
            raw,
            process: Process::this(),
            extended,
            cqe: u32::try_from(granted).unwrap_or(0),
            context: context.clone(),
            channel: channel.map(|(channel, _)| channel.clone()),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Removes extended completions from a queue that [`new_extended`](Self::new_extended) created.
    ///
    /// In all other respects, this function behaves like [`poll`](Self::poll).
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if another function created the queue. Otherwise returns the errors of
    /// [`ibv_start_poll(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn poll_extended(&self, completions: &mut [ExtendedCompletion]) -> Result<usize, OsError> {
        let extended = self.inner.extended;
        let extended = extended.ok_or(OsError::new("ibv_start_poll", libc::EINVAL))?;
        // SAFETY: `extended` exists, and was created with `ibv_create_cq_ex`.
        unsafe { extended_completion::poll(extended, completions) }
    }

    /// Removes completions from the queue, oldest first, until the queue is empty or `completions`
    /// is full.
    ///
    /// Returns the number of completions that were written to the start of `completions`. The other
    /// elements of `completions` are unchanged.
    ///
    /// # Errors
    ///
    /// Returns `EIO` if the queue has failed.
    /// [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html) reports no
    /// other error.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, OsError> {
        let room = i32::try_from(completions.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue exists, and `completions` has room for `room` entries. A
        // `WorkCompletion` has the layout of an `ibv_wc`.
        let count =
            unsafe { ffi::ibv_poll_cq(self.as_ptr(), room, completions.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| OsError::new("ibv_poll_cq", libc::EIO))
    }

    /// Requests one event on the channel. The next completion raises this event. The call has no
    /// effect if the queue has no channel.
    ///
    /// If `solicited_only` is true, only the receive of a solicited message, or a failed work
    /// request, raises the event. Completions that are already in the queue raise no event, so poll
    /// the queue once more after this call.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_req_notify_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), OsError> {
        // SAFETY: the handle `self` keeps the queue alive.
        cvt_errno("ibv_req_notify_cq", || unsafe {
            ffi::ibv_req_notify_cq(self.as_ptr(), solicited_only.into())
        })
    }

    /// Returns the capacity of the queue in completions, which may be larger than requested.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        self.inner.cqe
    }

    /// Returns the queue's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the channel on which the queue raises events, or `None` if it has no channel.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.channel.as_ref()
    }

    /// Returns the C object, which exists until the last clone of this handle is dropped.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.inner.raw.as_ptr()
    }
}

/// Converts a channel and a cookie to the arguments of the C functions. Returns `EINVAL` if the
/// channel belongs to another context, or if the cookie does not fit into a pointer.
fn raw_channel(
    call: &'static str,
    context: &Context,
    channel: Option<(&CompletionChannel, u64)>,
) -> Result<(*mut ffi::ibv_comp_channel, *mut libc::c_void), OsError> {
    let Some((channel, cookie)) = channel else {
        return Ok((ptr::null_mut(), ptr::null_mut()));
    };
    let invalid = OsError::new(call, libc::EINVAL);
    if !channel.context().is_same_device(context) {
        return Err(invalid);
    }
    let cookie = usize::try_from(cookie).map_err(|_| invalid)?;
    Ok((channel.as_ptr(), ptr::without_provenance_mut(cookie)))
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("cqe", &self.cqe())
            .field("channel", &self.channel())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the queue belongs to the parent.
            return;
        }
        // SAFETY: a constructor of this type created the queue, and only this `drop` destroys it.
        // All queue pairs of the queue have been destroyed, because each of them owned a handle to
        // the queue. All events that were read have been acknowledged, so the call does not block.
        log_destroy_error(cvt_errno("ibv_destroy_cq", || unsafe {
            ffi::ibv_destroy_cq(self.raw.as_ptr())
        }));
    }
}
