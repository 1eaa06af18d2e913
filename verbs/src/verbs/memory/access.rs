use crate::verbs::bit_flags::bit_flags;

bit_flags! {
    /// The accesses that a memory region or a queue pair allows: `enum ibv_access_flags`.
    ///
    /// Reading by the local device is always allowed. See
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
    #[doc(alias = "ibv_access_flags")]
    pub struct AccessFlags;
    /// The local device may write: receives, and the results of READ and atomic operations.
    LOCAL_WRITE = 1 << 0;
    /// A peer may write. A memory region needs `LOCAL_WRITE` as well.
    REMOTE_WRITE = 1 << 1;
    /// A peer may read.
    REMOTE_READ = 1 << 2;
    /// A peer may execute atomic operations. A memory region needs `LOCAL_WRITE` as well.
    REMOTE_ATOMIC = 1 << 3;
    /// On-demand paging: the device faults pages in, instead of having them pinned at registration.
    ON_DEMAND = 1 << 6;
    /// The memory consists of huge pages.
    HUGETLB = 1 << 7;
    /// The device may reorder its accesses. Ignored by kernels that do not know it.
    RELAXED_ORDERING = 1 << 20;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi::ibv_access_flags as c;

    #[test]
    fn flags_are_the_headers() {
        for (ours, theirs) in [
            (AccessFlags::LOCAL_WRITE, c::IBV_ACCESS_LOCAL_WRITE),
            (AccessFlags::REMOTE_WRITE, c::IBV_ACCESS_REMOTE_WRITE),
            (AccessFlags::REMOTE_READ, c::IBV_ACCESS_REMOTE_READ),
            (AccessFlags::REMOTE_ATOMIC, c::IBV_ACCESS_REMOTE_ATOMIC),
            (AccessFlags::ON_DEMAND, c::IBV_ACCESS_ON_DEMAND),
            (AccessFlags::HUGETLB, c::IBV_ACCESS_HUGETLB),
            (
                AccessFlags::RELAXED_ORDERING,
                c::IBV_ACCESS_RELAXED_ORDERING,
            ),
        ] {
            assert_eq!(ours.bits(), theirs.0, "{ours}");
        }
    }

    #[test]
    fn text_lists_names_and_keeps_the_rest() {
        let flags =
            AccessFlags::REMOTE_READ | AccessFlags::LOCAL_WRITE | AccessFlags::from_bits(1 << 31);
        assert_eq!(flags.to_string(), "LOCAL_WRITE | REMOTE_READ | 0x80000000");
        assert_eq!(AccessFlags::empty().to_string(), "none");
        assert_eq!(
            format!("{:?}", AccessFlags::from_bits(1 << 30)),
            "AccessFlags(0x40000000)"
        );
    }

    #[test]
    fn set_operations() {
        let both = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        assert!(both.contains(AccessFlags::REMOTE_WRITE));
        assert!(!both.contains(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ));
        assert_eq!(
            both.difference(AccessFlags::LOCAL_WRITE),
            AccessFlags::REMOTE_WRITE
        );
    }
}
