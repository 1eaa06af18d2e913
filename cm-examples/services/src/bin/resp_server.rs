//! A key-value server with the protocol of Redis, for stock clients over plain TCP and for
//! programs over rdmsg at the same time.
//!
//! The session is one function for both, generic over `AsyncRead + AsyncWrite`: it answers requests
//! as they arrive, many at a time if a client sends many. A malformed request ends its own
//! connection, with an error as reply.

use std::{process::ExitCode, sync::Arc};

use clap::Parser;
use services::{Result, options::ServerOptions, resp, run, server::Server, store::Store};

#[derive(Parser)]
#[command(
    version,
    about = "Serves keys and values by RESP, the protocol of Redis."
)]
struct Program {
    #[command(flatten)]
    options: ServerOptions,
}

fn main() -> ExitCode {
    let Program { options } = Program::parse();
    run("resp_server", options.debug, serve(&options))
}

async fn serve(options: &ServerOptions) -> Result<()> {
    let server = Server::start(options).await?;
    let store = Arc::new(Store::default());
    server
        .serve(|socket, stop| {
            let store = Arc::clone(&store);
            async move { resp::session(socket, &store, stop).await }
        })
        .await
}
