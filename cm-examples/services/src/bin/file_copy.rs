//! Copies files to and from a server. Each piece of a file is one large message, which rdmsg sends
//! without copying it in memory. A digest verifies the complete file. If a copy is interrupted, the
//! next copy of the file continues at the position of the interruption.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use rdmsg::{
    Connector, Engine, Error, ToAddresses,
    tokio::{Endpoint, Listener},
};
use services::{
    Result, copy,
    options::Keepalive,
    run,
    server::{finish, stop_on_signals},
    with_causes,
};
use tokio_util::task::TaskTracker;

const BAR: &str = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

#[derive(Parser)]
#[command(
    version,
    about = "Copies files to and from a server, and continues interrupted copies."
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
    /// Serve the files of a folder; every client can read and write them
    Serve {
        /// The folder to serve
        folder: PathBuf,
        /// The address and port to listen on; with port 0, the system chooses a free port
        #[arg(default_value = "0.0.0.0:7471")]
        address: SocketAddr,
        /// The time limit in seconds for clients to finish after SIGINT or SIGTERM
        #[arg(long, value_name = "SECONDS", default_value_t = 5)]
        patience: u64,
    },
    /// Copy a file to the server
    Put(Copy),
    /// Copy a file from the server
    Get(Copy),
}

#[derive(Args)]
struct Copy {
    /// The path of the file on this host
    file: PathBuf,
    /// The address and port of the server
    address: String,
    /// The name of the file on the server [default: its name on this host]
    #[arg(long)]
    name: Option<String>,
}

fn main() -> ExitCode {
    let program = Program::parse();
    run("file_copy", program.debug, async {
        match &program.role {
            Role::Serve {
                folder,
                address,
                patience,
            } => {
                let patience = Duration::from_secs(*patience);
                serve(folder, *address, patience, &program.keepalive).await
            }
            Role::Put(options) => copy_file(options, &program.keepalive, true).await,
            Role::Get(options) => copy_file(options, &program.keepalive, false).await,
        }
    })
}

async fn serve(
    folder: &Path,
    address: SocketAddr,
    patience: Duration,
    keepalive: &Keepalive,
) -> Result<()> {
    if !folder.is_dir() {
        return Err(format!("{} is not a folder", folder.display()).into());
    }
    let stop = stop_on_signals()?;
    let engine = Engine::new()?;
    let listener = rdmsg::Listener::builder()
        .config(&keepalive.config())
        .engine(&engine)
        .bind(address)
        .map(Listener::from)?;
    println!("listening on {}", listener.local_addr());
    let folder: Arc<Path> = folder.into();
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
                log::warn!("cannot accept a client; the server continues to listen: {error}");
                continue;
            }
        };
        let folder = Arc::clone(&folder);
        clients.spawn(async move {
            let peer = endpoint.peer_addr();
            match copy::serve(&endpoint, &folder, &mut |_, _| {}).await {
                Ok(copied) => println!("{peer}: {} bytes from {}", copied.size, copied.from),
                Err(error) => println!("{peer}: {}", with_causes(&*error)),
            }
            if let Err(error) = endpoint.close().await {
                log::debug!("{peer}: the close of the connection failed: {error}");
            }
        });
    }
    clients.close();
    if tokio::time::timeout(patience, clients.wait())
        .await
        .is_err()
    {
        println!(
            "{} copies were interrupted; clients can continue them later",
            clients.len()
        );
    }
    finish(engine, patience).await
}

async fn copy_file(options: &Copy, keepalive: &Keepalive, put: bool) -> Result<()> {
    let file = &options.file;
    let named = file
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = options
        .name
        .clone()
        .or(named)
        .ok_or("the file has no name")?;
    let stop = stop_on_signals()?;
    let address = options.address.clone();
    let addresses = tokio::task::spawn_blocking(move || address.to_addresses()).await??;
    let connector = Connector::new().config(&keepalive.config());
    let endpoint = Endpoint::new(connector.start(addresses)?.await?)?;
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(BAR)?);
    let start = Instant::now();
    let mut progress = |at, size| {
        bar.set_length(size);
        bar.set_position(at);
    };
    let copying = async {
        if put {
            copy::put(&endpoint, file, &name, &mut progress).await
        } else {
            copy::get(&endpoint, file, &name, &mut progress).await
        }
    };
    let copied = tokio::select! {
        copied = copying => copied?,
        () = stop.cancelled() => {
            endpoint.get_ref().abort(0);
            return Err("interrupted: the next copy of the file continues at this position".into());
        }
    };
    endpoint.close().await?;
    bar.finish_and_clear();
    let moved = copied.size - copied.from;
    let rate = moved as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("{name}: {moved} bytes from {}, {rate:.1} MB/s", copied.from);
    Ok(())
}
