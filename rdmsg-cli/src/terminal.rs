//! The terminal that stdout may be.

use std::io::IsTerminal;

/// Of text that goes to no terminal.
const WIDTH: usize = 100;

/// How wide lines may be.
pub(crate) fn width() -> usize {
    let size = terminal_size::terminal_size();
    size.map_or(WIDTH, |(width, _)| usize::from(width.0).clamp(40, 120))
}

/// Whether somebody sees lines that change.
pub(crate) fn is_live() -> bool {
    std::io::stdout().is_terminal()
}
