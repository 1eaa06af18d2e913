use crate::cm::CmEvent;

/// The mode of an id, which decides how its steps complete.
pub(super) enum Mode {
    /// Steps return immediately. Their events are reported on a channel of the program's.
    Async,
    /// Steps return when their event has been read, on a channel that nothing else reads.
    Sync {
        /// The last event. Boxed because an event may hold an id.
        last_event: Option<Box<CmEvent>>,
        /// Whether there is a connection, whose end will be reported by an event.
        connected: bool,
    },
}

impl Mode {
    pub(super) const fn sync(last_event: Option<Box<CmEvent>>) -> Self {
        Self::Sync {
            last_event,
            connected: false,
        }
    }

    pub(super) const fn is_connected(&self) -> bool {
        match self {
            Self::Async => false,
            Self::Sync { connected, .. } => *connected,
        }
    }

    pub(super) const fn set_connected(&mut self, now: bool) {
        match self {
            Self::Async => {}
            Self::Sync { connected, .. } => *connected = now,
        }
    }
}
