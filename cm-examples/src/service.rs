//! The parts that the echo servers with many clients share: options, shutdown, and statistics on
//! request.

use std::{net::SocketAddr, thread, time::Duration};

use clap::Args;
use nix::sys::{
    resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
    signal::{SigSet, Signal},
    time::TimeValLike,
};
use rdmsg::{Config, Engine, Listener, Polling};

use crate::Result;

/// The options of a server.
#[derive(Args, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct Options {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(default_value = "0.0.0.0:7471")]
    pub address: SocketAddr,
    /// How long clients may take to finish after SIGINT or SIGTERM, in seconds
    #[arg(long, default_value_t = 5)]
    pub patience: u64,
    /// Show the log of the library
    #[arg(short, long)]
    pub debug: bool,
}

/// A listener with an engine of its own, which ends on a signal.
#[derive(Debug)]
pub struct Service {
    /// The listener for clients. The end of the service closes it.
    pub listener: Listener,
    signals: thread::JoinHandle<Result<()>>,
}

/// Returns the configuration for hundreds of connections with short messages: 45 KiB each.
#[must_use]
pub fn config() -> Config {
    Config::default().with(|config| {
        config.receive_window = 8;
        config.send_depth = 8;
        config.eager_size = Some(1024);
        config.max_message = 1024;
        // 8 connections are established at a time.
        config.connect_timeout = Duration::from_secs(60);
    })
}

/// Returns [`config`] for servers with a thread in `recv` on each connection. The threads sleep
/// without spinning, because otherwise they would contend for the processors.
#[must_use]
pub fn config_for_threads() -> Config {
    config().with(|c| c.polling = Polling::Event)
}

impl Service {
    /// Listens. Must be called before other threads start, because they inherit the blocked
    /// signals.
    ///
    /// # Errors
    ///
    /// Errors of the system, and of listening.
    pub fn start(options: &Options, config: Config) -> Result<Self> {
        allow_many_fds()?;
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1]);
        signals.thread_block()?;
        let engine = Engine::new()?;
        // All clients may connect at once.
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

    /// Waits until the connections have ended, after the listener was closed.
    ///
    /// # Errors
    ///
    /// A failure of the signal thread.
    pub fn finish(self) -> Result<()> {
        self.signals.join().map_err(|_| "the thread has panicked")?
    }
}

/// SIGUSR1 prints statistics; SIGINT and SIGTERM end the server.
fn obey(signals: &SigSet, engine: Engine, patience: Duration) -> Result<()> {
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
    let left = engine.drain(patience)?;
    println!("{left} connections were left");
    engine.shutdown();
    Ok(())
}

/// Raises the limit of file descriptors to the hard limit, because each connection takes a few.
///
/// # Errors
///
/// Errors of the system.
pub fn allow_many_fds() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(())
}
