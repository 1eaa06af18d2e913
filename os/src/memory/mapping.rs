#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    mem,
    ops::Range,
    ptr::{self, NonNull},
};

use rdma_status::OsError;

use crate::{PerProcess, cvt, cvt_ptr};

/// Zeroed pages that are private to this process.
#[derive(Debug)]
#[expect(clippy::len_without_is_empty, reason = "it has at least one byte")]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

const USABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

// SAFETY: the pages belong to the process and not to a thread; the users of `start` synchronise
// access to them.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` only gives its address and length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, rounded up to whole pages.
    pub fn new(len: usize) -> Result<Self, OsError> {
        Self::with(len, USABLE)
    }

    /// Reserves addresses for `len` bytes, which [`make_usable`](Self::make_usable) makes usable.
    /// Before that, they do not count as committed memory (`Committed_AS`).
    ///
    /// Otherwise the same as [`new`](Self::new).
    pub fn reserve(len: usize) -> Result<Self, OsError> {
        Self::with(len, libc::PROT_NONE)
    }

    fn with(len: usize, prot: libc::c_int) -> Result<Self, OsError> {
        const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

        let len = len
            .checked_next_multiple_of(page_size())
            .filter(|&len| len > 0 && isize::try_from(len).is_ok())
            .ok_or(OsError::new("mmap", libc::EINVAL))?;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, FLAGS, -1, 0) };
        let start = if start == libc::MAP_FAILED {
            ptr::null_mut()
        } else {
            start
        };
        Ok(Self {
            start: cvt_ptr("mmap", start.cast())?,
            len,
        })
    }

    /// Prepares the pages for a device, which continues to use them after a fork.
    ///
    /// Linux 5.12 and newer give a child a copy of these pages. On older kernels a write after a
    /// fork would move this process to another page, and leave the old one to the device. There a
    /// child does not inherit the pages.
    pub fn prepare_for_device(&self) -> Result<(), OsError> {
        static ARE_COPIED: PerProcess<bool> = PerProcess::new(fork_copies_pinned_pages);
        if *ARE_COPIED.get() {
            return Ok(());
        }
        let start = self.start.as_ptr().cast();
        // SAFETY: these are exactly the pages of this mapping; the advice has no effect on this
        // process.
        let ret = unsafe { libc::madvise(start, self.len, libc::MADV_DONTFORK) };
        cvt("madvise", ret).map(drop)
    }

    /// Makes bytes of a reserved mapping usable. The range begins at a page.
    pub fn make_usable(&mut self, range: Range<usize>) -> Result<(), OsError> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "the bytes lie in the mapping"
        );
        let start = self.start.as_ptr().wrapping_add(range.start);
        // SAFETY: these pages belong to the mapping; those that are usable already stay so.
        let ret = unsafe { libc::mprotect(start.cast(), range.len(), USABLE) };
        cvt("mprotect", ret).map(drop)
    }

    /// Returns the address of the first byte, page aligned.
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
        // SAFETY: the pages were mapped by `with`, have no user left, and are unmapped once, here.
        let ret = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        if let Err(error) = cvt("munmap", ret) {
            error!(
                Process,
                "cannot unmap {} bytes, which are leaked: {error}", self.len
            );
        }
    }
}

/// Returns whether fork(2) copies the pages that a device uses.
fn fork_copies_pinned_pages() -> bool {
    // SAFETY: all zero is a valid value of the structure, which holds arrays of bytes.
    let mut names: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: the structure is a local.
    let ret = unsafe { libc::uname(&raw mut names) };
    let release = names.release.map(|byte| byte.cast_unsigned());
    let release = CStr::from_bytes_until_nul(&release);
    ret == 0 && release.is_ok_and(|release| is_at_least(&release.to_string_lossy(), (5, 12)))
}

/// Returns whether a kernel release, such as `6.1.0-18-amd64`, is at least `version`.
fn is_at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|other: char| !other.is_ascii_digit())
        .map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= version,
        _ => false,
    }
}

fn page_size() -> usize {
    // SAFETY: `sysconf` only reads.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // POSIX requires the value, so the fallback is never taken; 64 KiB is a multiple of every page
    // size there is.
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
        // SAFETY: the mapping has that length, and is used here only.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.start().as_ptr(), mapping.len()) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_reserved_mapping_becomes_usable_piece_by_piece() {
        let page = page_size();
        let mut mapping = Mapping::reserve(5 * page).unwrap();
        mapping.make_usable(0..page).unwrap();
        mapping.make_usable(page..mapping.len()).unwrap();
        // SAFETY: the mapping has that length, all of it is usable, and it is used here only.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.start().as_ptr(), mapping.len()) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn releases_are_compared_by_number() {
        for (release, is) in [
            ("6.1.0-18-amd64", true),
            ("5.12", true),
            ("5.11.22", false),
            ("4.18.0-553.el8", false),
            ("10.0", true),
            ("", false),
            ("rolling", false),
        ] {
            assert_eq!(is_at_least(release, (5, 12)), is, "{release}");
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, usize::MAX, isize::MAX as usize] {
            assert_eq!(Mapping::new(len).unwrap_err().call, "mmap", "{len}");
        }
    }
}
