//! A gRPC server and client that use the unmodified tonic library. They communicate over rdmsg or
//! over plain TCP, and the server accepts both concurrently.
//!
//! The server passes a stream of connections to `serve_with_incoming_shutdown`, and the client
//! passes `rdmsg::tokio::HttpConnector` to `connect_with_connector`.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::{Parser, Subcommand};
use rdmsg::Engine;
use services::{
    Result,
    echo_service::{EchoClient, EchoService},
    options::{ClientOptions, ServerOptions},
    run,
    server::{Server, finish},
};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::transport;

#[derive(Parser)]
#[command(version, about = "A gRPC echo server and its client.")]
struct Program {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Run the server
    Serve(ServerOptions),
    /// Make a unary call: send a message, and print the reply
    Once {
        #[command(flatten)]
        options: ClientOptions,
        /// The message to send
        message: String,
        /// Send the message this number of times, and print the rate
        #[arg(short = 'n', long)]
        requests: Option<u64>,
        /// The number of concurrent calls
        #[arg(short, long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
        concurrency: u64,
    },
    /// Make a server-streaming call: request a number of messages, and print them
    Count {
        #[command(flatten)]
        options: ClientOptions,
        /// The number of messages to request
        count: u64,
    },
    /// Make a bidirectional streaming call: send messages, and print the reply to each
    Chat {
        #[command(flatten)]
        options: ClientOptions,
        /// The messages to send
        messages: Vec<String>,
    },
}

fn main() -> ExitCode {
    let Program { role } = Program::parse();
    let debug = match &role {
        Role::Serve(options) => options.debug,
        Role::Once { options, .. } | Role::Count { options, .. } | Role::Chat { options, .. } => {
            options.debug
        }
    };
    run("grpc", debug, async {
        match role {
            Role::Serve(options) => serve(&options).await,
            client => call(client).await,
        }
    })
}

async fn serve(options: &ServerOptions) -> Result<()> {
    let server = Server::start(options).await?;
    let stop = server.stop();
    let incoming = server.incoming();
    let serving = transport::Server::builder().serve_with_incoming_shutdown(
        EchoService,
        incoming,
        stop.cancelled(),
    );
    let time_limit = async {
        stop.cancelled().await;
        tokio::time::sleep(options.patience()).await;
    };
    tokio::select! {
        served = serving => served?,
        () = time_limit => println!("some calls were cut off, because they did not end in time"),
    }
    server.finish().await
}

async fn call(role: Role) -> Result<()> {
    let engine = Engine::new()?;
    match role {
        Role::Serve(_) => {}
        Role::Once {
            options,
            message,
            requests: None,
            ..
        } => {
            let mut client = EchoClient::connect(options, engine.clone()).await?;
            print(&client.once(message).await?);
        }
        Role::Once {
            options,
            message,
            requests: Some(requests),
            concurrency,
        } => {
            let client = EchoClient::connect(options, engine.clone()).await?;
            bench(client, message.into(), requests, concurrency).await?;
        }
        Role::Count { options, count } => {
            let mut client = EchoClient::connect(options, engine.clone()).await?;
            let mut numbers = client.count(count).await?;
            while let Some(number) = numbers.next().await {
                print(&number?);
            }
        }
        Role::Chat { options, messages } => {
            let mut client = EchoClient::connect(options, engine.clone()).await?;
            let messages = tokio_stream::iter(messages.into_iter().map(Bytes::from));
            let mut answers = client.chat(messages).await?;
            while let Some(answer) = answers.next().await {
                print(&answer?);
            }
        }
    }
    finish(engine, Duration::from_secs(5)).await
}

fn print(message: &Bytes) {
    println!("{}", String::from_utf8_lossy(message));
}

async fn bench(client: EchoClient, message: Bytes, requests: u64, concurrency: u64) -> Result<()> {
    println!("connected");
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..concurrency {
        let (mut client, message) = (client.clone(), message.clone());
        let share = requests / concurrency + u64::from(number < requests % concurrency);
        tasks.spawn(async move {
            for _ in 0..share {
                if client.once(message.clone()).await? != message {
                    return Err("the reply differs from the message".into());
                }
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
