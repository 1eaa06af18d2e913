//! The table of keys that let the peer access this side's memory. Over RDMA, the device maintains
//! such a table.
//!
//! The addresses in the table are random numbers, so a peer does not learn real addresses. A peer
//! that was not given a key must guess both the key and the address of the memory.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    os::{Guard, lock},
    remote_access::RemoteAccess,
};

/// The alignment of the random addresses in bytes. Pages of memory have at least this alignment.
const ALIGN: u64 = 4096;

/// The keys of one connection.
#[derive(Debug, Default)]
pub(in crate::transport) struct Keys {
    entries: Mutex<HashMap<u32, Arc<Exposure>>>,
    /// The secret that turns a counter into numbers that a peer cannot guess.
    secret: RandomState,
    drawn: AtomicU64,
}

/// Memory that the peer may access.
pub(super) struct Exposure {
    rkey: u32,
    /// The random address that the peer uses for the first byte.
    addr: u64,
    len: usize,
    access: RemoteAccess,
    /// The pointer to the first byte; `None` after the key has ended.
    start: Mutex<Option<NonNull<u8>>>,
}

// SAFETY: any thread may use the pointer, but only under its lock, and only before `end` clears it.
// The bytes stay mapped until then.
unsafe impl Send for Exposure {}
// SAFETY: as above.
unsafe impl Sync for Exposure {}

/// A part of exposed memory. The peer can access this part until the key of the memory ends.
#[derive(Debug)]
pub(in crate::transport) struct ExposedPart {
    exposure: Arc<Exposure>,
    offset: usize,
    len: usize,
}

/// The access right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Right {
    Read,
    Write,
    Atomic,
}

impl Keys {
    /// Creates a key for the `len` bytes at `start`. The caller keeps these bytes mapped until it
    /// [ends](Self::end) the key.
    pub(super) fn expose(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: RemoteAccess,
    ) -> Arc<Exposure> {
        let mut entries = lock(&self.entries);
        let rkey = loop {
            let rkey = self.draw() as u32;
            if !entries.contains_key(&rkey) {
                break rkey;
            }
        };
        // The highest bit is clear, so that the end address does not overflow.
        let addr = (self.draw() >> 1) / ALIGN * ALIGN;
        let exposure = Arc::new(Exposure {
            rkey,
            addr,
            len,
            access,
            start: Mutex::new(Some(start)),
        });
        entries.insert(rkey, Arc::clone(&exposure));
        exposure
    }

    /// Ends a key. After the call the memory is no longer accessed through this key.
    pub(super) fn end(&self, exposure: &Exposure) {
        lock(&self.entries).remove(&exposure.rkey);
        *lock(&exposure.start) = None;
    }

    /// Returns the memory that a request of the peer addresses. Returns `None` if the key does not
    /// exist or does not grant `right`, or if the range exceeds the key's memory. The address of an
    /// atomic operation must also be a multiple of 8.
    pub(in crate::transport) fn find(
        &self,
        rkey: u32,
        addr: u64,
        len: u32,
        right: Right,
    ) -> Option<ExposedPart> {
        let exposure = Arc::clone(lock(&self.entries).get(&rkey)?);
        let RemoteAccess {
            read,
            write,
            atomic,
        } = exposure.access;
        let allowed = match right {
            Right::Read => read,
            Right::Write => write,
            Right::Atomic => atomic && addr.is_multiple_of(8),
        };
        let offset = usize::try_from(addr.checked_sub(exposure.addr)?).ok()?;
        let len = len as usize;
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= exposure.len);
        (allowed && inside).then_some(ExposedPart {
            exposure,
            offset,
            len,
        })
    }

    fn draw(&self) -> u64 {
        let count = self.drawn.fetch_add(1, Ordering::Relaxed);
        self.secret.hash_one(count)
    }
}

impl Exposure {
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(super) fn addr(&self) -> u64 {
        self.addr
    }
}

impl ExposedPart {
    pub(in crate::transport) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first byte of the part, or `None` after the key has ended. The part stays mapped
    /// while the result exists.
    pub(in crate::transport) fn start(&self) -> Option<MappedByte<'_>> {
        let start = lock(&self.exposure.start);
        let first = (*start)?;
        // SAFETY: `find` checked that the part lies inside the memory.
        let first = unsafe { first.add(self.offset) };
        Some(MappedByte {
            first,
            _held: start,
        })
    }
}

/// The first byte of memory that stays mapped while this value exists.
pub(in crate::transport) struct MappedByte<'a> {
    first: NonNull<u8>,
    _held: Guard<'a, Option<NonNull<u8>>>,
}

impl MappedByte<'_> {
    pub(in crate::transport) fn get(&self) -> NonNull<u8> {
        self.first
    }
}

impl fmt::Debug for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposure")
            .field("len", &self.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_gives_access_to_its_region_only() {
        let keys = Keys::default();
        let mut bytes = [0_u64; 8];
        let start = NonNull::from(&mut bytes).cast::<u8>();
        let read_only = keys.expose(start, 64, RemoteAccess::READ);
        let (rkey, addr) = (read_only.rkey(), read_only.addr());
        for (key, at, len, right, ok) in [
            (rkey, addr, 64, Right::Read, true),
            (rkey, addr + 63, 1, Right::Read, true),
            (rkey, addr + 64, 0, Right::Read, true),
            (rkey, addr, 65, Right::Read, false),
            (rkey, addr + 1, 64, Right::Read, false),
            (rkey, addr + 1, u32::MAX, Right::Read, false),
            (rkey, addr - 1, 1, Right::Read, false),
            (rkey, 0, 1, Right::Read, false),
            (rkey, u64::MAX, 1, Right::Read, false),
            (rkey ^ 1, addr, 1, Right::Read, false),
            (rkey, addr, 1, Right::Write, false),
            (rkey, addr, 8, Right::Atomic, false),
        ] {
            let found = keys.find(key, at, len, right);
            assert_eq!(found.is_some(), ok, "{at:#x} {len} {right:?}");
        }
        let part = keys.find(rkey, addr + 8, 8, Right::Read).unwrap();
        // SAFETY: the memory has eight words.
        let second = unsafe { start.add(8) };
        assert_eq!(part.start().unwrap().get(), second);
        keys.end(&read_only);
        assert!(part.start().is_none(), "an ended key must not give access");
        assert!(keys.find(rkey, addr, 1, Right::Read).is_none());
    }

    #[test]
    fn atomic_operations_want_whole_words() {
        let keys = Keys::default();
        let mut bytes = [0_u64; 8];
        let start = NonNull::from(&mut bytes).cast::<u8>();
        let exposure = keys.expose(start, 64, RemoteAccess::ATOMIC);
        let find = |offset| {
            let addr = exposure.addr() + offset;
            keys.find(exposure.rkey(), addr, 8, Right::Atomic).is_some()
        };
        assert!(find(0) && find(56));
        assert!(!find(4) && !find(57));
    }
}
