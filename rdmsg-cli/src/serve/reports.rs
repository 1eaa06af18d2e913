use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::doctor::Examination;

/// The time for which an examination is cached. An examination starts other programs, so clients
/// must not be able to trigger an examination with each request.
const AGE: Duration = Duration::from_secs(2);

/// The last examination of this host, and its time. The server sends examinations to `rdmsg doctor`
/// on other hosts.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Option<(Instant, Examination)>>);

impl Reports {
    /// Returns an examination of this host as JSON. The links and the route to the peer are
    /// current; all other findings are at most `AGE` old.
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
