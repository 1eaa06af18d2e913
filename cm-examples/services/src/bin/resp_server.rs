//! A key-value server for the Redis protocol (RESP). It serves clients over rdmsg and, with the
//! option `--tcp`, unmodified Redis clients over plain TCP.
//!
//! One function serves both kinds of connections, because it is generic over `AsyncRead +
//! AsyncWrite`. The server executes the requests of a connection in order. If a client sends many
//! requests together, the server sends their replies together. After a malformed request, the
//! server replies with an error and closes the connection.

use std::{process::ExitCode, sync::Arc};

use clap::Parser;
use services::{Result, options::ServerOptions, resp, run, server::Server, store::Store};

#[derive(Parser)]
#[command(version, about = "A key-value server for the Redis protocol (RESP).")]
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
