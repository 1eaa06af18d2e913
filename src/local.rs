use std::{fmt, ops::Deref, sync::Arc};

use crate::os::{Process, leak};

/// A handle of a shared object, which only the process that created it uses.
///
/// In a child of a fork the handle dereferences to a [stand-in](StandIn): an object of the child,
/// in the state that the real object has after its end. The drop of an inherited handle leaks the
/// object, because it belongs to the parent.
pub(crate) struct Local<T: StandIn> {
    object: Arc<T>,
    process: Process,
}

/// An object that has a stand-in for the children of a fork.
pub(crate) trait StandIn: Sized + 'static {
    /// Returns this process's stand-in for all inherited objects of the type.
    fn stand_in() -> &'static Self;
}

impl<T: StandIn> Local<T> {
    pub(crate) fn new(object: Arc<T>) -> Self {
        Self {
            object,
            process: Process::this(),
        }
    }

    /// Returns whether another process made it.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }

    /// Returns the object itself, even if it is inherited. The caller uses only fields that never
    /// change and have no lock.
    pub(crate) fn original(&self) -> &Arc<T> {
        &self.object
    }

    /// Returns the object if this is the only handle, and it is not inherited.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_inherited() {
            return None;
        }
        Arc::get_mut(&mut self.object)
    }

    /// Returns the object itself if this is the last handle, and it is not inherited.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_inner(self) -> Option<T> {
        let (object, is_inherited) = (Arc::clone(&self.object), self.is_inherited());
        drop(self);
        if is_inherited {
            return None;
        }
        Arc::into_inner(object)
    }
}

impl<T: StandIn> Deref for Local<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        if self.is_inherited() {
            return T::stand_in();
        }
        &self.object
    }
}

impl<T: StandIn> Clone for Local<T> {
    fn clone(&self) -> Self {
        Self {
            object: Arc::clone(&self.object),
            process: self.process,
        }
    }
}

impl<T: StandIn> Drop for Local<T> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // A handle of the object is leaked, so that the object is never dropped.
            leak(Arc::clone(&self.object));
        }
    }
}

impl<T: StandIn + fmt::Debug> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
