//! Messages that consist of several parts.

use std::io::IoSlice;

/// The longest message that there can be memory for.
pub(super) const LONGEST: usize = isize::MAX as usize;

/// The sum of lengths. The same bytes may be named many times, so it may be more than a number
/// holds: then it is the greatest, which is longer than any message.
pub(crate) fn total(parts: &[IoSlice<'_>]) -> usize {
    sum(parts.iter().map(|part| part.len()))
}

fn sum(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_no_number_holds_do_not_wrap_around() {
        assert_eq!(sum([].into_iter()), 0);
        assert_eq!(sum([1, 0, 2].into_iter()), 3);
        // 2⁶⁴ + 15 where a word has 64 bits: with wrap-around it would pass as 15.
        let quarter = usize::MAX / 4 + 1;
        let lens = [quarter, quarter, quarter, quarter, 15];
        assert_eq!(sum(lens.into_iter()), usize::MAX);
        assert!(sum(lens.into_iter()) > LONGEST);
    }
}
