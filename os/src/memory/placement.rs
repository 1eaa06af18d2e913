//! Page size and NUMA placement of the memory that a device accesses.
#![allow(unsafe_code)]

use std::{
    ops::Range,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use rdma_status::OsError;

use super::{
    Mapping,
    mapping::{HUGE, page_size},
};
use crate::{PerProcess, cvt};

/// The number of bits in the node sets that this module passes to the kernel, one bit for each of
/// the nodes 0 to 1023.
const NODES: usize = 1024;

/// The number of bits in one word of a node set.
const WORD: usize = libc::c_ulong::BITS as usize;

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

    /// Asks the kernel to allocate the pages on the NUMA node `node`, if that node has free memory.
    /// Does nothing if `node` is `None`. Pages that were used before this call stay on their node.
    ///
    /// A policy that the program or `numactl(8)` has set for the calling thread takes precedence.
    /// Errors are ignored, except that the first error in the process is logged. A kernel without
    /// NUMA returns `ENOSYS`, a container can return `EPERM`, and a node without memory causes
    /// `EINVAL`.
    pub(super) fn place_on(&self, node: Option<u32>) {
        static HAS_LOGGED: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);

        let Some(node) = node else {
            return;
        };
        if let Err(error) = self.prefer(node)
            && !HAS_LOGGED.get().swap(true, Ordering::Relaxed)
        {
            debug!(
                Rdma,
                "cannot place memory on NUMA node {node}: {error}; the kernel chooses the node"
            );
        }
    }

    /// Makes `node` the preferred node of these pages. If the calling thread has its own memory
    /// policy, does nothing and returns false.
    fn prefer(&self, node: u32) -> Result<bool, OsError> {
        if thread_policy()? != libc::MPOL_DEFAULT {
            return Ok(false);
        }
        let node = node as usize;
        let mut nodes: [libc::c_ulong; NODES / WORD] = [0; NODES / WORD];
        let word = nodes.get_mut(node / WORD);
        *word.ok_or(OsError::new("mbind", libc::EINVAL))? = 1 << (node % WORD);
        // SAFETY: the pages belong to this mapping, and the call does not change their contents.
        // `nodes` is a local variable of `NODES` bits. The kernel reads one bit less than
        // `maxnode`, which is `NODES + 1`.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start().as_ptr(),
                self.len(),
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                NODES + 1,
                0,
            )
        };
        cvt("mbind", ret as libc::c_int).map(|_| true)
    }

    /// Unmaps all pages outside of `range`, which must begin and end at page boundaries.
    fn keep(&mut self, range: Range<usize>) -> Result<(), OsError> {
        self.unmap(range.end..self.len())?;
        self.unmap(0..range.start)
    }
}

/// Returns the memory policy of the calling thread.
fn thread_policy() -> Result<libc::c_int, OsError> {
    let mut policy: libc::c_int = 0;
    let none: *mut libc::c_ulong = ptr::null_mut();
    let nowhere: *mut libc::c_void = ptr::null_mut();
    // SAFETY: the kernel writes only `policy`, a local variable, because the pointer to the set of
    // nodes is null.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut policy,
            none,
            0,
            nowhere,
            0,
        )
    };
    cvt("get_mempolicy", ret as libc::c_int).map(|_| policy)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, thread};

    use super::*;

    /// Returns the entry for the memory area that contains `mapping`. The function reads the entry
    /// from `file`, a file in /proc/self such as `smaps`, which has one entry for each memory area
    /// of the process.
    ///
    /// The first line of each entry starts with the address of the area.
    fn entry(file: &str, mapping: &Mapping) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/self/{file}")).ok()?;
        let mut found = None;
        for line in text.lines() {
            let word = line.split([' ', '-']).next().unwrap_or_default();
            match usize::from_str_radix(word, 16) {
                Ok(start) if start <= mapping.start().addr().get() => {
                    found = Some(line.to_owned());
                }
                Ok(_) => break,
                Err(_) => {
                    if let Some(entry) = &mut found {
                        entry.push('\n');
                        entry.push_str(line);
                    }
                }
            }
        }
        found
    }

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

    #[test]
    fn pages_have_the_preferred_node() {
        let mapping = Mapping::new(8 * page_size()).unwrap();
        match thread_policy() {
            // The kernel has no NUMA support, or a container refuses the calls. The mapping is
            // usable anyway.
            Err(error) => assert_eq!(mapping.prefer(0), Err(error)),
            Ok(policy) => {
                assert_eq!(
                    policy,
                    libc::MPOL_DEFAULT,
                    "the test must run without numactl"
                );
                assert_eq!(mapping.prefer(0), Ok(true));
                let entry = entry("numa_maps", &mapping).unwrap();
                assert!(entry.contains(" prefer:0"), "{entry}");
            }
        }
        mapping.place_on(Some(0));
    }

    #[test]
    fn impossible_node_is_ignored() {
        let mapping = Mapping::new(page_size()).unwrap();
        let refused = match thread_policy() {
            Ok(_) => Err(OsError::new("mbind", libc::EINVAL)),
            Err(error) => Err(error),
        };
        for node in [NODES as u32 - 1, NODES as u32, u32::MAX] {
            assert_eq!(mapping.prefer(node), refused, "{node}");
            mapping.place_on(Some(node));
        }
    }

    #[test]
    fn policy_of_the_thread_takes_precedence() {
        let in_thread = || {
            // SAFETY: the call changes only the memory policy of this thread, and the null set of
            // nodes is not read.
            let ret = unsafe {
                let none: *const libc::c_ulong = ptr::null();
                libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_LOCAL, none, 0)
            };
            let mapping = Mapping::new(page_size()).unwrap();
            match cvt("set_mempolicy", ret as libc::c_int) {
                Ok(_) => assert_eq!(mapping.prefer(0), Ok(false)),
                Err(_) => assert!(mapping.prefer(0).is_err()),
            }
        };
        thread::spawn(in_thread).join().unwrap();
    }
}
