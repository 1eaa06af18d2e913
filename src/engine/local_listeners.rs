//! The addresses of listeners of the in-memory transport. The engine that serves the listener at an
//! address also serves the connections to this address.

use std::{
    collections::HashMap,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{Engine, command::Handle};
use crate::{
    addresses::serves,
    os::{PerProcess, lock},
    status::OsError,
};

/// The ports that replace port 0. They are assigned in rotation.
const FREE: RangeInclusive<u16> = 49_152..=u16::MAX;
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The errors of [`claim`] contain this text as the name of the failed call.
const CALL: &str = "claim";

static LISTENERS: PerProcess<Listeners> = PerProcess::new(Listeners::default);

#[derive(Default)]
struct Listeners {
    engines: Mutex<HashMap<SocketAddr, Weak<Handle>>>,
    /// Notified after each claim.
    claimed: Condvar,
}

/// The claim of a listener to its address. Dropping it frees the address.
pub(super) struct Claim(pub(super) SocketAddr);

/// Claims an address. Replaces port 0 with a free port.
pub(super) fn claim(mut address: SocketAddr, engine: &Arc<Handle>) -> Result<Claim, OsError> {
    let Listeners { engines, claimed } = LISTENERS.get();
    let mut listeners = lock(engines);
    let is_free = |address: &SocketAddr| !listeners.keys().any(|used| serves(*used, *address));
    if address.port() == 0 {
        let is_found = FREE.clone().any(|_| {
            let next = NEXT.fetch_add(1, Ordering::Relaxed) % FREE.len();
            address.set_port(FREE.start() + next as u16);
            is_free(&address)
        });
        if !is_found {
            return Err(OsError::new(CALL, libc::EADDRNOTAVAIL));
        }
    } else if !is_free(&address) {
        return Err(OsError::new(CALL, libc::EADDRINUSE));
    }
    listeners.insert(address, Arc::downgrade(engine));
    claimed.notify_all();
    Ok(Claim(address))
}

/// Returns the engine of the listener that accepts connections to an address.
pub(crate) fn engine_of(address: SocketAddr) -> Option<Engine> {
    // This block releases the lock before the handle `engine` is dropped. Dropping the last handle
    // may end the engine and drop its claims, and the destructor of a claim takes the same lock.
    let engine = {
        let listeners = lock(&LISTENERS.get().engines);
        let mut listeners = listeners.iter();
        let (_, engine) = listeners.find(|(listener, _)| serves(**listener, address))?;
        engine.upgrade()?
    };
    engine.runs().then(|| Engine::of(engine))
}

/// Waits until a listener accepts connections to one of these addresses. Returns the engine of the
/// listener, or `None` after the `timeout`.
pub(crate) fn wait_for_engine(addresses: &[SocketAddr], timeout: Duration) -> Option<Engine> {
    let Listeners { engines, claimed } = LISTENERS.get();
    let is_missing = |engines: &mut HashMap<SocketAddr, Weak<Handle>>| {
        let mut used = engines.keys();
        !used.any(|used| addresses.iter().any(|address| serves(*used, *address)))
    };
    drop(lock(engines).wait_while(engines, claimed, Some(timeout), is_missing));
    addresses.iter().find_map(|address| engine_of(*address))
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&LISTENERS.get().engines).remove(&self.0);
    }
}
