//! The terminal: its size, and output with styles. Styles are terminal control sequences. They are
//! removed if the output is not a terminal that shows styles.

use std::{
    env,
    io::{self, IsTerminal, StderrLock, StdoutLock, Write},
};

use rdmsg_os::terminal_size;

/// The line width in columns if stdout is not a terminal.
const WIDTH: usize = 100;

/// Returns the line width in columns: the width of the terminal, but at least 40 and at most 120.
/// Returns `WIDTH` if stdout is not a terminal.
pub(crate) fn width() -> usize {
    terminal_size(io::stdout()).map_or(WIDTH, |(width, _)| usize::from(width).clamp(40, 120))
}

/// Returns the number of lines of the terminal, at least 5. Returns 24 if stdout is not a terminal.
pub(crate) fn height() -> usize {
    terminal_size(io::stdout()).map_or(24, |(_, height)| usize::from(height).max(5))
}

/// Returns true if stdout is a terminal, on which the program can overwrite lines.
pub(crate) fn is_live() -> bool {
    io::stdout().is_terminal()
}

/// A writer that passes styles through, or removes all control sequences.
#[derive(Debug)]
pub(crate) struct Styled<W> {
    out: W,
    is_styled: bool,
    at: At,
}

/// The meaning of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Text,
    /// The byte follows ESC.
    Escape,
    /// The byte is a part of a control sequence that began with `ESC [`.
    Sequence,
}

/// Returns stdout, locked.
pub(crate) fn stdout() -> Styled<StdoutLock<'static>> {
    let out = io::stdout().lock();
    let is_terminal = out.is_terminal();
    Styled::new(out, shows_styles(is_terminal))
}

/// Returns stderr, locked.
pub(crate) fn stderr() -> Styled<StderrLock<'static>> {
    let out = io::stderr().lock();
    let is_terminal = out.is_terminal();
    Styled::new(out, shows_styles(is_terminal))
}

/// Returns the text without control sequences.
pub(crate) fn plain(text: &[u8]) -> String {
    let mut out = Styled::new(Vec::new(), false);
    // Writing to a `Vec` does not fail.
    let _ = out.write_all(text);
    String::from_utf8_lossy(&out.out).into_owned()
}

/// Decides whether to print styles. Checks the environment variables `NO_COLOR`, `CLICOLOR_FORCE`
/// and `CLICOLOR`, in this order. If none of them decides, returns true for a terminal, except if
/// `TERM` is unset or `dumb`.
fn shows_styles(is_terminal: bool) -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_zero = |name| env::var_os(name).is_some_and(|value| value == "0");
    match () {
        () if is_set("NO_COLOR") => false,
        () if is_set("CLICOLOR_FORCE") && !is_zero("CLICOLOR_FORCE") => true,
        () if is_zero("CLICOLOR") => false,
        () => is_terminal && env::var_os("TERM").is_some_and(|term| term != "dumb"),
    }
}

impl<W> Styled<W> {
    fn new(out: W, is_styled: bool) -> Self {
        Self {
            out,
            is_styled,
            at: At::Text,
        }
    }
}

impl<W: Write> Write for Styled<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_styled {
            return self.out.write(bytes);
        }
        let mut text = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.at = match (self.at, byte) {
                (At::Text | At::Escape, 0x1b) => At::Escape,
                (At::Text, _) => {
                    text.push(*byte);
                    At::Text
                }
                (At::Escape, b'[') | (At::Sequence, 0x20..=0x3f) => At::Sequence,
                (At::Escape | At::Sequence, _) => At::Text,
            };
        }
        self.out.write_all(&text)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use anstyle::AnsiColor;

    use super::*;

    #[test]
    fn styles_are_removed_or_passed_on() {
        let style = AnsiColor::Red.on_default().bold();
        let styled = format!("a {style}käse{style:#}\x1b[2K\x1b]b\n");
        assert_eq!(plain(styled.as_bytes()), "a käseb\n");
        // The writer keeps its state from one write to the next.
        let mut out = Styled::new(Vec::new(), false);
        for byte in styled.as_bytes() {
            out.write_all(&[*byte]).unwrap();
        }
        assert_eq!(out.out, "a käseb\n".as_bytes());
        let mut out = Styled::new(Vec::new(), true);
        out.write_all(styled.as_bytes()).unwrap();
        assert_eq!(out.out, styled.as_bytes());
    }
}
