use std::{fmt, ops::Deref, sync::Arc};

use super::link::Link;

/// The application's side of an established connection. Dropping it closes the connection in the
/// background.
pub(crate) struct Owner(Arc<Link>);

impl Owner {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self(link)
    }
}

impl Deref for Owner {
    type Target = Arc<Link>;

    fn deref(&self) -> &Arc<Link> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
