//! One listener as the engine's thread keeps it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crossbeam_channel::Sender;

use super::{Engine, backlog::Backlog, entry::HalfOpen};
use crate::{
    cm::{CmId, EventChannel, PortSpace},
    config::Config,
    error::Error,
    listener::Request,
    status::OsError,
};

/// The wait before a listener that lost its device is first bound again, and the longest between
/// two tries.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The requests that the kernel keeps until they are taken from it. What is too much is to be
/// rejected here, by name: the kernel drops it without a word, and the peer repeats it some seconds
/// later. The kernel has a limit of its own, which is 1024.
const KERNEL_BACKLOG: i32 = 1024;

/// A listener. Whoever waits for its connections learns of its end when it is dropped.
pub(super) struct Listening {
    pub(super) local: SocketAddr,
    pub(super) config: Config,
    pub(super) requests: Sender<Request>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) engine: Engine,
    /// Requests that are not established yet.
    pub(super) half_open: HalfOpen,
    place: Place,
}

/// Where it listens.
enum Place {
    /// On this id, for as long as it is there.
    Bound { _id: CmId },
    /// Nowhere: its device is gone, or its address. The next try is this long after the last.
    Lost { wait: Duration },
}

/// Makes an id that listens.
pub(super) fn bind(
    channel: &EventChannel,
    key: u64,
    address: SocketAddr,
    backlog: u16,
) -> Result<CmId, OsError> {
    let mut id = CmId::new(channel, PortSpace::TCP, key)?;
    id.set_reuseaddr(true)?;
    id.bind_addr(address)?;
    id.listen(i32::from(backlog).max(KERNEL_BACKLOG))?;
    Ok(id)
}

impl Listening {
    pub(super) fn new(
        id: CmId,
        local: SocketAddr,
        config: Config,
        requests: Sender<Request>,
        backlog: Arc<Backlog>,
        engine: Engine,
    ) -> Self {
        Self {
            local,
            config,
            requests,
            backlog,
            engine,
            half_open: HalfOpen::default(),
            place: Place::Bound { _id: id },
        }
    }

    /// Its device is gone, or its address: the id goes, which the device waits for. Says when to
    /// try again.
    pub(super) fn lose(&mut self) -> Duration {
        self.place = Place::Lost { wait: FIRST_WAIT };
        FIRST_WAIT
    }

    /// Binds it again, if it is lost. Says when to try once more.
    pub(super) fn try_again(&mut self, channel: &EventChannel, key: u64) -> Option<Duration> {
        let Place::Lost { wait } = &mut self.place else {
            return None;
        };
        *wait = (*wait * 2).min(LONGEST_WAIT);
        let wait = *wait;
        match bind(channel, key, self.local, self.config.backlog) {
            // Otherwise the address is one of no device, for now.
            Ok(id) if id.has_device() => {
                log::info!("listener {key} on {}: bound again", self.local);
                self.place = Place::Bound { _id: id };
                return None;
            }
            Ok(_) => log::debug!("listener {key} on {}: no device yet", self.local),
            Err(error) => log::debug!("listener {key} on {}: not yet: {error}", self.local),
        }
        Some(wait)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.backlog.finish(Error::EngineShutDown);
    }
}
