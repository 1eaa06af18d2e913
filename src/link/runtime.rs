//! Tasks for which a tokio runtime watches the completion events.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Wake, Waker},
};

use super::link::Link;
use crate::{
    poll::{Awaited, RuntimeWatch},
    status::OsError,
    sync::lock,
};

/// What the runtime calls.
#[derive(Debug)]
struct Alarm {
    link: Weak<Link>,
    calls: Arc<AtomicU64>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(link) = self.link.upgrade() {
            // Whoever wakes up polls. If nobody does, because those who waited are gone, the
            // engine's thread takes over.
            link.wake_tasks(Awaited::ANYTHING);
        }
    }
}

impl Link {
    /// Has the runtime in whose context this is called watch the connection.
    ///
    /// # Panics
    ///
    /// Where there is none.
    #[track_caller]
    pub(crate) fn enter_runtime(self: &Arc<Self>) -> Result<(), OsError> {
        // A watch of another runtime ends first: it may be the same, which watches nothing twice.
        self.poller.leave_runtime();
        let Some(events) = lock(&self.poll)
            .as_ref()
            .map(|side| Arc::clone(side.events()))
        else {
            // It has ended, which needs no watching.
            return Ok(());
        };
        let calls = Arc::new(AtomicU64::new(0));
        let alarm = Alarm {
            link: Arc::downgrade(self),
            calls: Arc::clone(&calls),
        };
        let watch = RuntimeWatch::new(events, Waker::from(Arc::new(alarm)), calls)?;
        self.poller.tasks.enter_runtime(watch);
        if self.is_over() {
            // Its transport may have gone meanwhile, which nothing is to hold.
            self.poller.leave_runtime();
        }
        Ok(())
    }
}
