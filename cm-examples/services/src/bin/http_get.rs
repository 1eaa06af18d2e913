//! An HTTP client that uses the connection pool of hyper-util, over rdmsg or over plain TCP. Only
//! the connector depends on the transport.

use std::{
    io::{Write, stdout},
    process::ExitCode,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt, Empty};
use hyper::Uri;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector as TcpConnector},
    },
    rt::TokioExecutor,
};
use rdmsg::{Connector, Engine, tokio::HttpConnector};
use services::{Result, options::Keepalive, run, server::finish};
use tokio::task::JoinSet;

#[derive(Clone, Parser)]
#[command(
    version,
    about = "Gets a page over HTTP: once, or many times to measure the rate.",
    after_help = "Example:\n  http_get http://10.8.0.1:7471/ -n 100000"
)]
struct Program {
    /// The URI of the page
    uri: Uri,
    /// Connect over plain TCP instead of rdmsg
    #[arg(long)]
    tcp: bool,
    /// Use HTTP/2 instead of HTTP/1
    #[arg(long)]
    http2: bool,
    /// Send this number of requests, and print the rate
    #[arg(short = 'n', long)]
    requests: Option<u64>,
    /// The number of concurrent requests
    #[arg(short, long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    concurrency: u64,
    /// Show the log of the library
    #[arg(long)]
    debug: bool,
    #[command(flatten)]
    keepalive: Keepalive,
}

fn main() -> ExitCode {
    let program = Program::parse();
    run("http_get", program.debug, work(program))
}

async fn work(program: Program) -> Result<()> {
    if program.tcp {
        return get(TcpConnector::new(), &program).await;
    }
    let engine = Engine::new()?;
    let connector = Connector::new().config(&program.keepalive.config());
    get(HttpConnector::new(connector.engine(&engine)), &program).await?;
    finish(engine, Duration::from_secs(5)).await
}

async fn get<C>(connector: C, program: &Program) -> Result<()>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let mut builder = Client::builder(TokioExecutor::new());
    let client = builder.http2_only(program.http2).build(connector);
    let Some(requests) = program.requests else {
        let page = page(&client, &program.uri).await?;
        return Ok(stdout().write_all(&page)?);
    };
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..program.concurrency {
        let (client, uri) = (client.clone(), program.uri.clone());
        let more = u64::from(number < requests % program.concurrency);
        let share = requests / program.concurrency + more;
        tasks.spawn(async move {
            for _ in 0..share {
                page(&client, &uri).await?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let rate = requests as f64 / start.elapsed().as_secs_f64();
    println!("{requests} requests, {rate:.0} requests per second");
    Ok(())
}

async fn page<C>(client: &Client<C, Empty<Bytes>>, uri: &Uri) -> Result<Bytes>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let answer = client.get(uri.clone()).await?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("the server answered {status}").into());
    }
    Ok(answer.into_body().collect().await?.to_bytes())
}
