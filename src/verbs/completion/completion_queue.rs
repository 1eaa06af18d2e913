#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{CompletionChannel, ExtendedCompletion, WorkCompletion, extended_completion};
use crate::{
    status::OsError,
    sys::{consts::IBV_WC_STANDARD_FLAGS, cvt_errno, cvt_ptr, ffi, log_destroy_error, verbs_ext},
    verbs::device::Context,
};

/// A queue of work completions. Clones are the same one.
///
/// It must be large enough for all completions that are not polled yet: one that overruns fails, and its queue pairs with it.
///
/// See [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_cq>,
    /// The same, if it is one that is read field by field.
    extended: Option<NonNull<ffi::ibv_cq_ex>>,
    cqe: u32,
    context: Context,
    channel: Option<CompletionChannel>,
}

// SAFETY: libibverbs allows a completion queue to be used and destroyed from any thread.
unsafe impl Send for Inner {}
// SAFETY: drivers lock the queue in `ibv_poll_cq` and `ibv_req_notify_cq`, as no thread domain was asked for.
unsafe impl Sync for Inner {}

impl CompletionQueue {
    /// Makes a queue for at least `cqe` completions. With a channel, it announces completions there, with `cookie` to tell
    /// which queue it was; but only after [`req_notify`](Self::req_notify), once each.
    ///
    /// # Errors
    ///
    /// What [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html) answers: `EINVAL` for a `cqe` of zero or more than
    /// [`DeviceAttr::max_cqe`](crate::verbs::DeviceAttr::max_cqe), and for a channel of another context.
    #[doc(alias = "ibv_create_cq")]
    pub fn new(
        context: &Context,
        cqe: u32,
        channel: Option<(&CompletionChannel, u64)>,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_cq";
        let entries = i32::try_from(cqe).map_err(|_| OsError::new(CALL, libc::EINVAL))?;
        let (raw_channel, cookie) = raw_channel(CALL, context, channel)?;
        // SAFETY: context and channel exist, and belong together; the cookie is never dereferenced.
        let raw = unsafe { ffi::ibv_create_cq(context.as_ptr(), entries, cookie, raw_channel, 0) };
        let raw = cvt_ptr(CALL, raw)?;
        Ok(Self::from_raw(raw, None, context, channel))
    }

    /// Makes a queue that can be read with [`poll_extended`](Self::poll_extended), too; with `timestamps` its completions say when they came.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` when the driver has no such queues, or no timestamps:
    /// [`DeviceAttrEx::completion_timestamp_mask`](crate::verbs::DeviceAttrEx::completion_timestamp_mask); otherwise as [`new`](Self::new).
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn new_extended(
        context: &Context,
        cqe: u32,
        channel: Option<(&CompletionChannel, u64)>,
        timestamps: bool,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_cq_ex";
        let (raw_channel, cookie) = raw_channel(CALL, context, channel)?;
        let timestamp = ffi::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0;
        let mut attr = ffi::ibv_cq_init_attr_ex {
            cqe,
            cq_context: cookie,
            channel: raw_channel,
            comp_vector: 0,
            wc_flags: IBV_WC_STANDARD_FLAGS | if timestamps { timestamp.into() } else { 0 },
            comp_mask: 0,
            flags: 0,
            parent_domain: ptr::null_mut(),
        };
        // SAFETY: context and channel exist, and belong together; the cookie is never dereferenced.
        let raw = unsafe { verbs_ext::ibv_create_cq_ex(context.as_ptr(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw)?;
        // `ibv_cq_ex_to_cq`: the one begins as the other.
        Ok(Self::from_raw(raw.cast(), Some(raw), context, channel))
    }

    fn from_raw(
        raw: NonNull<ffi::ibv_cq>,
        extended: Option<NonNull<ffi::ibv_cq_ex>>,
        context: &Context,
        channel: Option<(&CompletionChannel, u64)>,
    ) -> Self {
        // SAFETY: just made; the field changes only when a queue is resized, which is not offered.
        let granted = unsafe { (*raw.as_ptr()).cqe };
        let inner = Inner {
            raw,
            extended,
            cqe: u32::try_from(granted).unwrap_or(0),
            context: context.clone(),
            channel: channel.map(|(channel, _)| channel.clone()),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Takes completions as [`poll`](Self::poll) does, from a queue made with [`new_extended`](Self::new_extended), with what only such a
    /// queue has.
    ///
    /// # Errors
    ///
    /// `EINVAL` for any other queue; what [`ibv_start_poll(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html) answers.
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn poll_extended(&self, completions: &mut [ExtendedCompletion]) -> Result<usize, OsError> {
        let extended = self.inner.extended;
        let extended = extended.ok_or(OsError::new("ibv_start_poll", libc::EINVAL))?;
        // SAFETY: the queue exists, and was made to be read like this.
        unsafe { extended_completion::poll(extended, completions) }
    }

    /// Takes completions from the queue, oldest first: as many as there are, and as `completions` has room for.
    ///
    /// Returns how many were written to the front of `completions`; what lies behind is left as it was.
    ///
    /// # Errors
    ///
    /// `EIO` when the queue has failed. [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html) says no more.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, OsError> {
        let room = i32::try_from(completions.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue exists, and there is room for as many; a `WorkCompletion` is laid out as an `ibv_wc`.
        let count =
            unsafe { ffi::ibv_poll_cq(self.as_ptr(), room, completions.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| OsError::new("ibv_poll_cq", libc::EIO))
    }

    /// Asks for one event on the channel, when the next completion comes. A queue without a channel ignores it.
    ///
    /// With `solicited_only` the completion of a send or a successful receive does not count, unless its sender asked for it; one
    /// with an error always does. Completions that are in the queue already cause no event: poll once more after this.
    ///
    /// # Errors
    ///
    /// What [`ibv_req_notify_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html) answers.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), OsError> {
        // SAFETY: the queue exists.
        let ret = unsafe { ffi::ibv_req_notify_cq(self.as_ptr(), solicited_only.into()) };
        cvt_errno("ibv_req_notify_cq", ret)
    }

    /// How many completions it holds, which may be more than was asked for.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        self.inner.cqe
    }

    /// The device that it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The channel that it announces completions on.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.channel.as_ref()
    }

    /// The C object. It exists for as long as this handle or a clone lives.
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.inner.raw.as_ptr()
    }
}

/// A channel and a cookie as C wants them.
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
        // SAFETY: made by `new`, destroyed once, here; its queue pairs are gone, as they hold it. Its events are acknowledged as
        // soon as they are read, so this does not wait.
        let ret = unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
        log_destroy_error(cvt_errno("ibv_destroy_cq", ret));
    }
}
