use std::{
    future::pending,
    io::{self, Write, stdout},
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use rdmsg::Engine;
use tokio::{
    select,
    sync::Notify,
    task::JoinSet,
    time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout},
};

use super::{
    address::Scheme,
    cause::Cause,
    counters::{Counters, Flow, Open},
    listening::{AcceptFailure, Incoming, Listening},
    options::Options,
    session::{Session, explain},
    target::{Target, connect_plain, connect_rdmsg, find_rdma},
};
use crate::process::{BridgeRequest, BridgeSignals};

/// The pause after a failed accept. An accept fails, for example, if the process has reached its
/// limit on open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The time limit for each of the two final steps: resetting the remaining connections, and
/// printing the requested reports.
const RESET_LIMIT: Duration = Duration::from_secs(2);

/// Accepts connections, and forwards their bytes to and from the target.
#[derive(Debug)]
pub(super) struct Bridge {
    listening: Listening,
    shared: Arc<Shared>,
    connections: JoinSet<()>,
    max_connections: u64,
    drain: Duration,
    report: Option<Interval>,
}

/// The state that all connections of the bridge share.
#[derive(Debug)]
struct Shared {
    target: Target,
    counters: Arc<Counters>,
    /// The number of requested reports that are not printed yet.
    reports: AtomicU32,
    /// Notified after all requested reports were printed.
    printed: Notify,
}

impl Bridge {
    /// Starts listening, and prints the address of the listener.
    pub(super) async fn start(options: &Options) -> Result<Self> {
        let Options { listen, to, .. } = options;
        let engine = Engine::shared().context("cannot start the engine")?;
        let has_rdma = || find_rdma(&engine).is_ok();
        let (listening, target) = if listen.scheme() == Scheme::Plain {
            let config = options.stream_config(to.scheme(), has_rdma);
            let target = Target::rdmsg(to.clone(), &config, &engine)?;
            (Listening::bind_plain(listen).await?, target)
        } else {
            let config = options.stream_config(listen.scheme(), has_rdma);
            let target = Target::plain(to.clone(), options.connect_timeout);
            (Listening::bind_rdmsg(listen, &config, &engine)?, target)
        };
        let at = listen.at(listening.local_addr()?);
        print(format_args!("listening on {at}, to {to}"));
        Ok(Self {
            listening,
            shared: Arc::new(Shared {
                target,
                counters: Arc::default(),
                reports: AtomicU32::new(0),
                printed: Notify::new(),
            }),
            connections: JoinSet::new(),
            max_connections: options.max_connections,
            drain: options.drain,
            report: options.report.map(every),
        })
    }

    /// Forwards connections until a signal or an error ends the bridge, and then ends all
    /// connections.
    pub(super) async fn run(mut self, mut signals: BridgeSignals) -> Result<ExitCode> {
        let ended = self.accept(&mut signals).await;
        let Self {
            listening,
            shared,
            mut connections,
            drain,
            ..
        } = self;
        drop(listening);
        let status = match ended {
            Ok(()) => finish(&mut connections, &shared, drain, &mut signals).await,
            Err(_) => ExitCode::FAILURE,
        };
        connections.abort_all();
        // Each aborted task resets both ends of its connection.
        let all_ended = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(RESET_LIMIT, all_ended).await;
        shared.report();
        let _ = timeout(RESET_LIMIT, shared.all_printed()).await;
        ended.map(|()| status)
    }

    /// Accepts connections until a signal ends the bridge. Returns an error if the listener can
    /// accept no further connections.
    async fn accept(&mut self, signals: &mut BridgeSignals) -> Result<()> {
        loop {
            select! {
                incoming = self.listening.accept() => match incoming {
                    Ok(incoming) => self.admit(incoming),
                    Err(AcceptFailure::Now(error)) => {
                        warn_sparsely!(
                            Command,
                            "the bridge cannot accept a connection, and retries in {PAUSE:?}: \
                             {error}"
                        );
                        sleep(PAUSE).await;
                    }
                    Err(AcceptFailure::Ever(error)) => {
                        return Err(error).context("cannot accept connections");
                    }
                },
                Some(_) = self.connections.join_next() => {}
                () = tick(&mut self.report) => self.shared.report(),
                request = signals.next() => match request {
                    BridgeRequest::Report => self.shared.report(),
                    BridgeRequest::End(_) => return Ok(()),
                },
            }
        }
    }

    /// Starts forwarding the bytes of a connection. If `max_connections` connections are already
    /// open, refuses the new connection.
    fn admit(&mut self, incoming: Incoming) {
        if let Some(open) = self.shared.counters.open(self.max_connections) {
            let shared = Arc::clone(&self.shared);
            self.connections.spawn(shared.serve(incoming, open));
            return;
        }
        let peer = match incoming {
            // Dropping the socket resets the connection.
            Incoming::Plain(_, peer) => peer,
            Incoming::Rdmsg(mut rdmsg, peer) => {
                rdmsg.cause = Cause::Limit;
                peer
            }
        };
        warn_sparsely!(
            Command,
            "refused a connection from {peer}: the limit of {} open connections \
             (--max-connections) is reached",
            self.max_connections
        );
    }
}

