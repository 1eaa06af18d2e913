//! Code shared by the echo servers for many clients: the options, the shutdown on a signal, and
//! statistics on request.

use std::{net::SocketAddr, thread, time::Duration};

use clap::Args;
use nix::sys::{
    resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
    signal::{SigSet, Signal},
    time::TimeValLike,
};
use rdmsg::{Config, Engine, Listener, Polling};

use crate::Result;

/// The command line options of an echo server.
#[derive(Args, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct Options {
    /// The address and port to listen on; with port 0, the system chooses a free port
    #[arg(default_value = "0.0.0.0:7471")]
    pub address: SocketAddr,
    /// The time limit in seconds for clients to finish after SIGINT or SIGTERM
    #[arg(long, default_value_t = 5)]
    pub patience: u64,
    /// Show the log of the library
    #[arg(short, long)]
    pub debug: bool,
}

/// A listener with its own engine. SIGINT or SIGTERM closes the listener and shuts down the engine.
#[derive(Debug)]
pub struct Service {
    /// The listener for clients. SIGINT or SIGTERM closes the listener.
    pub listener: Listener,
    signals: thread::JoinHandle<Result<()>>,
}

/// Returns a configuration for hundreds of connections with short messages. Each connection uses 45
/// KiB of memory.
#[must_use]
pub fn config() -> Config {
    Config::default().with(|config| {
        config.receive_window = Some(8);
        config.send_depth = Some(8);
        config.eager_size = Some(1024);
        config.max_message = 1024;
        // The engine establishes only 8 connections at a time. So if many clients connect
        // simultaneously, some clients wait for a long time.
        config.connect_timeout = Duration::from_secs(60);
    })
}

/// Returns [`config`] with a change for servers in which one thread per connection waits in `recv`.
/// The threads sleep instead of polling, because polling threads would keep all processors busy.
#[must_use]
pub fn config_for_threads() -> Config {
    config().with(|c| c.polling = Polling::Event)
}

impl Service {
    /// Starts listening, and starts a thread that handles SIGINT, SIGTERM and SIGUSR1. Blocks these
    /// signals in the calling thread. Must be called before other threads start, because only
    /// threads that start after this call inherit the blocked signals.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot listen on the address, or if a system call fails.
    pub fn start(options: &Options, config: Config) -> Result<Self> {
        allow_many_fds()?;
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1]);
        signals.thread_block()?;
        let engine = Engine::new()?;
        // Permit many connections that are not accepted or not established yet, because all clients
        // can connect simultaneously.
        let builder = Listener::builder().config(&config).engine(&engine);
        let builder = builder.backlog(1000).half_open(1000);
        let listener = builder.bind(options.address)?;
        println!("listening on {}", listener.local_addr());
        let patience = Duration::from_secs(options.patience);
        Ok(Self {
            listener,
            signals: thread::spawn(move || obey(&signals, engine, patience)),
        })
    }

    /// Waits until a signal has ended the service and all connections have ended.
    ///
    /// # Errors
    ///
    /// Fails if the thread that handles the signals has failed.
    pub fn finish(self) -> Result<()> {
        self.signals
            .join()
            .map_err(|_| "the signal thread has panicked")?
    }
}

/// Prints statistics after each SIGUSR1. After SIGINT or SIGTERM, closes the listener, and waits up
/// to `time_limit` until all connections have ended. Then ends the connections that are still open.
fn obey(signals: &SigSet, engine: Engine, time_limit: Duration) -> Result<()> {
    while signals.wait()? == Signal::SIGUSR1 {
        let statistics = engine.statistics()?;
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let used = usage.user_time() + usage.system_time();
        println!(
            "connections {} received {} sent {} held {} processor-ms {}",
            statistics.connections,
            statistics.all.messages_received,
            statistics.all.messages_sent,
            statistics.all.buffers_held,
            used.num_milliseconds()
        );
    }
    let left = engine.drain(time_limit)?;
    println!("{left} connections did not end in time");
    engine.shutdown();
    Ok(())
}

/// Raises the soft limit on open files to the hard limit, because each connection uses several
/// descriptors.
///
/// # Errors
///
/// Fails if a system call fails.
pub fn allow_many_fds() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(())
}
