use std::{
    fmt,
    io::{Write, stdout},
};

/// Prints a line for whoever reads it, at once. A reader that has gone is no failure.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
