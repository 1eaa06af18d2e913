//! A publish-subscribe service over rdmsg messages: the broker, a publisher and a subscriber.
//!
//! A slow subscriber does not delay other clients. The broker has a queue for each subscriber. The
//! number of messages and the number of bytes in a queue are limited. If a new message would exceed
//! a limit, the broker drops the oldest messages of the queue. Before it sends the next message,
//! the broker reports the number of dropped messages to the subscriber. The keepalive detects a
//! subscriber whose process hangs or whose host has failed.

use std::{
    io::{BufRead, stdin},
    net::SocketAddr,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand};
use rdmsg::{
    Config, Connector, Engine, Error, ToAddresses,
    tokio::{Endpoint, Listener},
};
use services::{
    Result,
    broker::{FromBroker, Hub, QueueLimits, ToBroker, publish},
    options::Keepalive,
    run,
    server::{finish, stop_on_signals},
    with_causes,
};
use tokio_util::task::TaskTracker;

/// The maximum length in bytes of a message that the broker and its clients accept.
const MAX_MESSAGE: u64 = 1 << 20;

#[derive(Parser)]
#[command(
    version,
    about = "A publish-subscribe broker, and its publisher and subscriber."
)]
struct Program {
    #[command(subcommand)]
    role: Role,
    /// Show the log of the library
    #[arg(long, global = true)]
    debug: bool,
}

#[derive(Subcommand)]
enum Role {
    /// Run the broker
    Serve(Serve),
    /// Publish the given messages on a topic; without messages, publish each line of stdin
    Pub {
        #[command(flatten)]
        client: Client,
        /// The topic to publish on
        topic: String,
        /// The messages to publish
        messages: Vec<String>,
        /// Publish this number of generated messages, and print the rate
        #[arg(short = 'n', long, conflicts_with = "messages")]
        count: Option<u64>,
        /// The size in bytes of each generated message
        #[arg(long, default_value_t = 64, requires = "count")]
        size: usize,
    },
    /// Subscribe to topics, and print the messages that arrive
    Sub {
        #[command(flatten)]
        client: Client,
        /// The topics to subscribe to
        #[arg(required = true)]
        topics: Vec<String>,
        /// Exit after this number of messages; messages that the broker dropped count too
        #[arg(short = 'n', long)]
        count: Option<u64>,
        /// Print only the message counts at the end
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print the statistics of the broker
    Ask {
        #[command(flatten)]
        client: Client,
    },
}

#[derive(Args)]
struct Serve {
    /// The address and port to listen on; with port 0, the system chooses a free port
    #[arg(default_value = "0.0.0.0:7471")]
    address: SocketAddr,
    /// The maximum number of messages in the queue of a subscriber; at the limit, the broker drops
    /// the oldest message
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    queue: u32,
    /// The maximum number of bytes in the queue of a subscriber
    #[arg(long, default_value_t = 8 << 20)]
    queue_bytes: usize,
    /// The time limit in seconds for clients to finish after SIGINT or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    patience: u64,
    #[command(flatten)]
    keepalive: Keepalive,
}

#[derive(Args)]
struct Client {
    /// The address and port of the broker
    address: String,
    #[command(flatten)]
    keepalive: Keepalive,
}

fn main() -> ExitCode {
    let Program { role, debug } = Program::parse();
    run("broker", debug, async {
        match role {
            Role::Serve(options) => serve(&options).await,
            Role::Pub {
                client,
                topic,
                messages,
                count,
                size,
            } => {
                let messages: Box<dyn Iterator<Item = Result<Vec<u8>>>> = match count {
                    Some(count) => Box::new((0..count).map(move |_| Ok(vec![b'x'; size]))),
                    None if messages.is_empty() => {
                        Box::new(stdin().lock().lines().map(|line| Ok(line?.into_bytes())))
                    }
                    None => Box::new(messages.into_iter().map(|text| Ok(text.into_bytes()))),
                };
                publish_all(&client, &topic, messages, count.is_some()).await
            }
            Role::Sub {
                client,
                topics,
                count,
                quiet,
            } => subscribe(&client, &topics, count, quiet).await,
            Role::Ask { client } => ask(&client).await,
        }
    })
}

async fn serve(options: &Serve) -> Result<()> {
    let stop = stop_on_signals()?;
    let engine = Engine::new()?;
    let config = config(&options.keepalive);
    let listener = rdmsg::Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(options.address)
        .map(Listener::from)?;
    println!("listening on {}", listener.local_addr());
    let hub = Hub::new(QueueLimits {
        messages: options.queue as usize,
        bytes: options.queue_bytes,
    });
    let clients = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let endpoint = match accepted {
            Ok(endpoint) => endpoint,
            Err(error @ (Error::ListenerClosed | Error::ListenerEnded { .. })) => {
                return Err(error.into());
            }
            Err(error) => {
                log::warn!("cannot accept a client; the broker continues to listen: {error}");
                continue;
            }
        };
        let peer = endpoint.peer_addr();
        let serving = hub.clone().serve(endpoint, stop.clone());
        clients.spawn(async move {
            if let Err(error) = serving.await {
                println!("{peer}: {}", with_causes(&*error));
            }
        });
    }
    clients.close();
    let patience = Duration::from_secs(options.patience);
    if tokio::time::timeout(patience, clients.wait())
        .await
        .is_err()
    {
        println!("{} clients did not end in time", clients.len());
    }
    println!("{}", hub.statistics());
    finish(engine, patience).await
}

