//! `rdmsg bridge` forwards plain TCP connections as rdmsg streams, or rdmsg streams as plain TCP
//! connections.
//!
//! ```text
//! options    the command line               address    the forms of addresses
//! bridge     the main task of a bridge      counters   counts connections and bytes
//! listening  accepts connections            target     connects to the target
//! session    both ends of a connection      carry      moves the bytes in both directions
//! cause      why a connection was aborted
//! ```

mod address;
#[expect(clippy::module_inception, reason = "the object is the bridge")]
mod bridge;
mod carry;
mod cause;
mod counters;
mod listening;
mod options;
mod session;
mod target;

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

use self::bridge::Bridge;
pub(crate) use self::options::Options;
use crate::process::{BridgeSignals, export_statistics, raise_open_files};

/// The maximum number of files that a connection keeps open: the plain socket and the descriptors
/// of the rdmsg stream.
const FILES_PER_CONNECTION: u64 = 4;

/// The number of open files that are reserved for everything except connections.
const FILES_OF_PROCESS: u64 = 64;

/// Runs a bridge until a signal ends it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    options.check();
    // Block the signals before other threads start.
    let signals = BridgeSignals::install().context("cannot handle signals")?;
    let most = raise_open_files().saturating_sub(FILES_OF_PROCESS) / FILES_PER_CONNECTION;
    if most < options.max_connections {
        log::warn!(
            "the limit on open files allows only {most} connections, fewer than \
             --max-connections {}: raise the limit (ulimit -Hn; LimitNOFILE= of systemd)",
            options.max_connections
        );
    }
    let _export = export_statistics(options.statistics)?;
    let runtime = start_runtime(options.threads).context("cannot start the runtime")?;
    let ended = runtime.block_on(async {
        let bridge = Bridge::start(options).await?;
        // Run the bridge on a worker thread of the runtime, like the tasks that the bridge starts.
        tokio::spawn(bridge.run(signals)).await?
    });
    // Do not wait for blocking tasks, because these are only name lookups.
    runtime.shutdown_background();
    ended
}

fn start_runtime(threads: Option<usize>) -> std::io::Result<Runtime> {
    let mut builder = match threads {
        // With one thread, the runtime runs all tasks on the calling thread, so tasks do not move
        // between threads.
        Some(1) => Builder::new_current_thread(),
        Some(_) | None => Builder::new_multi_thread(),
    };
    if let Some(threads) = threads.filter(|threads| *threads > 1) {
        builder.worker_threads(threads);
    }
    builder.thread_name("rdmsg-bridge").enable_all().build()
}
