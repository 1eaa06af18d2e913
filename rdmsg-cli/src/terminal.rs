//! The terminal that stdout may be.

use std::io::IsTerminal;

/// The width in columns of text that is not printed to a terminal.
const WIDTH: usize = 100;

/// How wide lines may be.
pub(crate) fn width() -> usize {
    let size = terminal_size::terminal_size();
    size.map_or(WIDTH, |(width, _)| usize::from(width.0).clamp(40, 120))
}

/// How many lines there are.
pub(crate) fn height() -> usize {
    let size = terminal_size::terminal_size();
    size.map_or(24, |(_, height)| usize::from(height.0).max(5))
}

/// Whether a terminal shows lines that change.
pub(crate) fn is_live() -> bool {
    std::io::stdout().is_terminal()
}
