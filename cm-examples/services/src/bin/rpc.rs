//! A tarpc server that stores values by key, and its client. Each request and each response is one
//! rdmsg message. The module `services::rpc` contains the tarpc transports.

use std::{
    net::SocketAddr,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use rdmsg::{
    Connector, Engine,
    tokio::{Endpoint, Listener},
};
use services::{
    Result,
    options::Keepalive,
    rpc::{self, ClientTransport, StoreClient, Values},
    run,
    server::{finish, stop_on_signals},
};
use tarpc::{client, context};
use tokio_util::task::TaskTracker;

const TIME_LIMIT: Duration = Duration::from_secs(5);

#[derive(Parser)]
#[command(
    version,
    about = "A tarpc server that stores values by their keys, and its client."
)]
struct Program {
    #[command(subcommand)]
    role: Role,
    /// Show the log of the library
    #[arg(long, global = true)]
    debug: bool,
    #[command(flatten)]
    keepalive: Keepalive,
}

#[derive(Subcommand)]
enum Role {
    /// Run the server
    Serve {
        /// The address and port to listen on; with port 0, the system chooses a free port
        #[arg(default_value = "0.0.0.0:7471")]
        address: SocketAddr,
    },
    /// Set the value of a key
    Set {
        /// The address and port of the server
        address: String,
        key: String,
        value: String,
    },
    /// Print the value of a key
    Get {
        /// The address and port of the server
        address: String,
        key: String,
        /// Request the value this number of times, sequentially, and print the rate
        #[arg(short = 'n', long)]
        requests: Option<u64>,
    },
}

fn main() -> ExitCode {
    let program = Program::parse();
    run("rpc", program.debug, work(program))
}

async fn work(program: Program) -> Result<()> {
    let engine = Engine::new()?;
    let config = program.keepalive.config();
    let connector = Connector::new().config(&config).engine(&engine);
    match program.role {
        Role::Serve { address } => {
            let listener = rdmsg::Listener::builder()
                .config(&config)
                .engine(&engine)
                .bind(address)
                .map(Listener::from)?;
            println!("listening on {}", listener.local_addr());
            serve(&listener).await?;
        }
        Role::Set {
            address,
            key,
            value,
        } => {
            let client = connect(&connector, &address).await?;
            let before = client.set(context::current(), key, value).await?;
            println!("set, was {before:?}");
        }
        Role::Get {
            address,
            key,
            requests,
        } => {
            let client = connect(&connector, &address).await?;
            println!("connected");
            let start = Instant::now();
            for _ in 1..requests.unwrap_or(1) {
                client.get(context::current(), key.clone()).await?;
            }
            let value = client.get(context::current(), key).await?;
            println!("{}", value.ok_or("the server has no value for this key")?);
            if let Some(requests) = requests {
                let rate = requests as f64 / start.elapsed().as_secs_f64();
                println!("{requests} requests, {rate:.0} requests per second");
            }
        }
    }
    finish(engine, TIME_LIMIT).await
}

async fn connect(connector: &Connector, address: &str) -> Result<StoreClient> {
    let endpoint = Endpoint::connect_with(connector, address).await?;
    let transport = ClientTransport::new(endpoint);
    Ok(StoreClient::new(client::Config::default(), transport).spawn())
}

/// Serves connections until a signal arrives. Then waits up to `TIME_LIMIT` for the clients to
/// close their connections.
async fn serve(listener: &Listener) -> Result<()> {
    let stop = stop_on_signals()?;
    let values = Values::default();
    let clients = TaskTracker::new();
    loop {
        tokio::select! {
            endpoint = listener.accept() => {
                clients.spawn(rpc::serve(endpoint?, values.clone()));
            }
            () = stop.cancelled() => break,
        }
    }
    clients.close();
    let left = tokio::time::timeout(TIME_LIMIT, clients.wait()).await;
    if left.is_err() {
        println!("{} clients did not end in time", clients.len());
    }
    Ok(())
}
