use std::time::Instant;

/// A source of the time for inputs that seldom need it: reading the clock takes as long as handling
/// a message.
pub trait Clock: Copy {
    /// Returns the time.
    fn now(self) -> Instant;
}

/// A time that is known already.
impl Clock for Instant {
    fn now(self) -> Instant {
        self
    }
}
