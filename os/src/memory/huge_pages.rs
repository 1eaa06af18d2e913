//! Mappings in huge pages.
#![allow(unsafe_code)]

use std::ops::Range;

use rdma_status::OsError;

use super::{
    Mapping,
    mapping::{HUGE, page_size},
};

impl Mapping {
    /// Maps at least `len` bytes as [`new`](Self::new) does. If `len` is 2 MiB or more, aligns the
    /// mapping to 2 MiB and requests huge pages for it.
    ///
    /// A device translates addresses page by page, so huge pages reduce the number of translations.
    /// Huge pages use no additional memory, because all pages that a device has pinned are resident
    /// anyway. A kernel without transparent huge pages ignores the request.
    pub fn in_huge_pages(len: usize) -> Result<Self, OsError> {
        if len < HUGE {
            return Self::new(len);
        }
        // `aligned` temporarily needs 2 MiB more address space. If a resource limit forbids this,
        // map ordinary pages.
        let Ok(mapping) = Self::aligned(len) else {
            return Self::new(len);
        };
        let start = mapping.start().as_ptr().cast();
        // SAFETY: `start` and `len()` describe exactly this mapping. MADV_HUGEPAGE does not change
        // its contents. The result is ignored, because the mapping also works with small pages.
        let _ = unsafe { libc::madvise(start, mapping.len(), libc::MADV_HUGEPAGE) };
        Ok(mapping)
    }

    /// Maps at least `len` bytes, starting at a multiple of [`HUGE`].
    fn aligned(len: usize) -> Result<Self, OsError> {
        let pages = |len: usize| len.checked_next_multiple_of(page_size());
        let too_long = OsError::new("mmap", libc::EINVAL);
        let len = pages(len).ok_or(too_long)?;
        let mut mapping = Self::new(len.checked_add(HUGE).ok_or(too_long)?)?;
        let start = mapping.start().addr().get();
        let before = start.next_multiple_of(HUGE) - start;
        mapping.keep(before..before + len)?;
        Ok(mapping)
    }

    /// Unmaps all pages outside of `range`, which must begin and end at page boundaries.
    fn keep(&mut self, range: Range<usize>) -> Result<(), OsError> {
        self.unmap(range.end..self.len())?;
        self.unmap(0..range.start)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{super::areas::entry, *};

    fn is_huge(mapping: &Mapping) -> bool {
        let entry = entry("smaps", mapping).unwrap();
        let flags = entry.lines().find_map(|line| line.strip_prefix("VmFlags:"));
        flags
            .expect(&entry)
            .split_whitespace()
            .any(|flag| flag == "hg")
    }

    #[test]
    fn long_mapping_requests_huge_pages() {
        let has_huge_pages = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        for len in [HUGE, 2 * HUGE + 1, 5 * HUGE - 4096] {
            let mapping = Mapping::in_huge_pages(len).unwrap();
            assert_eq!(mapping.start().addr().get() % HUGE, 0, "{len}");
            assert_eq!(mapping.len(), len.next_multiple_of(page_size()));
            assert_eq!(is_huge(&mapping), has_huge_pages, "{len}");
            // SAFETY: the mapping has `len` accessible bytes from `start`, and no other code
            // accesses them.
            let bytes = unsafe { std::slice::from_raw_parts(mapping.start().as_ptr(), len) };
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn short_mapping_requests_no_huge_pages() {
        let mapping = Mapping::in_huge_pages(HUGE - 1).unwrap();
        assert_eq!(mapping.len(), HUGE);
        assert!(!is_huge(&mapping));
        assert!(!is_huge(&Mapping::new(2 * HUGE).unwrap()));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, usize::MAX, isize::MAX as usize, usize::MAX - HUGE] {
            assert_eq!(Mapping::in_huge_pages(len).unwrap_err().call, "mmap");
        }
    }

    #[test]
    fn aligned_mapping_unmaps_the_rest() {
        let size = || {
            let text = fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("VmSize:"));
            let kib = line.unwrap().trim().trim_end_matches(" kB");
            kib.parse::<usize>().unwrap() << 10
        };
        // Other tests map memory at the same time, but far less than 4 GiB. If `aligned` did not
        // unmap the pages outside of each aligned range, this test would leak 8 GiB.
        let (before, count) = (size(), 4096);
        for _ in 0..count {
            drop(Mapping::in_huge_pages(HUGE).unwrap());
        }
        assert!(size() < before + count * HUGE / 2);
    }
}
