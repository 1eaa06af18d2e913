use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use crate::{config::within, error::Error};

/// The pauses between the dials of a [`Persistent`](crate::Persistent) client.
///
/// The first dial of a client starts immediately. Before each later dial the client pauses for a
/// random time between zero and a bound. The bound starts at [`first_pause`](Self::first_pause) and
/// doubles after each pause, up to [`longest_pause`](Self::longest_pause). Because the pauses are
/// random, clients that lose their connections together do not dial at the same times. The bound
/// starts at `first_pause` again after a connection that lasted at least `longest_pause`.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
///
/// use rdmsg::{Connector, Redial};
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let mut redial = Redial::default();
/// redial.limit = Some(Duration::from_secs(600));
/// let client = Connector::new().redial(redial).persist("10.8.0.1:7471")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redial {
    /// The upper bound of the first pause. The bound doubles for each later pause, up to
    /// [`longest_pause`](Self::longest_pause). Each pause has a random length below its bound.
    ///
    /// 1 ms to 10 min, default 100 ms.
    pub first_pause: Duration,

    /// The maximum pause between two dials.
    ///
    /// 1 ms to 10 min, default 10 s.
    pub longest_pause: Duration,

    /// The maximum time for which the client keeps dialing without success.
    ///
    /// The client ends after a failed dial if the next dial would start after this time. `None`,
    /// the default, means no limit.
    pub limit: Option<Duration>,
}

impl Default for Redial {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(10),
            limit: None,
        }
    }
}

impl Redial {
    pub(super) fn check(&self) -> Result<(), Error> {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(600));
        within("first_pause", self.first_pause, least, most)?;
        within("longest_pause", self.longest_pause, least, most)
    }

    /// Returns a random length for the next pause. `earlier` is the number of earlier pauses.
    fn pause(&self, earlier: u32) -> Duration {
        let random = RandomState::new().hash_one(earlier) >> 11;
        self.bound(earlier)
            .mul_f64(random as f64 / (1_u64 << 53) as f64)
    }

    fn bound(&self, earlier: u32) -> Duration {
        let factor = 1_u32.checked_shl(earlier).unwrap_or(u32::MAX);
        let bound = self.first_pause.saturating_mul(factor);
        bound.min(self.longest_pause)
    }
}

/// The dials since the client lost a connection that had lasted at least `longest_pause`, or since
/// the client started.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// The number of pauses.
    pauses: u32,
    /// The time of the first of these dials.
    since: Option<Instant>,
}

impl Dials {
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Returns a random length for the next pause, and counts this pause.
    pub(super) fn pause(&mut self, redial: &Redial) -> Duration {
        let pause = redial.pause(self.pauses);
        self.pauses = self.pauses.saturating_add(1);
        pause
    }

    /// Returns whether another dial at time `at` would exceed the limit.
    pub(super) fn exceed(&self, limit: Option<Duration>, at: Instant) -> bool {
        match (limit, self.since) {
            (Some(limit), Some(since)) => at.saturating_duration_since(since) > limit,
            (None, _) | (_, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_doubles_up_to_the_longest_pause() {
        let redial = Redial::default();
        let bounds = [0, 1, 2, 6, 7, 31, 32, u32::MAX].map(|earlier| redial.bound(earlier));
        let millis = [100, 200, 400, 6400, 10_000, 10_000, 10_000, 10_000];
        assert_eq!(bounds, millis.map(Duration::from_millis));
    }

    #[test]
    fn pauses_of_many_clients_are_spread() {
        let redial = Redial::default();
        let mut quarters = [0; 4];
        for _ in 0..500 {
            let pause = redial.pause(3);
            assert!(pause < Duration::from_millis(800), "{pause:?}");
            quarters[(pause.as_millis() / 200) as usize] += 1;
        }
        assert!(quarters.iter().all(|count| *count > 60), "{quarters:?}");
    }

    #[test]
    fn impossible_pauses_are_refused() {
        let redial = Redial {
            first_pause: Duration::ZERO,
            ..Redial::default()
        };
        assert_eq!(
            redial.check().unwrap_err().to_string(),
            "invalid configuration: first_pause is 0ns, allowed is 1ms to 600s"
        );
    }
}
