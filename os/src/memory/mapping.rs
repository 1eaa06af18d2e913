#![allow(unsafe_code)]

use std::{
    ops::Range,
    ptr::{self, NonNull},
};

use rdma_status::OsError;

use crate::{cvt, cvt_ptr};

/// A private, initially zeroed memory mapping.
#[derive(Debug)]
#[expect(clippy::len_without_is_empty, reason = "it has at least one byte")]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

/// The size of a huge page in bytes.
pub(super) const HUGE: usize = 2 << 20;

const USABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

// SAFETY: `start` points to pages that belong to the process, not to a thread. Code that accesses
// the pages through `start` synchronises its accesses.
unsafe impl Send for Mapping {}
// SAFETY: the methods of a shared `Mapping` read its address and its length, which do not change,
// and make system calls, which threads may make concurrently.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `len` bytes. The length is rounded up to whole pages.
    pub fn new(len: usize) -> Result<Self, OsError> {
        Self::with(len, USABLE)
    }

    /// Maps at least `len` bytes, which are not accessible before
    /// [`make_usable`](Self::make_usable) is called. Until then, the kernel does not count them as
    /// committed memory (`Committed_AS`).
    pub fn reserve(len: usize) -> Result<Self, OsError> {
        Self::with(len, libc::PROT_NONE)
    }

    fn with(len: usize, prot: libc::c_int) -> Result<Self, OsError> {
        let len = len
            .checked_next_multiple_of(page_size())
            .filter(|&len| len > 0 && isize::try_from(len).is_ok())
            .ok_or(OsError::new("mmap", libc::EINVAL))?;
        let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // The kernel may merge adjacent small mappings into an area in which it uses huge pages.
        // The first write to a mapping would then allocate the memory of many others. Since Linux
        // 6.7, MAP_STACK excludes a mapping from huge pages. Older kernels ignore the flag.
        if len < HUGE {
            flags |= libc::MAP_STACK;
        }
        let start = cvt_ptr("mmap", || {
            // SAFETY: with a null address and without MAP_FIXED, `mmap` chooses the address and
            // changes no existing mapping.
            match unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) } {
                libc::MAP_FAILED => ptr::null_mut(),
                start => start.cast(),
            }
        })?;
        Ok(Self { start, len })
    }

    /// Makes the bytes of `range` in a reserved mapping accessible. The range must begin at a page
    /// boundary.
    pub fn make_usable(&mut self, range: Range<usize>) -> Result<(), OsError> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "the range must lie in the mapping"
        );
        let start = self.start.as_ptr().wrapping_add(range.start);
        // SAFETY: as asserted above, the pages belong to this mapping. Pages that are already
        // accessible stay accessible.
        cvt("mprotect", || unsafe {
            libc::mprotect(start.cast(), range.len(), USABLE)
        })
        .map(drop)
    }

    /// Unmaps the pages of `range`, which must be at the start or at the end of the mapping.
    pub(super) fn unmap(&mut self, range: Range<usize>) -> Result<(), OsError> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "the range must lie in the mapping"
        );
        assert!(
            range.start == 0 || range.end == self.len,
            "the remaining pages must be contiguous"
        );
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: as asserted above, `range.start` is at most the length of the mapping.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: the pages belong to this mapping, and no other code uses them yet.
        cvt("munmap", || unsafe {
            libc::munmap(start.as_ptr().cast(), range.len())
        })?;
        if range.start == 0 {
            // SAFETY: `range.end` is at most the length of the mapping, so the new start is at most
            // one past its end.
            self.start = unsafe { self.start.add(range.end) };
        }
        self.len -= range.len();
        Ok(())
    }

    /// Returns the address of the first byte, which is page-aligned.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `with` mapped these pages, only this `drop` unmaps them, and no other code uses
        // them afterwards.
        let unmapped = cvt("munmap", || unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len)
        });
        if let Err(error) = unmapped {
            error_elsewhere!(
                Process,
                "cannot unmap {} bytes of memory, which leak: {error}",
                self.len
            );
        }
    }
}

pub(super) fn page_size() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // POSIX requires this value to exist, so the fallback of 64 KiB is never used. The fallback is
    // a multiple of the page size of every supported platform.
    usize::try_from(size).unwrap_or(64 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_zeroed() {
        let mapping = Mapping::new(page_size() + 1).unwrap();
        assert_eq!(mapping.len(), 2 * page_size());
        assert_eq!(mapping.start().addr().get() % page_size(), 0);
        // SAFETY: the mapping has `len` accessible bytes from `start`, and no other code accesses
        // them.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.start().as_ptr(), mapping.len()) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_reserved_mapping_becomes_usable_piece_by_piece() {
        let page = page_size();
        let mut mapping = Mapping::reserve(5 * page).unwrap();
        mapping.make_usable(0..page).unwrap();
        mapping.make_usable(page..mapping.len()).unwrap();
        // SAFETY: the mapping has `len` bytes from `start`, `make_usable` made all of them
        // accessible, and no other code accesses them.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.start().as_ptr(), mapping.len()) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, usize::MAX, isize::MAX as usize] {
            assert_eq!(Mapping::new(len).unwrap_err().call, "mmap", "{len}");
        }
    }
}
