//! Large messages that are exposed to the peer, each with its own key.
//!
//! There are two ways to expose a message:
//!
//! * The bytes of the message are registered separately.
//! * The message lies in memory that stays registered without access for peers. A memory window
//!   gives the peer access to the bytes of the message. A work request binds the window before the
//!   announcement. Another work request invalidates the window after the peer has read the message.
//!   So after the first messages, windows need no system call.
//!
//! Windows are used only if the device has passed a test (`rdma/windows.rs`). Even then, a message
//! is registered separately in these cases:
//!
//! * all windows of the connection are in use;
//! * the memory of the message is longer than an eighth of the limit of the connection's pool, so
//!   the pool could not keep the memory of eight such messages;
//! * the budget has no room for memory that stays registered, or the system refuses the
//!   registration.
//!
//! The windows are of type 2B: the key is valid only on the queue pair to which the window is
//! bound. If the peer invalidates the window, only the peer's own connection ends. Each bind
//! changes the window's key. The window is freed before its keys repeat.
//!
//! [`Exposed`] owns the memory, and returns no references to the bytes. If the window was never
//! bound, or its invalidation has completed, the memory and the window return to the pool together.
//! In all other cases, the window is freed before the memory returns to the pool. Freeing the
//! window ends the peer's access.
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

/// The maximum number of windows that one connection uses at a time. Half of them suffice for the
/// messages that the peer has not read. The other half is for messages whose windows are being
/// invalidated.
pub(crate) const WINDOWS: u32 = 8;

/// The type of a window in a build without windows. It has no values.
#[cfg(not(feature = "rdma"))]
#[derive(Debug)]
pub(crate) enum Window {}

/// Memory that stays registered, and its window. The window is dropped before the region, because
/// the kernel does not deregister a region to which a window is bound.
#[derive(Debug)]
pub(super) struct Windowed {
    window: Window,
    region: Registration,
    /// The number of binds that remain before the window's keys repeat.
    keys_left: u8,
    _kept: Charge,
}

impl Windowed {
    pub(super) fn new(region: Registration, window: Window, kept: Charge) -> Box<Self> {
        Box::new(Self {
            window,
            region,
            // Each bind, and therefore each message, uses a new value of the low 8 bits of the key.
            keys_left: u8::MAX,
            _kept: kept,
        })
    }
}

/// The number of windows that the connection is using.
#[derive(Debug, Default)]
pub(super) struct InUse(Arc<AtomicU32>);

/// The permission to use one window. Dropping the permit decrements the number of windows in use.
#[derive(Debug)]
struct Permit(Arc<AtomicU32>);

impl InUse {
    /// Returns a permit if fewer than [`WINDOWS`] windows are in use.
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

/// A message that the peer can read. The peer has access to exactly the bytes of the message.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// The peer's access. It is dropped before `memory`, so that the peer cannot access freed
    /// memory.
    exposure: Exposure,
    memory: OutboundBuffer,
}

#[derive(Debug)]
enum Exposure {
    /// A registration of exactly the bytes of the message.
    Registered(Registration),
    Windowed {
        windowed: Box<Windowed>,
        /// Whether a bind of the window was posted, or may have been posted.
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

    /// Exposes a buffer through a memory window. If no window can be used for the buffer, returns
    /// the buffer as an error.
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

    /// Returns the window, its region and the number of bytes to expose; `None` if the message has
    /// no window. After this call, the caller posts a bind of the window, or the invalidation of a
    /// window that it has bound before. So this function marks the window as bound.
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

    /// Returns true if a bind of the window was posted or may have been posted.
    pub(crate) fn is_bound(&self) -> bool {
        match self.exposure {
            Exposure::Registered(_) => false,
            Exposure::Windowed { is_bound, .. } => is_bound,
        }
    }

    /// Ends the peer's access, and returns the memory. The key becomes invalid.
    pub(crate) fn into_buffer(self) -> OutboundBuffer {
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

    /// Puts the memory and its window back into the pool, after the invalidation of the window has
    /// completed. If the window's keys would repeat, only the memory returns to the pool, and the
    /// window is freed.
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
    fn number_of_windows_in_use_is_limited() {
        let in_use = InUse::default();
        let mut permits: Vec<_> = std::iter::from_fn(|| in_use.take()).collect();
        assert_eq!(permits.len(), WINDOWS as usize);
        permits.pop();
        let last = in_use.take();
        assert!(last.is_some() && in_use.take().is_none());
    }
}
