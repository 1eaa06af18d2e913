use std::{
    fs, io,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{endpoint::Endpoint, listener::Listener, transport_choice::Transport};

/// The time to live that a listener gives to the streams that it accepts.
#[derive(Debug, Default)]
pub(crate) struct ListenerTtl {
    /// 0: the default of the system.
    hops: AtomicU32,
}

/// The default of Linux, if its file cannot be read.
const DEFAULT: u32 = 64;

impl ListenerTtl {
    pub(crate) fn get(&self, listener: &Listener) -> io::Result<u32> {
        has_ttl(listener)?;
        match self.hops.load(Ordering::Relaxed) {
            0 => Ok(system_default().unwrap_or(DEFAULT)),
            hops => Ok(hops),
        }
    }

    pub(crate) fn set(&self, hops: u32, listener: &Listener) -> io::Result<()> {
        has_ttl(listener)?;
        if !(1..=255).contains(&hops) {
            // As a socket refuses it.
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.hops.store(hops, Ordering::Relaxed);
        Ok(())
    }

    /// Sets it for a stream over TCP that was accepted.
    pub(crate) fn apply(&self, accepted: &Endpoint) {
        let hops = self.hops.load(Ordering::Relaxed);
        if hops == 0 || accepted.transport() != Transport::Tcp {
            return;
        }
        if let Err(error) = accepted.set_hop_limit(hops) {
            // The connection has ended, and a read returns that.
            debug!("{accepted:?}: no time to live was set: {error}");
        }
    }
}

fn has_ttl(listener: &Listener) -> io::Result<()> {
    if listener.transports().contains(&Transport::Tcp) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "a time to live cannot be set for a listener over RDMA alone",
    ))
}

fn system_default() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").ok()?;
    text.trim().parse().ok()
}
