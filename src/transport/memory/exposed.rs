//! Large messages that are lent to the peer, each with a key of its own.
//!
//! A message is either registered alone, or it lies in memory that stays registered without access
//! for peers, and a memory window gives access to its bytes. A window is bound by a work request
//! before the announcement, and invalidated by another one when the peer has taken the message. So
//! after the first messages none needs a system call. Only a device whose windows have passed a
//! test has them (`rdma/windows.rs`). In other cases messages are registered:
//!
//! * all windows that the send queue has places for are in use;
//! * the message is longer than an eighth of the memory that the connection keeps, so that the
//!   memory would not stay registered;
//! * the budget has no room for memory that stays registered, or the system refuses it.
//!
//! A window is of type 2B, so only the queue pair with which it is bound uses its key. The peer can
//! invalidate it, and so ends its own connection. A window gets another key with each bind, and is
//! freed before its keys repeat.
//!
//! [`Exposed`] is the owner of the memory. It returns no references to the bytes. Its memory goes
//! back to the pool with its window only if the window was never bound, or after the invalidation
//! has completed. Otherwise the window is freed first, which ends the access as well.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::{
    domain::{Domain, Registration},
    outbound_pool::OutboundBuffer,
};
#[cfg(feature = "rdma")]
pub(crate) use crate::transport::rdma::MemoryWindow as Window;
use crate::{proto::Descriptor, transport::budget::Charge};

/// The greatest number of windows of a connection that are in use. Half of them are for messages
/// that the peer has not taken, the others for those whose windows are being invalidated.
pub(crate) const WINDOWS: u32 = 8;

/// A window of a transport without windows.
#[cfg(not(feature = "rdma"))]
#[derive(Debug)]
pub(crate) enum Window {}

/// Memory that stays registered, with its window. The fields are dropped in order: the kernel
/// deregisters no region to which a window is bound.
#[derive(Debug)]
pub(super) struct Windowed {
    window: Window,
    region: Registration,
    /// The number of binds until the keys of the window would repeat.
    keys_left: u8,
    _kept: Charge,
}

impl Windowed {
    pub(super) fn new(region: Registration, window: Window, kept: Charge) -> Box<Self> {
        Box::new(Self {
            window,
            region,
            // A bind chooses the low 8 bits of the key. Each message has another key.
            keys_left: u8::MAX,
            _kept: kept,
        })
    }
}

/// The number of windows of a connection that are in use.
#[derive(Debug, Default)]
pub(super) struct InUse(Arc<AtomicU32>);

/// A place for a window among those in use.
#[derive(Debug)]
struct Permit(Arc<AtomicU32>);

impl InUse {
    /// Takes a place, if there is one.
    fn take(&self) -> Option<Permit> {
        let more = |count| (count < WINDOWS).then_some(count + 1);
        let order = Ordering::Relaxed;
        let taken = self.0.fetch_update(order, order, more);
        taken.ok().map(|_| Permit(Arc::clone(&self.0)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message that the peer may READ. The peer has access to exactly the bytes of the message.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// Dropped before `memory`, because the peer cannot read the bytes after that.
    exposure: Exposure,
    memory: OutboundBuffer,
}

#[derive(Debug)]
enum Exposure {
    /// The registration of these bytes alone.
    Registered(Registration),
    Windowed {
        windowed: Box<Windowed>,
        /// Whether a bind was posted.
        is_bound: bool,
        _permit: Permit,
    },
}

impl Exposed {
    pub(super) fn registered(region: Registration, memory: OutboundBuffer) -> Self {
        Self {
            exposure: Exposure::Registered(region),
            memory,
        }
    }

    /// Lends a buffer by a window. Returns the buffer if that is impossible.
    pub(super) fn windowed(
        mut memory: OutboundBuffer,
        domain: &Domain,
    ) -> Result<Self, OutboundBuffer> {
        if !memory.pool().has_windows() {
            return Err(memory);
        }
        let permit = memory.pool().in_use.take();
        let windowed = permit.and_then(|permit| Some((memory.take_windowed(domain)?, permit)));
        match windowed {
            Some((windowed, permit)) => Ok(Self {
                exposure: Exposure::Windowed {
                    windowed,
                    is_bound: false,
                    _permit: permit,
                },
                memory,
            }),
            None => Err(memory),
        }
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        let (addr, rkey) = match &self.exposure {
            Exposure::Registered(region) => (region.addr(), region.rkey()),
            Exposure::Windowed { windowed, .. } => (windowed.region.addr(), rkey(&windowed.window)),
        };
        Descriptor {
            addr,
            len: self.memory.len() as u64,
            rkey,
        }
    }

    /// Returns the window that the caller binds, or whose invalidation it posts, with its region
    /// and the number of bytes to lend.
    pub(crate) fn window(&mut self) -> Option<(&mut Window, &Registration, usize)> {
        match &mut self.exposure {
            Exposure::Registered(_) => None,
            Exposure::Windowed {
                windowed, is_bound, ..
            } => {
                *is_bound = true;
                let Windowed { window, region, .. } = &mut **windowed;
                Some((window, region, self.memory.len()))
            }
        }
    }

    /// Whether a bind of the window was posted.
    pub(crate) fn is_bound(&self) -> bool {
        match self.exposure {
            Exposure::Registered(_) => false,
            Exposure::Windowed { is_bound, .. } => is_bound,
        }
    }

    /// Ends the access of the peer and returns the memory. The key becomes invalid.
    pub(crate) fn take_back(self) -> OutboundBuffer {
        let Self {
            exposure,
            mut memory,
        } = self;
        match exposure {
            Exposure::Windowed {
                windowed,
                is_bound: false,
                ..
            } => memory.put_windowed(windowed),
            exposure => drop(exposure),
        }
        memory
    }

    /// Returns the memory with its window to the pool. The invalidation of the window has
    /// completed.
    pub(crate) fn invalidated(self) {
        let Self {
            exposure,
            mut memory,
        } = self;
        if let Exposure::Windowed { mut windowed, .. } = exposure {
            windowed.keys_left -= 1;
            if windowed.keys_left > 0 {
                memory.put_windowed(windowed);
            }
        }
    }
}

#[cfg(feature = "rdma")]
fn rkey(window: &Window) -> u32 {
    window.rkey()
}

#[cfg(not(feature = "rdma"))]
fn rkey(window: &Window) -> u32 {
    match *window {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_windows_are_limited_and_return() {
        let in_use = InUse::default();
        let mut permits: Vec<_> = std::iter::from_fn(|| in_use.take()).collect();
        assert_eq!(permits.len(), WINDOWS as usize);
        permits.pop();
        let last = in_use.take();
        assert!(last.is_some() && in_use.take().is_none());
    }
}
