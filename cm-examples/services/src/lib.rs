//! Code shared by the example services: connections ([`net`]), command line options, start and
//! shutdown of a server ([`server`]), and the protocols.
//!
//! The servers for Redis and HTTP are generic over `AsyncRead` and `AsyncWrite`, and accept a
//! [`Socket`](net::Socket), which is an rdmsg stream or a TCP stream. [`greeter`] passes a listener
//! to axum. `http_get` passes a connector to hyper-util, and the gRPC client passes a connector to
//! tonic. These listeners and connectors exist for rdmsg and for TCP.

use std::{error::Error, fmt::Write, process::ExitCode};

pub mod broker;
pub mod certificate;
pub mod copy;
pub mod echo_service;
pub mod greeter;
pub mod net;
pub mod options;
pub mod orders;
pub mod resp;
pub mod rpc;
pub mod server;
pub mod store;
pub mod web;

/// The result type of the functions in this crate. The programs only print the error.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Starts the logger, and runs a program on a new tokio runtime. If the program fails, prints the
/// error. Returns the exit status.
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

/// Returns the text of an error and of its causes. The causes are necessary, because the error of a
/// library often says no more than `transport error`.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut error = error;
    while let Some(cause) = error.source() {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        error = cause;
    }
    text
}
