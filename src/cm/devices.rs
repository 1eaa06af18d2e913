#![allow(unsafe_code)]

use std::{any::Any, fmt, ptr::NonNull, slice, sync::Arc};

use crate::{
    status::OsError,
    sys::{cvt_ptr, ffi},
    verbs::Context,
};

/// The RDMA devices, opened by librdmacm. Ids use these and no others, so what is shared by several ids is made on them.
///
/// See [`rdma_get_devices(3)`](https://man7.org/linux/man-pages/man3/rdma_get_devices.3.html).
#[derive(Clone)]
#[doc(alias = "rdma_get_devices")]
pub struct Devices {
    inner: Arc<Inner>,
}

/// The list keeps its devices open.
struct Inner {
    list: NonNull<*mut ffi::ibv_context>,
    len: usize,
}

// SAFETY: the list does not change between `rdma_get_devices` and `rdma_free_devices`, and both may be called by any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Devices {
    /// The devices that there are now.
    ///
    /// # Errors
    ///
    /// `ENODEV` and the like from `rdma_get_devices` where the kernel has no RDMA.
    pub fn get() -> Result<Self, OsError> {
        let mut len = 0;
        // SAFETY: the count is a local.
        let list = unsafe { ffi::rdma_get_devices(&raw mut len) };
        let list = cvt_ptr("rdma_get_devices", list)?;
        // A list has no negative length.
        Ok(Self {
            inner: Arc::new(Inner {
                list,
                len: usize::try_from(len).unwrap_or(0),
            }),
        })
    }

    /// The devices, open for as long as one of their handles lives.
    #[must_use]
    pub fn contexts(&self) -> Vec<Context> {
        self.inner
            .list()
            .iter()
            .filter_map(|raw| NonNull::new(*raw))
            .map(|raw| self.context(raw))
            .collect()
    }

    /// The device behind a pointer that librdmacm gave.
    pub(super) fn find(&self, raw: *mut ffi::ibv_context) -> Option<Context> {
        let raw = NonNull::new(raw)?;
        self.inner
            .list()
            .contains(&raw.as_ptr())
            .then(|| self.context(raw))
    }

    fn context(&self, raw: NonNull<ffi::ibv_context>) -> Context {
        let keep_alive: Arc<dyn Any + Send + Sync> = self.inner.clone();
        // SAFETY: the pointer is in the list, whose devices are open until it is freed, and the context holds the list.
        unsafe { Context::borrowed(raw, keep_alive) }
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.contexts()).finish()
    }
}

impl Inner {
    fn list(&self) -> &[*mut ffi::ibv_context] {
        // SAFETY: librdmacm gave a list of this many entries, which does not change until it is freed.
        unsafe { slice::from_raw_parts(self.list.as_ptr(), self.len) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `rdma_get_devices` gave it, and this is the last handle.
        unsafe { ffi::rdma_free_devices(self.list.as_ptr()) };
    }
}