impl Shared {
    /// Connects to the target, and forwards the connection's bytes until the connection ends.
    async fn serve(self: Arc<Self>, incoming: Incoming, open: Open) {
        let (peer, session) = self.connect(incoming).await;
        let mut session = match session {
            Ok(session) => session,
            Err(error) => {
                self.counters.failed();
                let target = self.target.address();
                warn_sparsely!(
                    Command,
                    "reset the connection from {peer}: cannot connect to {target}: {}",
                    explain(&error)
                );
                return;
            }
        };
        match session.run().await {
            Ok(()) => log::debug!("the connection from {peer} ended"),
            Err(error) => {
                self.counters.failed();
                warn_sparsely!(
                    Command,
                    "reset the connection from {peer}: {}",
                    explain(&error)
                );
            }
        }
        drop(session);
        drop(open);
    }

    /// Connects to the target. Returns the peer's address and the session.
    async fn connect(&self, incoming: Incoming) -> (SocketAddr, io::Result<Session>) {
        let flow = |plain_is_target| Flow::new(&self.counters, plain_is_target);
        match (incoming, &self.target) {
            (Incoming::Plain(plain, peer), Target::Rdmsg { address, connector }) => {
                let rdmsg = connect_rdmsg(address, connector).await;
                let session = rdmsg.map(|rdmsg| Session {
                    plain,
                    rdmsg,
                    flow: flow(false),
                });
                (peer, session)
            }
            (Incoming::Rdmsg(mut rdmsg, peer), Target::Plain { address, limit }) => {
                rdmsg.cause = Cause::Target;
                let plain = connect_plain(address, *limit).await;
                let session = plain.map(|plain| {
                    rdmsg.cause = Cause::Ending;
                    Session {
                        plain,
                        rdmsg,
                        flow: flow(true),
                    }
                });
                (peer, session)
            }
            (Incoming::Plain(_, peer), Target::Plain { .. })
            | (Incoming::Rdmsg(_, peer), Target::Rdmsg { .. }) => {
                unreachable!("the connection from {peer} must have one plain end and one rdmsg end")
            }
        }
    }

    /// Prints the counters from a separate thread, because a write to stdout blocks if the reader
    /// of stdout is slow. If further requests arrive while the thread prints, one more line answers
    /// all of them.
    fn report(self: &Arc<Self>) {
        if self.reports.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let shared = Arc::clone(self);
        let printing = move || {
            loop {
                let wanted = shared.reports.load(Ordering::Acquire);
                print(format_args!("{}", shared.counters));
                let (all, none) = (Ordering::AcqRel, Ordering::Acquire);
                if shared
                    .reports
                    .compare_exchange(wanted, 0, all, none)
                    .is_ok()
                {
                    break;
                }
            }
            shared.printed.notify_waiters();
        };
        let thread = thread::Builder::new().name("rdmsg-report".into());
        if let Err(error) = thread.spawn(printing) {
            log::error!("cannot start a thread, so the counters are not printed: {error}");
            self.reports.store(0, Ordering::Release);
            self.printed.notify_waiters();
        }
    }

    /// Waits until all requested reports have been printed.
    async fn all_printed(&self) {
        loop {
            let printed = self.printed.notified();
            if self.reports.load(Ordering::Acquire) == 0 {
                return;
            }
            printed.await;
        }
    }
}

/// Waits until all connections have ended. Stops waiting when `drain` has elapsed, or when a second
/// signal to end the bridge arrives. Returns the exit status of the process.
async fn finish(
    connections: &mut JoinSet<()>,
    shared: &Arc<Shared>,
    drain: Duration,
    signals: &mut BridgeSignals,
) -> ExitCode {
    let mut late = std::pin::pin!(sleep(drain));
    while !connections.is_empty() {
        select! {
            _ = connections.join_next() => {}
            () = &mut late => {
                log::warn!(
                    "resetting all open connections ({}), because {drain:?} (--drain) have passed \
                     since the signal",
                    connections.len()
                );
                break;
            }
            request = signals.next() => match request {
                BridgeRequest::Report => shared.report(),
                BridgeRequest::End(signal) => return ExitCode::from(128 + signal),
            },
        }
    }
    ExitCode::SUCCESS
}

fn every(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => pending().await,
    }
}

/// Prints a line to stdout, and flushes stdout. Ignores errors, because the reader of a pipe may
/// have exited.
fn print(line: std::fmt::Arguments<'_>) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
