//! The timers of an established connection.

use std::{
    ops::{Deref, DerefMut},
    time::{Duration, Instant},
};

use super::{iwarp_nudge::Nudge, keepalive::Keepalive};
use crate::read_watchdog::ReadWatchdog;

/// The timers of an established connection.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Timers {
    pub(super) keepalive: Option<Keepalive>,
    pub(super) read_watchdog: ReadWatchdog,
    pub(super) grant: Option<DelayedGrant>,
    pub(super) nudge: Option<Nudge>,
}

/// A grant that is delayed until the application has released more messages, or until a deadline.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct DelayedGrant {
    /// The time at which this side sends the grant, if no other frame has carried it.
    pub(super) deadline: Instant,
    /// The credit limit that this side had last announced when the timer was started. If this side
    /// has announced a different limit by the deadline, another frame has carried the grant.
    pub(super) announced: u32,
}

/// The interval at which the timer fires while grants are delayed. The timer is not restarted for
/// each grant, so it can already be running when a delay begins. If another frame has carried an
/// earlier grant since the timer was started, the timer runs a second time. A grant is therefore
/// delayed by at most twice this interval.
pub(super) const GRANT_TIMER_INTERVAL: Duration = Duration::from_millis(2);

impl Timers {
    /// Returns the earliest of all deadlines.
    pub(super) fn deadline(&self) -> Option<Instant> {
        earlier(self.grant_deadline(), self.while_closing())
    }

    /// Returns the earliest of all deadlines except that of the keepalive.
    pub(super) fn earliest_but_keepalive(&self) -> Option<Instant> {
        earlier(self.grant_deadline(), self.of_transfers())
    }

    /// Returns the earliest of the deadlines that still apply while the connection closes.
    pub(super) fn while_closing(&self) -> Option<Instant> {
        let keepalive = self.keepalive.as_ref().map(Keepalive::deadline);
        earlier(keepalive, self.of_transfers())
    }

    fn grant_deadline(&self) -> Option<Instant> {
        self.grant.map(|grant| grant.deadline)
    }

    fn of_transfers(&self) -> Option<Instant> {
        let nudge = self.nudge.as_ref().map(Nudge::deadline);
        earlier(nudge, self.read_watchdog.deadline())
    }
}

/// Returns the earlier of two optional deadlines.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A value that records whether it has been borrowed mutably.
///
/// A mutable borrow marks the value as changed. While the timers are not marked, the connection
/// does not compare its deadline with the deadline that was last reported to the driver. This saves
/// the comparison for most messages, because they do not change the timers.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Tracked<T> {
    value: T,
    touched: bool,
}

impl<T> Tracked<T> {
    /// Wraps a value, which is initially marked as changed.
    pub(super) fn new(value: T) -> Self {
        Self {
            value,
            touched: true,
        }
    }

    /// Returns whether the value has been borrowed mutably since the last call of
    /// [`take_changed`](Self::take_changed).
    #[inline]
    pub(super) fn is_changed(&self) -> bool {
        self.touched
    }

    /// Returns whether the value has been borrowed mutably since the last call of this function,
    /// and clears the mark.
    #[inline]
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }
}

impl<T> Deref for Tracked<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Tracked<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.touched = true;
        &mut self.value
    }
}
