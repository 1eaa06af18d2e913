use std::ops::{Bound, RangeBounds};

use crate::{sys::ffi, verbs::memory::MemoryRegion};

/// A scatter/gather element: a part of a memory region that a work request reads or writes.
///
/// After a request has been posted, the queue keeps the region alive. Before that, the element
/// borrows the region, so the following code does not compile:
///
/// ```compile_fail,E0505
/// # use rdma_verbs::verbs::{MemoryRegion, SendWr, Sge};
/// fn no_region_left(region: MemoryRegion) {
///     let wr = SendWr::send(1, Sge::new(&region, ..));
///     drop(region);
///     println!("{wr:?}");
/// }
/// ```
#[derive(Debug, Clone, Copy)]
#[doc(alias = "ibv_sge")]
pub struct Sge<'a> {
    region: &'a MemoryRegion,
    addr: u64,
    length: u32,
}

impl<'a> Sge<'a> {
    /// Creates an element for the bytes `range` of `region`.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the region, or is longer than `u32::MAX` bytes.
    #[must_use]
    pub fn new(region: &'a MemoryRegion, range: impl RangeBounds<usize>) -> Self {
        let (offset, length) = resolve(range, region.len());
        Self {
            region,
            addr: region.addr() + offset as u64,
            length,
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Returns the memory region that contains the bytes.
    #[must_use]
    pub const fn region(&self) -> &'a MemoryRegion {
        self.region
    }

    pub(in crate::verbs) fn to_raw(self) -> ffi::ibv_sge {
        ffi::ibv_sge {
            addr: self.addr,
            length: self.length,
            lkey: self.region.lkey(),
        }
    }
}

/// A scatter/gather list: one [`Sge`], or a slice of elements that is used like one buffer.
#[derive(Debug, Clone, Copy)]
pub struct SgeList<'a>(List<'a>);

#[derive(Debug, Clone, Copy)]
enum List<'a> {
    One(Sge<'a>),
    Many(&'a [Sge<'a>]),
}

impl<'a> SgeList<'a> {
    /// Returns the elements.
    #[must_use]
    pub const fn as_slice(&self) -> &[Sge<'a>] {
        match &self.0 {
            List::One(sge) => std::slice::from_ref(sge),
            List::Many(sges) => sges,
        }
    }
}

impl<'a> From<Sge<'a>> for SgeList<'a> {
    fn from(sge: Sge<'a>) -> Self {
        Self(List::One(sge))
    }
}

impl<'a> From<&'a [Sge<'a>]> for SgeList<'a> {
    fn from(sges: &'a [Sge<'a>]) -> Self {
        Self(List::Many(sges))
    }
}

impl<'a, const N: usize> From<&'a [Sge<'a>; N]> for SgeList<'a> {
    fn from(sges: &'a [Sge<'a>; N]) -> Self {
        Self(List::Many(sges))
    }
}

/// Converts a range of a region to an offset and a length. `len` is the region's length in bytes.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> (usize, u32) {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    let range = start
        .zip(end)
        .filter(|(start, end)| start <= end && *end <= len);
    let Some((start, end)) = range else {
        panic!("the range exceeds the memory region of {len} bytes, or ends before its start")
    };
    let Ok(length) = u32::try_from(end - start) else {
        panic!(
            "{} bytes exceed the maximum length of a scatter/gather element",
            end - start
        )
    };
    (start, length)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn ranges_inside_are_taken() {
        assert_eq!(resolve(.., 10), (0, 10));
        assert_eq!(resolve(3.., 10), (3, 7));
        assert_eq!(resolve(..3, 10), (0, 3));
        assert_eq!(resolve(2..=9, 10), (2, 8));
        assert_eq!(resolve(10..10, 10), (10, 0));
        assert_eq!(resolve((Bound::Excluded(1), Bound::Unbounded), 10), (2, 8));
        assert_eq!(resolve(..u32::MAX as usize, usize::MAX), (0, u32::MAX));
    }

    #[test]
    fn ranges_outside_are_refused() {
        type Bounds = (Bound<usize>, Bound<usize>);
        let refused: [(Bounds, usize); 7] = [
            ((Bound::Included(0), Bound::Excluded(11)), 10),
            ((Bound::Included(0), Bound::Included(10)), 10),
            ((Bound::Included(11), Bound::Unbounded), 10),
            ((Bound::Included(5), Bound::Excluded(4)), 10),
            (
                (Bound::Included(0), Bound::Included(usize::MAX)),
                usize::MAX,
            ),
            ((Bound::Excluded(usize::MAX), Bound::Unbounded), usize::MAX),
            ((Bound::Included(0), Bound::Excluded(1 << 32)), usize::MAX),
        ];
        for (range, len) in refused {
            assert!(
                catch_unwind(|| resolve(range, len)).is_err(),
                "{range:?} of {len}"
            );
        }
    }
}
