//! A client for `http_server` that uses the unmodified hyper library. It supports HTTP/1 and
//! HTTP/2, with TLS or without, over rdmsg or over plain TCP.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Parser;
use http_body_util::BodyExt;
use hyper::Method;
use rdmsg::Engine;
use services::{
    Result,
    certificate::{self, NAME},
    net::Socket,
    options::ClientOptions,
    run,
    server::finish,
    web::{AnyBody, Client, Pattern, full_body},
};
use tokio::{
    fs::File,
    io::{AsyncWrite, AsyncWriteExt},
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

#[derive(Clone, Parser)]
#[command(
    version,
    about = "Sends one HTTP request, or many requests to measure their rate."
)]
struct Program {
    #[command(flatten)]
    options: ClientOptions,
    /// The path in the request
    #[arg(default_value = "/")]
    path: String,
    /// Use HTTP/2 instead of HTTP/1
    #[arg(long)]
    http2: bool,
    /// Use TLS, and trust the certificates in this PEM file
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// With --trust: the host name in the certificate of the server
    #[arg(long, default_value = NAME)]
    name: String,
    /// Send a POST request with a body of this number of bytes instead of a GET request
    #[arg(long, value_name = "BYTES")]
    post: Option<u64>,
    /// Write the response body to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Send this number of requests, and print the rate
    #[arg(short = 'n', long)]
    requests: Option<u64>,
    /// The number of concurrent requests; with HTTP/1, each of them uses its own connection; with
    /// HTTP/2, all of them share one connection
    #[arg(short, long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    concurrency: u64,
}

fn main() -> ExitCode {
    let program = Program::parse();
    run("http_client", program.options.debug, work(program))
}

async fn work(program: Program) -> Result<()> {
    let engine = Engine::new()?;
    let tls = match &program.trust {
        Some(path) => {
            let trusted = certificate::read_certificates(path)?;
            Some(certificate::connector(trusted, program.http2)?)
        }
        None => None,
    };
    match program.requests {
        None => {
            let mut client = connect(&program, &engine, tls.as_ref()).await?;
            let mut out: Box<dyn AsyncWrite + Unpin> = match &program.output {
                Some(path) => Box::new(File::create(path).await?),
                None => Box::new(tokio::io::stdout()),
            };
            let (method, body) = request(&program);
            let answer = client.send(method, &program.path, body).await?;
            let status = answer.status();
            let mut body = answer.into_body();
            while let Some(frame) = body.frame().await {
                if let Ok(bytes) = frame?.into_data() {
                    out.write_all(&bytes).await?;
                }
            }
            out.flush().await?;
            if !status.is_success() {
                return Err(format!("the server answered {status}").into());
            }
        }
        Some(requests) => bench(program, &engine, tls.as_ref(), requests).await?,
    }
    finish(engine, Duration::from_secs(5)).await
}

async fn connect(program: &Program, engine: &Engine, tls: Option<&TlsConnector>) -> Result<Client> {
    let socket = Socket::connect(&program.options, engine).await?;
    match tls {
        Some(tls) => {
            let name = program.name.clone().try_into()?;
            Client::start(tls.connect(name, socket).await?, program.http2).await
        }
        None => Client::start(socket, program.http2).await,
    }
}

fn request(program: &Program) -> (Method, AnyBody) {
    match program.post {
        Some(count) => (Method::POST, Pattern::new(count).boxed()),
        None => (Method::GET, full_body("")),
    }
}

async fn bench(
    program: Program,
    engine: &Engine,
    tls: Option<&TlsConnector>,
    requests: u64,
) -> Result<()> {
    let first = connect(&program, engine, tls).await?;
    let mut clients = Vec::new();
    for _ in 1..program.concurrency {
        clients.push(match first.share() {
            Some(client) => client,
            None => connect(&program, engine, tls).await?,
        });
    }
    clients.push(first);
    let program = Arc::new(program);
    let left = Arc::new(AtomicU64::new(requests));
    println!("connected");
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn(load(client, Arc::clone(&program), Arc::clone(&left)));
    }
    let mut received = 0;
    while let Some(task) = tasks.join_next().await {
        received += task??;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{requests} requests, {:.0} requests per second, {:.1} MB/s received",
        requests as f64 / seconds,
        received as f64 / seconds / 1e6
    );
    Ok(())
}

/// Sends requests until the counter `left`, which all clients share, is 0. Returns the number of
/// received bytes.
async fn load(mut client: Client, program: Arc<Program>, left: Arc<AtomicU64>) -> Result<u64> {
    let mut received = 0;
    let fewer = |left: u64| left.checked_sub(1);
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
        .is_ok()
    {
        let (method, body) = request(&program);
        let answer = client.send(method, &program.path, body).await?;
        if !answer.status().is_success() {
            return Err(format!("the server answered {}", answer.status()).into());
        }
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame?.into_data() {
                received += bytes.len() as u64;
            }
        }
    }
    Ok(received)
}
