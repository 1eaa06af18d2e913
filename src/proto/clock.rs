use std::time::Instant;

/// Tells the time to inputs that seldom need it: reading the clock takes as long as handling a message.
pub(crate) trait Clock: Copy {
    fn now(self) -> Instant;
}

/// The time is known.
impl Clock for Instant {
    fn now(self) -> Instant {
        self
    }
}
