use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::doctor::Examination;

/// The time for which one examination answers all requests. An examination starts programs, so a
/// client must not be able to cause one per request.
const AGE: Duration = Duration::from_secs(2);

/// The last examination of this host. The server sends it to `rdmsg doctor` on other hosts.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Option<(Instant, Examination)>>);

impl Reports {
    /// Returns an examination of this host as JSON. It is at most `AGE` old, except that the state
    /// of the links and the route to the peer are current.
    pub(super) fn for_peer(&self, peer: IpAddr) -> String {
        let mut examination = self.last();
        examination.look_towards(peer);
        examination.to_json()
    }

    fn last(&self) -> Examination {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, examination)) = &*last
            && at.elapsed() < AGE
        {
            return examination.clone();
        }
        let examination = Examination::of_this_host(None, None);
        *last = Some((Instant::now(), examination.clone()));
        examination
    }
}
