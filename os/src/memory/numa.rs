//! The NUMA node of the memory that a device accesses.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use rdma_status::OsError;

use super::Mapping;
use crate::{
    PerProcess, cvt,
    foreign::{Level, Target, log_elsewhere},
};

/// The number of bits in the node sets that this module passes to the kernel, one bit for each of
/// the nodes 0 to 1023.
const NODES: usize = 1024;

/// The number of bits in one word of a node set.
const WORD: usize = libc::c_ulong::BITS as usize;

impl Mapping {
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
            log_elsewhere(
                Level::Debug,
                Target::Rdma,
                format_args!(
                    "cannot place memory on NUMA node {node}: {error}; the kernel chooses the node"
                ),
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
        let bind = || unsafe {
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
        cvt("mbind", || bind() as libc::c_int).map(|_| true)
    }
}

/// Returns the memory policy of the calling thread.
fn thread_policy() -> Result<libc::c_int, OsError> {
    let mut policy: libc::c_int = 0;
    let none: *mut libc::c_ulong = ptr::null_mut();
    let nowhere: *mut libc::c_void = ptr::null_mut();
    // SAFETY: the kernel writes only `policy`, a local variable, because the pointer to the set of
    // nodes is null.
    let mut get = || unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut policy,
            none,
            0,
            nowhere,
            0,
        )
    };
    cvt("get_mempolicy", || get() as libc::c_int).map(|_| policy)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{
        super::{areas::entry, mapping::page_size},
        *,
    };

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
            let set = || unsafe {
                let none: *const libc::c_ulong = ptr::null();
                libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_LOCAL, none, 0)
            };
            let mapping = Mapping::new(page_size()).unwrap();
            match cvt("set_mempolicy", || set() as libc::c_int) {
                Ok(_) => assert_eq!(mapping.prefer(0), Ok(false)),
                Err(_) => assert!(mapping.prefer(0).is_err()),
            }
        };
        thread::spawn(in_thread).join().unwrap();
    }
}
