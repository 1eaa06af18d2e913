//! The parts that the services share: connections ([`net`]), options, start and end ([`server`]),
//! and protocols.
//!
//! [`net`] has an enum of the two kinds of streams. The servers are generic over `AsyncRead` and
//! `AsyncWrite`, or take that [`Socket`](net::Socket). [`greeter`] and the clients of HTTP and gRPC
//! take either listener or connector as it is.

use std::{error::Error, fmt::Write, process::ExitCode};

pub mod broker;
pub mod certificate;
pub mod copy;
pub mod echo_service;
pub mod greeter;
pub mod net;
pub mod options;
pub mod resp;
pub mod rpc;
pub mod server;
pub mod store;
pub mod web;

/// The result of a step of a service, which only prints an error.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Runs a program on a new runtime, prints its error, and returns its exit status.
pub fn run(program: &str, debug: bool, main: impl Future<Output = Result<()>>) -> ExitCode {
    let level = if debug { "debug" } else { "error" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level)).init();
    let ended = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(main));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Returns an error with its causes, because many libraries print only `transport error`.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut error = error;
    while let Some(cause) = error.source() {
        let said = cause.to_string();
        if !text.ends_with(&said) {
            let _ = write!(text, ": {said}");
        }
        error = cause;
    }
    text
}