fn config(keepalive: &Keepalive) -> Config {
    keepalive.config().with(|c| c.max_message = MAX_MESSAGE)
}

impl Client {
    async fn connect(&self) -> Result<Endpoint> {
        let address = self.address.clone();
        let addresses = tokio::task::spawn_blocking(move || address.to_addresses()).await??;
        let connector = Connector::new().config(&config(&self.keepalive));
        Ok(Endpoint::new(connector.start(addresses)?.await?)?)
    }
}

async fn publish_all(
    client: &Client,
    topic: &str,
    messages: impl Iterator<Item = Result<Vec<u8>>>,
    says: bool,
) -> Result<()> {
    let endpoint = client.connect().await?;
    if says {
        println!("connected");
    }
    let start = Instant::now();
    let mut count = 0u64;
    for message in messages {
        endpoint.send(&publish(topic, &message?)?).await?;
        count += 1;
    }
    // The close completes when the broker has received all messages.
    endpoint.close().await?;
    if says {
        let rate = count as f64 / start.elapsed().as_secs_f64();
        println!("{count} messages, {rate:.0} messages per second");
    }
    Ok(())
}

async fn subscribe(
    client: &Client,
    topics: &[String],
    count: Option<u64>,
    quiet: bool,
) -> Result<()> {
    let stop = stop_on_signals()?;
    let endpoint = client.connect().await?;
    for topic in topics {
        endpoint.send(&ToBroker::subscribe(topic)).await?;
    }
    // The broker executes the requests of a client in order. The reply to this request therefore
    // shows that the subscriptions are active.
    endpoint.send(&ToBroker::ask()).await?;
    let (mut received, mut missed) = (0, 0);
    while count.is_none_or(|count| received + missed < count) {
        let message = tokio::select! {
            message = endpoint.recv() => message,
            () = stop.cancelled() => break,
        };
        let message = match message {
            Err(Error::Disconnected(reason)) if reason.is_clean() => break,
            message => message?,
        };
        match FromBroker::parse(&message)? {
            FromBroker::Message { topic, payload } => {
                received += 1;
                if !quiet {
                    println!("{topic} {}", String::from_utf8_lossy(payload));
                }
            }
            FromBroker::Missed(count) => {
                missed += count;
                if !quiet {
                    println!("missed {count}");
                }
            }
            FromBroker::Statistics(_) => println!("subscribed"),
        }
    }
    println!("received {received} missed {missed}");
    Ok(endpoint.close().await?)
}

async fn ask(client: &Client) -> Result<()> {
    let endpoint = client.connect().await?;
    endpoint.send(&ToBroker::ask()).await?;
    let message = endpoint.recv().await?;
    match FromBroker::parse(&message)? {
        FromBroker::Statistics(text) => println!("{text}"),
        _ => return Err("the broker did not answer with its statistics".into()),
    }
    drop(message);
    Ok(endpoint.close().await?)
}
