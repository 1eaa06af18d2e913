//! The size of the terminal, if stdout is a terminal.

use std::io::IsTerminal;

/// The line width in columns if stdout is not a terminal.
const WIDTH: usize = 100;

/// Returns the line width in columns: that of the terminal, 40 to 120, or `WIDTH`.
pub(crate) fn width() -> usize {
    let size = terminal_size::terminal_size();
    size.map_or(WIDTH, |(width, _)| usize::from(width.0).clamp(40, 120))
}

/// Returns the number of lines of the terminal, at least 5, or 24 if stdout is not a terminal.
pub(crate) fn height() -> usize {
    let size = terminal_size::terminal_size();
    size.map_or(24, |(_, height)| usize::from(height.0).max(5))
}

/// Whether stdout is a terminal, which can overwrite lines.
pub(crate) fn is_live() -> bool {
    std::io::stdout().is_terminal()
}
