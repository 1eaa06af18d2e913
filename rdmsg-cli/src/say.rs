use std::{
    fmt,
    io::{Write, stdout},
};

/// Prints a line at once. An error is ignored, because the reader may have ended.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
