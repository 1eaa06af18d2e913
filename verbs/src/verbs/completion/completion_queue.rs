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

/// A queue of work completions. Clones refer to the same object.
///
/// It must have room for all completions that have not been polled: when it overruns, it and its
/// queue pairs fail.
///
/// See [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_cq>,
    /// The process that created it, and that alone destroys it.
    process: Process,
    /// The same object, if it is an extended one, which is read field by field.
    extended: Option<NonNull<ffi::ibv_cq_ex>>,
    cqe: u32,
    context: Context,
    channel: Option<CompletionChannel>,
}

// SAFETY: libibverbs allows a completion queue to be used and destroyed from any thread.
unsafe impl Send for Inner {}
// SAFETY: drivers lock the queue in `ibv_poll_cq` and `ibv_req_notify_cq`, as no thread domain was
// requested.
unsafe impl Sync for Inner {}

impl CompletionQueue {
    /// Creates a queue for at least `cqe` completions.
    ///
    /// With a channel, each [`req_notify`](Self::req_notify) causes one event there, which carries
    /// the cookie given here.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html): `EINVAL`
    /// for a `cqe` of zero or more than [`DeviceAttr::max_cqe`](crate::verbs::DeviceAttr::max_cqe),
    /// and for a channel of another context.
    #[doc(alias = "ibv_create_cq")]
    pub fn new(
        context: &Context,
        cqe: u32,
        channel: Option<(&CompletionChannel, u64)>,
    ) -> Result<Self, OsError> {
        Self::on_vector(context, cqe, channel, 0)
    }

    /// Creates a queue whose events the interrupt `comp_vector` signals.
    ///
    /// Each of the device's vectors interrupts one processor, so queues on several vectors share
    /// the work out. [`new`](Self::new) uses vector 0.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a vector that is not below [`Context::num_comp_vectors`]; otherwise those of
    /// [`new`](Self::new).
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
        // SAFETY: context and channel exist, on the same device; the cookie is never dereferenced.
        let raw =
            unsafe { ffi::ibv_create_cq(context.as_ptr(), entries, cookie, raw_channel, vector) };
        let raw = cvt_ptr(CALL, raw)?;
        Ok(Self::from_raw(raw, None, context, channel))
    }

    /// Creates a queue that [`poll_extended`](Self::poll_extended) can read as well.
    ///
    /// The interrupt `comp_vector` signals its events. With `timestamps`, its completions carry the
    /// time at which they arrived.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver has no extended queues, or no timestamps, as
    /// [`completion_timestamp_mask`] says; otherwise those of [`on_vector`](Self::on_vector).
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
        // SAFETY: context and channel exist, on the same device; the cookie is never dereferenced.
        let raw = unsafe { verbs_ext::ibv_create_cq_ex(context.as_ptr(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw)?;
        // `ibv_cq_ex_to_cq`: the plain queue is a prefix of the extended one.
        Ok(Self::from_raw(raw.cast(), Some(raw), context, channel))
    }

    fn from_raw(
        raw: NonNull<ffi::ibv_cq>,
        extended: Option<NonNull<ffi::ibv_cq_ex>>,
        context: &Context,
        channel: Option<(&CompletionChannel, u64)>,
    ) -> Self {
        // SAFETY: just created; the field changes only when a queue is resized, which this type
        // does not do.
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

    /// Takes extended completions from a queue created with [`new_extended`](Self::new_extended).
    ///
    /// Otherwise it works as [`poll`](Self::poll) does.
    ///
    /// # Errors
    ///
    /// `EINVAL` for any other queue; otherwise those of
    /// [`ibv_start_poll(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn poll_extended(&self, completions: &mut [ExtendedCompletion]) -> Result<usize, OsError> {
        let extended = self.inner.extended;
        let extended = extended.ok_or(OsError::new("ibv_start_poll", libc::EINVAL))?;
        // SAFETY: the queue exists, and was created with `ibv_create_cq_ex`.
        unsafe { extended_completion::poll(extended, completions) }
    }

    /// Takes completions from the queue, oldest first, until it is empty or `completions` is full.
    ///
    /// Returns the number written to the front of `completions`; the rest of it is unchanged.
    ///
    /// # Errors
    ///
    /// `EIO` if the queue has failed:
    /// [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html) reports nothing
    /// else.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, OsError> {
        let room = i32::try_from(completions.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue exists, and there is room for `room` entries; a `WorkCompletion` is
        // laid out as an `ibv_wc`.
        let count =
            unsafe { ffi::ibv_poll_cq(self.as_ptr(), room, completions.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| OsError::new("ibv_poll_cq", libc::EIO))
    }

    /// Requests one event on the channel for the next completion. Has no effect without a channel.
    ///
    /// With `solicited_only`, only receives of solicited messages and completions with an error
    /// cause the event. Completions that are already in the queue cause none: poll once more after
    /// this call.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_req_notify_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), OsError> {
        // SAFETY: the queue exists.
        let ret = unsafe { ffi::ibv_req_notify_cq(self.as_ptr(), solicited_only.into()) };
        cvt_errno("ibv_req_notify_cq", ret)
    }

    /// Returns its capacity, which may be larger than requested.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        self.inner.cqe
    }

    /// Returns the device that it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the channel on which it signals completions.
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

/// Converts a channel and a cookie to the C form.
fn raw_channel(
    call: &'static str,
    context: &Context,
    channel: Option<(&CompletionChannel, u64)>,
) -> Result<(*mut ffi::ibv_comp_channel, *mut libc::c_void), OsError> {
    let Some((channel, cookie)) = channel else {
        return Ok((ptr::null_mut(), ptr::null_mut()));
    };
    let invalid = OsError::new(call, libc::EINVAL);
    if !channel.context().is(context) {
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
            // The object is the parent's, which has its descriptor, too.
            return;
        }
        // SAFETY: created by `new`, destroyed once, here; its queue pairs have been destroyed, as
        // they hold it. Its events are acknowledged as soon as they are read, so the call does not
        // block.
        let ret = unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
        log_destroy_error(cvt_errno("ibv_destroy_cq", ret));
    }
}
