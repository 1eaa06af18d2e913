//! Code shared by the example programs: the log, the test pattern of messages, latencies, and
//! connection manager calls.

use std::{error::Error, fmt, io::Write, process::ExitCode, time::Instant};

pub mod cm;
pub mod connection;
pub mod datagrams;
pub mod exchange;
mod latencies;
pub mod ping;
pub mod ping_pong;
pub mod service;
pub mod socket;
pub mod stream_test;
pub mod transfer;
pub mod without_cm;

pub use latencies::Latencies;

/// The result type of the functions in this crate. The programs do nothing with errors except print
/// them.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Prints a program's error, and returns the exit status.
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Initializes the log. If `debug` is true, the log contains connection manager events and the
/// library's debug messages; if false, only errors. `RUST_LOG` overrides this.
pub fn init_debug(debug: bool) {
    let level = if debug { "debug" } else { "error" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level)).init();
}

/// Initializes the log on stdout. Each line begins with the time in seconds since this call, and
/// with `name`. By default, the log contains connection manager events; `RUST_LOG` overrides this.
pub fn init_trace(name: &'static str) {
    let start = Instant::now();
    env_logger::Builder::from_env(
        env_logger::Env::default().default_filter_or("rdmsg::cm=debug,info"),
    )
    .format(move |out, record| {
        writeln!(
            out,
            "{:>10.6} {name}: {}",
            start.elapsed().as_secs_f64(),
            record.args()
        )
    })
    .target(env_logger::Target::Stdout)
    .init();
}

/// Fills message `number` with its test pattern. Consecutive messages have different patterns, and
/// adjacent bytes differ.
pub fn fill(number: u64, message: &mut [u8]) {
    for (byte, expected) in message.iter_mut().zip(pattern(number)) {
        *byte = expected;
    }
}

/// Checks each byte of message `number` against the test pattern.
///
/// # Errors
///
/// Fails if a byte differs from the pattern that [`fill`] writes.
pub fn check(number: u64, message: &[u8]) -> Result<(), Mismatch> {
    match message
        .iter()
        .zip(pattern(number))
        .position(|(byte, expected)| *byte != expected)
    {
        None => Ok(()),
        Some(at) => Err(Mismatch {
            number,
            at,
            len: message.len(),
        }),
    }
}

fn pattern(number: u64) -> impl Iterator<Item = u8> {
    let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    (start..)
        .zip(number..)
        .map(|(step, salt)| (step.wrapping_mul(7) ^ (salt >> 8)) as u8)
}

/// The error for a received message that differs from the test pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    number: u64,
    at: usize,
    len: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "message {} of {} bytes differs at byte {}",
            self.number, self.len, self.at
        )
    }
}

impl Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found() {
        let mut message = [0; 600];
        fill(41, &mut message);
        assert_eq!(check(41, &message), Ok(()));
        message[599] ^= 1;
        assert_eq!(
            check(41, &message).unwrap_err().to_string(),
            "message 41 of 600 bytes differs at byte 599"
        );
    }

    /// An example has fewer than 300 lines, and its first line states its purpose.
    #[test]
    fn examples_are_short_and_say_what_they_show() {
        let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin");
        for program in std::fs::read_dir(programs).unwrap() {
            let path = program.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            assert!(
                source.lines().count() < 300,
                "{} must have fewer than 300 lines",
                path.display()
            );
            assert!(
                source.starts_with("//! "),
                "{} must begin with a `//!` comment",
                path.display()
            );
        }
    }

    #[test]
    fn messages_in_a_row_differ() {
        let mut message = [0; 64];
        for number in 0..1000 {
            fill(number, &mut message);
            assert!(check(number + 1, &message).is_err(), "{number}");
        }
    }
}
