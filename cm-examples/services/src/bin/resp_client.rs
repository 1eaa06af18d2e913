//! A client for the Redis protocol (RESP), over rdmsg or over plain TCP. It sends its arguments as
//! one request, or runs a benchmark similar to `redis-benchmark`.

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use rdmsg::Engine;
use services::{
    Result,
    net::Socket,
    options::ClientOptions,
    resp::{Client, Reply},
    run,
    server::finish,
};
use tokio::task::JoinSet;

#[derive(Parser)]
#[command(
    version,
    about = "Sends one request in the Redis protocol (RESP), or many to measure their rate.",
    after_help = "Examples:\n  resp_client 10.8.0.1:7471 SET name value\n  \
                  resp_client 10.8.0.1:7471 --requests 100000 --clients 50 --pipeline 16"
)]
struct Program {
    #[command(flatten)]
    options: ClientOptions,
    /// The command and its arguments [default: PING; with --requests: first SET, then GET]
    command: Vec<String>,
    /// Send this number of requests, and print the rate
    #[arg(short = 'n', long)]
    requests: Option<u64>,
    /// The number of connections
    #[arg(short, long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// The number of requests in flight on each connection
    #[arg(short = 'P', long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pipeline: u64,
    /// With --requests and without a command: the length of each value in bytes
    #[arg(short = 'd', long, default_value_t = 3)]
    size: usize,
}

fn main() -> ExitCode {
    let program = Program::parse();
    run("resp_client", program.options.debug, work(&program))
}

async fn work(program: &Program) -> Result<()> {
    let engine = Engine::new()?;
    match program.requests {
        None => ask(program, &engine).await?,
        Some(requests) if program.command.is_empty() => {
            let value = "x".repeat(program.size);
            let set = ["SET", "key:rdmsg", &value].map(str::to_owned);
            bench(program, &engine, &set, requests).await?;
            let get = ["GET", "key:rdmsg"].map(str::to_owned);
            bench(program, &engine, &get, requests).await?;
        }
        Some(requests) => bench(program, &engine, &program.command, requests).await?,
    }
    finish(engine, std::time::Duration::from_secs(5)).await
}

async fn ask(program: &Program, engine: &Engine) -> Result<()> {
    let ping = ["PING".to_owned()];
    let command = match &program.command[..] {
        [] => &ping,
        command => command,
    };
    let socket = Socket::connect(&program.options, engine).await?;
    let reply = Client::new(socket).ask(command).await?;
    println!("{reply}");
    match reply {
        Reply::Error(_) => Err("the server returned an error".into()),
        _ => Ok(()),
    }
}

async fn bench(
    program: &Program,
    engine: &Engine,
    command: &[String],
    requests: u64,
) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..program.clients {
        let socket = Socket::connect(&program.options, engine).await?;
        clients.push(Client::new(socket));
    }
    println!("connected");
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, client) in (0..).zip(clients) {
        // If the division has a remainder of n, each of the first n connections sends one more
        // request.
        let share = requests / program.clients + u64::from(number < requests % program.clients);
        tasks.spawn(load(client, command.to_vec(), share, program.pipeline));
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = requests as f64 / seconds;
    println!(
        "{}: {requests} requests, {rate:.0} requests per second",
        command[0]
    );
    Ok(())
}

async fn load(
    mut client: Client<Socket>,
    command: Vec<String>,
    mut left: u64,
    pipeline: u64,
) -> Result<()> {
    while left > 0 {
        let together = left.min(pipeline);
        for _ in 0..together {
            client.push(&command);
        }
        client.flush().await?;
        for _ in 0..together {
            if let Reply::Error(error) = client.reply().await? {
                return Err(error.into());
            }
        }
        left -= together;
    }
    Ok(())
}
