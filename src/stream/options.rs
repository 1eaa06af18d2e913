use std::{
    fs, io,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use super::Stream;
use crate::{endpoint::Endpoint, listener::Listener, transport_choice::Transport};

/// Provides the common socket options of [`std::net::TcpStream`].
impl Stream {
    /// Returns the time to live of this stream's packets: the maximum number of hops.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the route determines the hop limit,
    ///   and no call returns it. An in-memory stream returns the same error, because it
    ///   sends no packets.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn ttl(&self) -> io::Result<u32> {
        self.shared.endpoint.ttl()
    }

    /// Sets the time to live of this stream's packets, from 1 to 255 hops. If the program sets
    /// no value, the system default applies, usually 64.
    ///
    /// # Errors
    ///
    /// * [`InvalidInput`](io::ErrorKind::InvalidInput) if `ttl` is not in the range 1 to 255.
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the hop limit is set when the route
    ///   is resolved, and no call changes it. An in-memory stream returns the same error,
    ///   because it sends no packets. In both cases the stream stays open.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.shared.endpoint.set_ttl(ttl)
    }

    /// Returns the duration set by [`set_linger`](Self::set_linger).
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.endpoint.linger())
    }

    /// Sets how the stream ends when its last handle is dropped. Default: `None`.
    ///
    /// * `None`: the peer reads all bytes that were written, and then reaches the end of the
    ///   stream. Dropping does not wait for the delivery.
    /// * Zero: dropping resets the connection. Bytes that have not arrived are lost, and a read by
    ///   the peer fails with [`ConnectionReset`](io::ErrorKind::ConnectionReset).
    /// * Any other duration has the effect of `None`. Dropping never waits for this duration.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.shared.endpoint.set_linger(linger);
        Ok(())
    }

    /// Sets the value that [`nodelay`](Self::nodelay) returns. The value has no other effect,
    /// because a stream never delays writes.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.shared.endpoint.set_nodelay(nodelay);
        Ok(())
    }

    /// Returns the value set by [`set_nodelay`](Self::set_nodelay). Default: `false`.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.shared.endpoint.nodelay())
    }
}

/// The time limit of reads or writes. Default: no limit.
#[derive(Debug, Default)]
pub(super) struct Timeout {
    /// The time limit in nanoseconds, at most 584 years; 0 means no limit.
    nanos: AtomicU64,
}

impl Timeout {
    pub(super) fn get(&self) -> Option<Duration> {
        match self.nanos.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// Sets the time limit. A duration of zero is an error, as for [`std::net::TcpStream`].
    pub(super) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        let nanos = match timeout {
            None => 0,
            Some(Duration::ZERO) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a timeout must not be zero; to avoid waiting, use set_nonblocking",
                ));
            }
            Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        self.nanos.store(nanos, Ordering::Relaxed);
        Ok(())
    }
}

/// The time to live of the streams that a listener accepts.
#[derive(Debug, Default)]
pub(crate) struct ListenerTtl {
    /// The time to live in hops; 0 means the system default.
    hops: AtomicU32,
}

/// The default time to live on Linux, in hops. Used if the kernel's setting cannot be read.
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
            // A TCP socket returns the same error for such a value.
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.hops.store(hops, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the time to live of an accepted stream. Does nothing if the program has set no value,
    /// or if the stream is not over TCP.
    pub(crate) fn apply(&self, accepted: &Endpoint) {
        let hops = self.hops.load(Ordering::Relaxed);
        if hops == 0 || accepted.transport() != Transport::Tcp {
            return;
        }
        if let Err(error) = accepted.set_hop_limit(hops) {
            // The usual cause is that the connection has ended. In this case the next read of the
            // stream returns the reason.
            debug!(
                Connection,
                "{}: cannot set the time to live (TTL) to {hops} hops: {error}",
                accepted.name()
            );
        }
    }
}

fn has_ttl(listener: &Listener) -> io::Result<()> {
    if listener.transports().contains(&Transport::Tcp) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "a listener that accepts no TCP connections has no time to live (TTL)",
    ))
}

fn system_default() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").ok()?;
    text.trim().parse().ok()
}
