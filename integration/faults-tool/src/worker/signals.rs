use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the threads of one side of a connection tell each other.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// To go on after the first message: every connection has had one.
    pub(crate) go: bool,
    /// To stop: a few more messages, then the last.
    pub(crate) stop: bool,
    /// The peer's last message has come.
    pub(crate) all: bool,
    /// The connection has ended.
    pub(crate) over: bool,
}

impl Signals {
    pub(crate) fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told());
        self.changed.notify_all();
    }

    pub(crate) fn now(&self) -> Told {
        *self.told()
    }

    /// Waits until that is told. Some signal always comes: the one that it is over.
    pub(crate) fn wait(&self, until: impl Fn(&Told) -> bool) -> Told {
        let waited = self
            .changed
            .wait_while(self.told(), |told| !until(told) && !told.over);
        *waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
