use std::{
    fmt,
    io::{Write, stdout},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Result, bail};
use rdmsg::{
    Config, Endpoint, Engine, Error, Listener,
    crossbeam_channel::{Select, TryRecvError},
};

use super::{
    options::Options,
    session::{self, Reports},
};
use crate::process::Stop;

/// The abort code for a client that the server cannot serve, because too many connections are open
/// or a thread cannot be started.
const BUSY: u32 = 1;

/// Listens, and serves each connection in its own thread.
#[derive(Debug)]
pub(super) struct Server {
    engine: Engine,
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
    most: u64,
}

/// The state shared by all threads of the server.
#[derive(Debug)]
struct Shared {
    open: AtomicU64,
    reports: Reports,
    is_quiet: bool,
}

impl Server {
    /// Starts listening on all addresses, and prints them.
    pub(super) fn start(options: &Options) -> Result<Self> {
        let engine = Engine::new()?;
        let mut config = Config::default();
        config.transport = options.transport.into();
        config.max_message = options.max_message.0;
        config.resume = options.resume;
        let mut listeners = Vec::new();
        for address in &options.addresses {
            let listener = Listener::builder()
                .config(&config)
                .engine(&engine)
                .rebind(true)
                .bind(address.as_str())?;
            let over: Vec<String> = listener
                .transports()
                .iter()
                .map(ToString::to_string)
                .collect();
            say(format_args!(
                "listening on {} over {}",
                listener.local_addr(),
                over.join(" and ")
            ));
            listeners.push(listener);
        }
        Ok(Self {
            engine,
            listeners,
            shared: Arc::new(Shared {
                open: AtomicU64::new(0),
                reports: Reports::default(),
                is_quiet: options.quiet,
            }),
            most: options.max_connections.into(),
        })
    }

    /// Serves connections until a signal arrives, and then closes all connections.
    pub(super) fn run(self, stop: &Stop) -> Result<ExitCode> {
        let ended = self.accept(stop);
        self.engine.shutdown();
        ended.map(|()| ExitCode::SUCCESS)
    }

    fn accept(&self, stop: &Stop) -> Result<()> {
        let mut select = Select::new();
        select.recv(stop.channel());
        for listener in &self.listeners {
            select.recv(listener.accepted());
        }
        loop {
            let ready = select.ready();
            let Some(number) = ready.checked_sub(1) else {
                if stop.is_requested() {
                    return Ok(());
                }
                continue;
            };
            match self.listeners[number].accepted().try_recv() {
                Ok(Ok(endpoint)) => self.serve(&endpoint),
                Ok(Err(Error::ListenerEnded { reason, .. })) => {
                    bail!("a listener has ended: {reason}")
                }
                // The error concerns one connection attempt. The listener continues.
                Ok(Err(error)) => log::info!("a connection was not established: {error}"),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => bail!("the engine has ended"),
            }
        }
    }

    fn serve(&self, endpoint: &Endpoint) {
        let shared = &self.shared;
        // Only this thread increments the counter, so a check before the increment is sufficient.
        if shared.open.load(Ordering::Relaxed) >= self.most {
            let most = self.most;
            return refuse(
                endpoint,
                format_args!("the limit of {most} open connections (--max-connections) is reached"),
            );
        }
        let open = Open::new(shared);
        let serving = {
            let endpoint = endpoint.clone();
            move || serve_open(endpoint, open)
        };
        let thread = thread::Builder::new().name("rdmsg-serve".into());
        if let Err(error) = thread.spawn(serving) {
            refuse(endpoint, format_args!("cannot start a thread: {error}"));
        }
    }
}

/// Aborts a connection that the server cannot serve.
fn refuse(endpoint: &Endpoint, reason: fmt::Arguments<'_>) {
    let peer = endpoint.peer_addr();
    warn_sparsely!(Command, "refused a connection from {peer}: {reason}");
    endpoint.abort(BUSY);
}

/// An open connection. Dropping this value decrements the counter of open connections.
#[derive(Debug)]
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve_open(endpoint: Endpoint, open: Open) {
    let (peer, over) = (endpoint.peer_addr(), endpoint.info().transport);
    let ended = session::serve(&endpoint, &open.0.reports);
    let statistics = endpoint.statistics();
    drop(endpoint);
    let is_quiet = open.0.is_quiet;
    drop(open);
    if !is_quiet {
        say(format_args!(
            "{peer} over {over}: {ended}; received {} messages ({} bytes), sent {} ({} bytes)",
            statistics.messages_received,
            statistics.bytes_received,
            statistics.messages_sent,
            statistics.bytes_sent,
        ));
    }
}

/// Prints a line and flushes stdout. Ignores errors: stdout may be a pipe whose reader has exited.
fn say(line: fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
