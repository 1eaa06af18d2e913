//! Stores the message counts of suspended sessions that this engine has closed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::proto::{SessionId, SessionOver};

/// The maximum number of stored sessions, each of which occupies about 40 bytes. If the maximum is
/// reached, `add` removes the oldest session.
const MAX_STORED: usize = 4096;

/// Closed sessions, oldest first.
#[derive(Default)]
pub(super) struct Tombstones(VecDeque<Tombstone>);

struct Tombstone {
    id: SessionId,
    over: SessionOver,
    until: Instant,
}

impl Tombstones {
    /// Stores the message counts of a session for `timeout`, the time within which the peer may ask
    /// to resume the session.
    pub(super) fn add(
        &mut self,
        id: SessionId,
        over: SessionOver,
        timeout: Duration,
        now: Instant,
    ) {
        while let Some(oldest) = self.0.front()
            && (oldest.until <= now || self.0.len() >= MAX_STORED)
        {
            self.0.pop_front();
        }
        let until = now + timeout;
        self.0.push_back(Tombstone { id, over, until });
    }

    /// Returns the message counts of a session, or `None` if they are not stored. This call
    /// compares `id` with all entries. The comparisons take some microseconds, which is much less
    /// than a connect request takes.
    pub(super) fn find(&self, id: &SessionId, now: Instant) -> Option<SessionOver> {
        let mut lasting = self.0.iter().filter(|other| other.until > now);
        lasting.find(|other| other.id == *id).map(|it| it.over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> SessionId {
        let mut id = [7; 12];
        id[4..8].copy_from_slice(&number.to_be_bytes());
        SessionId(id)
    }

    const fn over(number: u32) -> SessionOver {
        SessionOver {
            received: number,
            sent: number + 1,
        }
    }

    #[test]
    fn closed_session_is_known_until_its_time() {
        let (mut closed, now) = (Tombstones::default(), Instant::now());
        let timeout = Duration::from_secs(30);
        closed.add(id(1), over(1), timeout, now);
        closed.add(id(2), over(2), timeout / 2, now);
        let later = now + timeout / 2;
        assert_eq!(closed.find(&id(1), later), Some(over(1)));
        assert_eq!(closed.find(&id(2), now), Some(over(2)));
        assert_eq!(closed.find(&id(2), later), None);
        assert_eq!(closed.find(&id(3), now), None);
        closed.add(id(3), over(3), timeout, now + timeout);
        assert_eq!(closed.0.len(), 1);
    }

    #[test]
    fn oldest_closed_session_gives_way() {
        let (mut closed, now) = (Tombstones::default(), Instant::now());
        for number in 0..10_000 {
            closed.add(id(number), over(number), Duration::from_secs(30), now);
        }
        assert_eq!(closed.0.len(), MAX_STORED);
        assert_eq!(closed.find(&id(10_000 - MAX_STORED as u32 - 1), now), None);
        assert_eq!(
            closed.find(&id(10_000 - MAX_STORED as u32), now),
            Some(over(10_000 - MAX_STORED as u32))
        );
        assert!(size_of::<Tombstone>() <= 64);
    }
}
