use std::{
    fmt,
    io::{Write, stdout},
};

/// Prints a line and flushes stdout. Ignores errors: stdout may be a pipe whose reader has exited.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
