//! A server that executes orders, and clients that continue while the server is replaced. To
//! replace the server, start a second server on the same address, and then send SIGTERM to the
//! first server.

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::{Parser, Subcommand};
use rdmsg::{Connector, Engine, Error, ToAddresses, tokio::Listener};
use services::{
    Result,
    options::Keepalive,
    orders, run,
    server::{finish, stop_on_signals},
    with_causes,
};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

#[derive(Parser)]
#[command(
    version,
    about = "A server that executes orders, and clients that survive its replacement."
)]
struct Program {
    #[command(subcommand)]
    role: Role,
    /// Show the log of the library
    #[arg(long, global = true)]
    debug: bool,
    /// The time limit in seconds for each wait: a new server waits until its address is free, a
    /// client waits for a server that listens, and an old server waits until its clients have moved
    /// to the new server
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    #[command(flatten)]
    keepalive: Keepalive,
}

#[derive(Subcommand)]
enum Role {
    /// Run the server; it starts to listen when the previous server has closed its listener
    Serve {
        /// The address and port to listen on; with port 0, the system chooses a free port
        #[arg(default_value = "0.0.0.0:7471")]
        address: SocketAddr,
    },
    /// Place orders until the given number is reached or a signal arrives
    Place {
        /// The address and port of the servers
        address: String,
        /// The number of orders that each client places
        #[arg(short = 'n', long, default_value_t = u64::MAX)]
        orders: u64,
        /// The number of clients
        #[arg(long, default_value_t = 4)]
        clients: u64,
    },
}

fn main() -> ExitCode {
    let program = Program::parse();
    run("orders", program.debug, async {
        match &program.role {
            Role::Serve { address } => program.serve(*address).await,
            Role::Place {
                address,
                orders,
                clients,
            } => program.place(address, *orders, *clients).await,
        }
    })
}

impl Program {
    fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }

    async fn serve(&self, address: SocketAddr) -> Result<()> {
        let stop = stop_on_signals()?;
        let engine = Engine::new()?;
        let builder = rdmsg::Listener::builder()
            .config(&self.keepalive.config())
            .engine(&engine)
            .bind_within(self.patience());
        let listener = Listener::bind_with(&builder, address).await?;
        println!("listening on {}", listener.local_addr());
        let (clients, executed) = (TaskTracker::new(), Arc::new(AtomicU64::new(0)));
        let closing = stop.clone().cancelled_owned();
        tokio::pin!(closing);
        let mut is_closed = false;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut closing, if !is_closed => {
                    listener.close();
                    is_closed = true;
                    continue;
                }
            };
            let client = match accepted {
                Ok(client) => client,
                // The listener is closed. A task serves each client that the listener accepted.
                Err(Error::ListenerClosed) => break,
                Err(error) => return Err(error.into()),
            };
            let (peer, executed) = (client.peer_addr(), Arc::clone(&executed));
            let serving = orders::serve(client, stop.clone(), move |_| {
                if executed.fetch_add(1, Ordering::Relaxed) == 0 {
                    println!("executes orders");
                }
            });
            clients.spawn(async move {
                if let Err(error) = serving.await {
                    println!("{peer}: {}", with_causes(&*error));
                }
            });
        }
        clients.close();
        let left = tokio::time::timeout(self.patience(), clients.wait()).await;
        if left.is_err() {
            println!("{} clients did not move in time", clients.len());
        }
        println!("executed {}", executed.load(Ordering::Relaxed));
        finish(engine, self.patience()).await
    }

    async fn place(&self, address: &str, orders: u64, clients: u64) -> Result<()> {
        let stop = stop_on_signals()?;
        let engine = Engine::new()?;
        let mut config = self.keepalive.config();
        config.connect_timeout = self.patience();
        let connector = Connector::new().config(&config).engine(&engine);
        let connector = connector.retry_refused(true);
        let address = address.to_addresses()?;
        let answered = Arc::new(AtomicU64::new(0));
        let mut placing = JoinSet::new();
        for client in 0..clients {
            let (stop, answered) = (stop.clone(), Arc::clone(&answered));
            let (connector, address) = (connector.clone(), address.clone());
            placing.spawn(async move {
                let numbers = (0..orders).map(|order| order.wrapping_mul(clients) + client);
                let numbers = numbers.take_while(|_| !stop.is_cancelled());
                orders::place(&connector, &address, numbers, &answered).await
            });
        }
        while let Some(placed) = placing.join_next().await {
            placed??;
        }
        println!("answered {}", answered.load(Ordering::Relaxed));
        finish(engine, self.patience()).await
    }
}
