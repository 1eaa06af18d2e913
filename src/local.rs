use std::{fmt, ops::Deref, sync::Arc};

use crate::os::{Process, leak};

/// A handle to a shared object. Only the process that created the object may use it.
///
/// In a forked child the handle dereferences to a [stand-in](StandIn). The stand-in belongs to the
/// child, and behaves like a shared object that has ended. Dropping an inherited handle leaks the
/// shared object, because that object belongs to the parent.
pub(crate) struct Local<T: StandIn> {
    object: Arc<T>,
    process: Process,
}

/// A type with a stand-in, which replaces inherited objects of the type in a forked child.
pub(crate) trait StandIn: Sized + 'static {
    /// Returns the stand-in, which replaces all inherited objects of this type in this process.
    fn stand_in() -> &'static Self;
}

impl<T: StandIn> Local<T> {
    pub(crate) fn new(object: Arc<T>) -> Self {
        Self {
            object,
            process: Process::this(),
        }
    }

    /// Returns whether another process created the object.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }

    /// Returns the original object, even if it is inherited. The caller may access only fields that
    /// never change and have no lock.
    pub(crate) fn original(&self) -> &Arc<T> {
        &self.object
    }

    /// Returns the object if this is its only handle and the object is not inherited.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_inherited() {
            return None;
        }
        Arc::get_mut(&mut self.object)
    }

    /// Returns the object if this is its only handle and the object is not inherited.
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
            // Leaking one reference ensures that the object is never dropped.
            leak(Arc::clone(&self.object));
        }
    }
}

impl<T: StandIn + fmt::Debug> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
