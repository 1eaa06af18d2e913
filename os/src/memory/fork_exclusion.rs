//! Excludes the memory that a device accesses from forked children, on kernels that need it.
#![allow(unsafe_code)]

use std::{ffi::CStr, mem};

use rdma_status::OsError;

use super::Mapping;
use crate::{PerProcess, cvt};

impl Mapping {
    /// Prepares the pages for use by a device. The caller must call this method before any code
    /// uses the pages. The kernel then allocates them on the NUMA node `node` if possible, and the
    /// device can still use them after a fork(2).
    ///
    /// Linux 5.12 and newer give the child a copy of pages that a device has pinned. On older
    /// kernels, the parent's next write after the fork would give the parent a copy of the page,
    /// while the device would still use the original page. On these kernels, this function
    /// therefore excludes the pages from the memory that a child inherits.
    pub fn prepare_for_device(&self, node: Option<u32>) -> Result<(), OsError> {
        static ARE_COPIED: PerProcess<bool> = PerProcess::new(fork_copies_pinned_pages);
        self.place_on(node);
        if *ARE_COPIED.get() {
            return Ok(());
        }
        let start = self.start().as_ptr().cast();
        // SAFETY: `start` and `self.len()` describe exactly this mapping. MADV_DONTFORK does not
        // change the contents of its pages.
        cvt("madvise", || unsafe {
            libc::madvise(start, self.len(), libc::MADV_DONTFORK)
        })
        .map(drop)
    }
}

/// Returns true if fork(2) gives the child copies of the pages that a device has pinned. Linux 5.12
/// and newer make these copies.
fn fork_copies_pinned_pages() -> bool {
    // SAFETY: `utsname` consists of byte arrays, for which all zeros is a valid value.
    let mut names: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: `names` is a local variable that `uname` may write.
    let ret = unsafe { libc::uname(&raw mut names) };
    let release = names.release.map(|byte| byte.cast_unsigned());
    let release = CStr::from_bytes_until_nul(&release);
    ret == 0 && release.is_ok_and(|release| is_at_least(&release.to_string_lossy(), (5, 12)))
}

/// Returns true if the kernel release, such as `6.1.0-18-amd64`, is the version `version` (major
/// and minor number) or newer. Returns false if the release does not begin with two numbers.
fn is_at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|other: char| !other.is_ascii_digit())
        .map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= version,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
