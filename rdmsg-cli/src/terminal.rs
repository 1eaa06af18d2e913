//! The size of the terminal, if stdout is a terminal.

use std::io::{IsTerminal, stdout};

use rdmsg_os::terminal_size;

/// The line width in columns if stdout is not a terminal.
const WIDTH: usize = 100;

/// Returns the line width in columns: the width of the terminal, but at least 40 and at most 120.
/// Returns `WIDTH` if stdout is not a terminal.
pub(crate) fn width() -> usize {
    terminal_size(stdout()).map_or(WIDTH, |(width, _)| usize::from(width).clamp(40, 120))
}

/// Returns the number of lines of the terminal, at least 5. Returns 24 if stdout is not a terminal.
pub(crate) fn height() -> usize {
    terminal_size(stdout()).map_or(24, |(_, height)| usize::from(height).max(5))
}

/// Returns true if stdout is a terminal, on which the program can overwrite lines.
pub(crate) fn is_live() -> bool {
    stdout().is_terminal()
}
