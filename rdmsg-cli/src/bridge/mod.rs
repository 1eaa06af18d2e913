//! `rdmsg bridge`: connections that come in on one side go out on the other.
//!
//! ```text
//! options    the command line               address    what its addresses mean
//! bridge     accepts, reports, ends         signals    what tells it to
//! listening  where connections come in      target     where they go
//! session    one connection: both its ends  carry      its bytes, in both directions
//! cause      why one is ended by force      counters   what happened so far
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
mod signals;
mod target;

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

pub(crate) use self::options::Options;
use self::{bridge::Bridge, signals::Signals};
use crate::{open_files::raise_open_files, statistics::export};

/// Files that a connection keeps open: its socket, and those of its other side.
const FILES_PER_CONNECTION: u64 = 4;

/// Files that are open without any connection.
const FILES_OF_PROCESS: u64 = 64;

/// Runs a bridge until a signal ends it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    options.check();
    let most = raise_open_files().saturating_sub(FILES_OF_PROCESS) / FILES_PER_CONNECTION;
    if most < options.max_connections {
        log::warn!(
            "the limit of open files suffices for {most} connections, less than \
             --max-connections {}: raise it (ulimit -Hn; LimitNOFILE= of systemd)",
            options.max_connections
        );
    }
    let _export = export(options.statistics)?;
    let runtime = start_runtime(options.threads).context("cannot start the runtime")?;
    let ended = runtime.block_on(async {
        // The signals are handled before the bridge prints that it is ready.
        let signals = Signals::new().context("cannot handle signals")?;
        let bridge = Bridge::start(options).await?;
        // On a thread of the runtime, as the tasks that it starts.
        tokio::spawn(bridge.run(signals)).await?
    });
    // The shutdown does not wait, because at most the lookup of a name is left.
    runtime.shutdown_background();
    ended
}

fn start_runtime(threads: Option<usize>) -> std::io::Result<Runtime> {
    let mut builder = match threads {
        // With one thread, the runtime runs on the calling thread, so that no task moves between
        // threads.
        Some(1) => Builder::new_current_thread(),
        Some(_) | None => Builder::new_multi_thread(),
    };
    if let Some(threads) = threads.filter(|threads| *threads > 1) {
        builder.worker_threads(threads);
    }
    builder.thread_name("rdmsg-bridge").enable_all().build()
}
