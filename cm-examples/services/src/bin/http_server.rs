//! A web server that uses the unmodified libraries hyper (HTTP/1 and HTTP/2) and rustls (TLS). It
//! accepts connections over rdmsg and, with the option `--tcp`, over plain TCP.
//!
//! `/` returns a short text, `/bytes/N` returns N bytes, and `/answered` returns the number of
//! answered requests. `/echo` sends the body of a POST request back while the body arrives.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Parser;
use services::{Result, certificate::Identity, options::ServerOptions, run, server::Server, web};

#[derive(Parser)]
#[command(
    version,
    about = "Serves HTTP/1 and HTTP/2, with TLS if a certificate is given."
)]
struct Program {
    #[command(flatten)]
    options: ServerOptions,
    /// Use TLS with the certificate in this PEM file
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Use TLS with a new self-signed certificate for rdmsg.test, and write the certificate to this
    /// file
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
