#![allow(unsafe_code)]

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
};

/// Returns the number of columns and the number of lines of a terminal. Returns `None` if the file
/// is not a terminal or if its size is unknown.
pub fn terminal_size(file: impl AsFd) -> Option<(u16, u16)> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: TIOCGWINSZ writes a `winsize` through the pointer, which points to the local variable
    // `size`. The file is open during the call, because `file` borrows or owns it.
    let done = unsafe {
        libc::ioctl(
            file.as_fd().as_raw_fd(),
            libc::TIOCGWINSZ,
            size.as_mut_ptr(),
        )
    };
    // SAFETY: a `winsize` consists of four integers, for which zero is a valid value.
    let size = unsafe { size.assume_init() };
    (done == 0 && size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

#[cfg(test)]
mod tests {
    use nix::pty::{Winsize, openpty};

    use super::*;

    #[test]
    fn size_is_that_of_a_terminal_only() {
        let set = Winsize {
            ws_row: 33,
            ws_col: 77,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let terminal = openpty(&set, None).unwrap();
        assert_eq!(terminal_size(&terminal.slave), Some((77, 33)));
        let unknown = openpty(None, None).unwrap();
        assert_eq!(terminal_size(&unknown.slave), None);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(terminal_size(file), None);
    }
}
