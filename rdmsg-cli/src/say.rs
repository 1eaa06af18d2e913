use std::{
    fmt,
    io::{Write, stdout},
};

/// Prints a line and flushes stdout. Ignores errors: the reader of a pipe may have exited.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
