//! The start of a server, a task for each connection, and the end by a signal.

use std::{io, net::SocketAddr};

use futures_util::Stream;
use rdmsg::Engine;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Result,
    net::{Listeners, Socket},
    options::ServerOptions,
    with_causes,
};

/// A server: its listeners, and the token for its end.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    engine: Engine,
    listeners: Listeners,
    stop: CancellationToken,
}

impl Server {
    /// Listens, prints the addresses, and ends on SIGINT or SIGTERM.
    ///
    /// # Errors
    ///
    /// Errors of listening.
    pub async fn start(options: &ServerOptions) -> Result<Self> {
        let stop = stop_on_signals()?;
        let server = Self::start_until(options, stop).await?;
        let (rdmsg, tcp) = server.local_addrs()?;
        println!("listening on {rdmsg}");
        if let Some(tcp) = tcp {
            println!("listening on {tcp} for plain TCP");
        }
        Ok(server)
    }

    /// Listens until the token is cancelled.
    ///
    /// # Errors
    ///
    /// Errors of listening.
    pub async fn start_until(options: &ServerOptions, stop: CancellationToken) -> Result<Self> {
        let engine = Engine::new()?;
        let listeners = Listeners::bind(options, &engine).await?;
        Ok(Self {
            options: options.clone(),
            engine,
            listeners,
            stop,
        })
    }

    /// Returns the addresses for streams of rdmsg, and for sockets of the kernel.
    ///
    /// # Errors
    ///
    /// Errors of the system.
    pub fn local_addrs(&self) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        self.listeners.local_addrs()
    }

    /// Returns the engine for connections over rdmsg.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the token that is cancelled to end sessions.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Returns the next connection, or `None` after the token was cancelled.
    ///
    /// # Errors
    ///
    /// If the listener has ended.
    pub async fn accept(&self) -> io::Result<Option<(Socket, SocketAddr)>> {
        tokio::select! {
            accepted = self.listeners.accept() => accepted.map(Some),
            () = self.stop.cancelled() => Ok(None),
        }
    }

    /// Returns the connections as a stream until the token is cancelled, for libraries that spawn
    /// tasks for connections themselves.
    pub fn incoming<'a>(&'a self) -> impl Stream<Item = io::Result<Socket>> + use<'a> {
        let next = async |server: &'a Self| {
            let accepted = server.accept().await.transpose()?;
            Some((accepted.map(|(socket, _)| socket), server))
        };
        futures_util::stream::unfold(self, next)
    }

    /// Spawns a task for each connection until the token is cancelled. Then the tasks may finish.
    ///
    /// # Errors
    ///
    /// If the listener has ended.
    pub async fn serve<F, S>(self, session: F) -> Result<()>
    where
        F: Fn(Socket, CancellationToken) -> S,
        S: Future<Output = Result<()>> + Send + 'static,
    {
        let sessions = TaskTracker::new();
        while let Some((socket, peer)) = self.accept().await? {
            let session = session(socket, self.stop());
            sessions.spawn(async move {
                if let Err(error) = session.await {
                    println!("{peer}: {}", with_causes(&*error));
                }
            });
        }
        sessions.close();
        let left = tokio::time::timeout(self.options.patience(), sessions.wait()).await;
        if left.is_err() {
            println!("{} sessions were left", sessions.len());
        }
        self.finish().await
    }

    /// Waits until all written bytes have arrived, within the time for clients.
    ///
    /// # Errors
    ///
    /// If the engine was shut down.
    pub async fn finish(self) -> Result<()> {
        finish(self.engine, self.options.patience()).await
    }
}

/// Waits up to `patience` until all connections of an engine have ended. Ends the connections
/// that are left, and prints their number.
///
/// # Errors
///
/// If the engine was shut down.
pub async fn finish(engine: Engine, patience: std::time::Duration) -> Result<()> {
    let drained = tokio::task::spawn_blocking(move || {
        let left = engine.drain(patience);
        engine.shutdown();
        left
    });
    match drained.await?? {
        0 => {}
        left => println!("{left} connections were left"),
    }
    Ok(())
}

/// Cancels the token on SIGINT or SIGTERM.
///
/// # Errors
///
/// Errors of the system.
pub fn stop_on_signals() -> io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stopped.cancel();
    });
    Ok(stop)
}
