use crate::cm::CmEvent;

/// How an id's steps end.
pub(super) enum Mode {
    /// They return at once. Their events come in on a channel of the program's.
    Async,
    /// They return when their event has come in, on a channel that nobody else reads.
    Sync {
        /// The last one. Boxed because an event may hold an id.
        last_event: Option<Box<CmEvent>>,
        /// Whether there is a connection, whose end will be an event.
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
