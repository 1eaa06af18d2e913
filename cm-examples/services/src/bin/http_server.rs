//! A web server: unmodified hyper, HTTP/1 and HTTP/2, with TLS by unmodified rustls, over rdmsg and
//! over plain TCP at the same time.
//!
//! `/` greets, `/bytes/N` is N bytes, `/echo` sends a posted body back as it arrives.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Parser;
use services::{Result, certificate::Identity, options::ServerOptions, run, server::Server, web};

#[derive(Parser)]
#[command(
    version,
    about = "Serves HTTP/1 and HTTP/2, with TLS if there is a certificate."
)]
struct Program {
    #[command(flatten)]
    options: ServerOptions,
    /// Speak TLS with this certificate, a file in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's key, a file in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Speak TLS with a certificate that is made now, for rdmsg.test, and written to this file
    #[arg(long, value_name = "FILE", conflicts_with = "certificate")]
    self_signed: Option<PathBuf>,
}

fn main() -> ExitCode {
    let program = Program::parse();
    run("http_server", program.options.debug, serve(&program))
}

async fn serve(program: &Program) -> Result<()> {
    let identity = match (&program.certificate, &program.key, &program.self_signed) {
        (Some(certificate), Some(key), _) => Some(Identity::read(certificate, key)?),
        (_, _, Some(path)) => {
            let (identity, pem) = Identity::make()?;
            fs::write(path, pem).map_err(|error| format!("{}: {error}", path.display()))?;
            Some(identity)
        }
        _ => None,
    };
    let tls = identity.map(Identity::acceptor).transpose()?;
    let server = Server::start(&program.options).await?;
    server
        .serve(|socket, stop| {
            let tls = tls.clone();
            async move {
                match tls {
                    Some(tls) => web::serve(tls.accept(socket).await?, stop).await,
                    None => web::serve(socket, stop).await,
                }
            }
        })
        .await
}
