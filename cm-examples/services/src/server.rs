//! Starts a server, spawns a task for each connection, and shuts the server down on a signal.

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

/// The listeners and the engine of a server, and the cancellation token that stops the server.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    engine: Engine,
    listeners: Listeners,
    stop: CancellationToken,
}

impl Server {
    /// Starts listening, and prints the addresses. SIGINT and SIGTERM cancel the server's token
    /// ([`stop`](Self::stop)).
    ///
    /// # Errors
    ///
    /// Fails if the process cannot listen on an address.
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

    /// Starts listening. The server ends when the caller cancels `stop`.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot listen on an address.
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

    /// Returns the address of the rdmsg listener, and the address of the TCP listener if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the system does not report the address of a socket.
    pub fn local_addrs(&self) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        self.listeners.local_addrs()
    }

    /// Returns the engine of the rdmsg connections.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the cancellation token that ends the server and its sessions.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Waits for the next connection. Returns `None` when the server's token is cancelled.
    ///
    /// # Errors
    ///
    /// Fails if the rdmsg listener has ended.
    pub async fn accept(&self) -> io::Result<Option<(Socket, SocketAddr)>> {
        tokio::select! {
            accepted = self.listeners.accept() => accepted.map(Some),
            () = self.stop.cancelled() => Ok(None),
        }
    }

    /// Returns a stream of connections, which ends when the server's token is cancelled. Libraries
    /// that themselves spawn a task for each connection need such a stream.
    pub fn incoming<'a>(&'a self) -> impl Stream<Item = io::Result<Socket>> + use<'a> {
        let next = async |server: &'a Self| {
            let accepted = server.accept().await.transpose()?;
            Some((accepted.map(|(socket, _)| socket), server))
        };
        futures_util::stream::unfold(self, next)
    }

    /// Spawns a task for each connection until the server's token is cancelled. Then waits for the
    /// tasks to end, up to the time limit `--patience`, and calls [`finish`](Self::finish).
    ///
    /// # Errors
    ///
    /// Fails if the rdmsg listener has ended.
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
            println!("{} sessions did not end in time", sessions.len());
        }
        self.finish().await
    }

    /// Waits until the rdmsg connections have ended, so that the peers receive all written bytes.
    /// Ends the connections that remain after the time limit `--patience`.
    ///
    /// # Errors
    ///
    /// Fails if the engine was already shut down.
    pub async fn finish(self) -> Result<()> {
        finish(self.engine, self.options.patience()).await
    }
}

/// Waits up to `time_limit` for all connections of the engine to end. Then ends the remaining
/// connections, and prints their number.
///
/// # Errors
///
/// Fails if the engine was already shut down.
pub async fn finish(engine: Engine, time_limit: std::time::Duration) -> Result<()> {
    let drained = tokio::task::spawn_blocking(move || {
        let left = engine.drain(time_limit);
        engine.shutdown();
        left
    });
    match drained.await?? {
        0 => {}
        left => println!("{left} connections did not end in time"),
    }
    Ok(())
}

/// Returns a cancellation token. A task cancels this token when SIGINT or SIGTERM arrives.
///
/// # Errors
///
/// Fails if the signal handlers cannot be installed.
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
