//! Establishes connections on the client, and accepts them on the server.

use std::{
    net::SocketAddr,
    sync::Arc,
    thread::{self, Scope},
};

use anyhow::{Result, ensure};
use rdmsg::{
    Connector, Engine, Listener, Request, RequestListener,
    crossbeam_channel::{Receiver, Select, bounded},
};
use toolbox::TIME_LIMIT;

use super::{Report, Worker, conversation::Conversation, problem, report};
use crate::{plan::listener_configs, record::End, scenario::Fault};

/// Establishes all connections concurrently, each in its own thread. The numbers of the connections
/// start at `first`. Waits until all connections have ended, and shuts down the engine.
pub(super) fn connect(worker: &Arc<Worker>, first: u32) -> Result<()> {
    let addresses = &worker
        .wait(|state| !state.addresses.is_empty())
        .addresses
        .clone();
    let engine = Engine::new()?;
    thread::scope(|scope| {
        let engine = &engine;
        for slot in 0..worker.scenario.connections() {
            scope.spawn(move || run_in_sequence(worker, first + slot, addresses, engine));
        }
    });
    release(engine)
}

/// Waits until an engine has released all connections. Then shuts down the engine.
fn release(engine: Engine) -> Result<()> {
    let left = engine.drain(TIME_LIMIT)?;
    ensure!(left == 0, "{left} connections are still open");
    engine.shutdown();
    Ok(())
}

/// Runs one connection. In an endless scenario, runs further connections, one after another, until
/// the order `stop` arrives. In a scenario whose server restarts, runs further connections until
/// this side has closed one of them.
fn run_in_sequence(worker: &Arc<Worker>, first: u32, addresses: &[SocketAddr], engine: &Engine) {
    let slots = worker.scenario.connections();
    for connection in (first..).step_by(slots as usize) {
        let conversation = Conversation::begin(worker, connection);
        let endpoint = Connector::new()
            .config(&conversation.half().config)
            .engine(engine)
            .retry_refused(true)
            .private_data(&connection.to_le_bytes())
            .connect(addresses[conversation.plan.listener]);
        let end = conversation.run(endpoint);
        let is_enough = match worker.scenario.fault {
            Fault::ServerRestarts(_) => end == End::LocallyClosed,
            _ => !worker.scenario.is_endless() || worker.state().stop,
        };
        if is_enough {
            return;
        }
    }
}

/// Listens, prints the addresses, and serves connections. In a scenario with restarts, shuts down
/// the engine when all clients have connected, and listens again, as often as the fault specifies.
/// In a scenario that kills the clients, suspended sessions still exist at the end, so the function
/// then shuts down the engine without waiting for them.
pub(super) fn serve(worker: &Arc<Worker>, address: SocketAddr) -> Result<()> {
    let configs = listener_configs(&worker.scenario, worker.seed);
    let (restarts, leaves) = match worker.scenario.fault {
        Fault::ServerRestarts(times) => (times, false),
        fault => (0, fault == Fault::ProcessLeaves),
    };
    let vanish = matches!(worker.scenario.fault, Fault::ClientsVanish(_));
    let mut addresses = vec![address; configs.len()];
    for restart in 0..=restarts {
        let engine = Engine::new()?;
        let bind = |(addr, config): (&SocketAddr, _)| {
            let builder = Listener::builder().config(config).engine(&engine);
            builder.backlog(1024).bind_requests(*addr)
        };
        let listeners = addresses.iter().zip(&configs).map(bind);
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        addresses = listeners.iter().map(RequestListener::local_addr).collect();
        worker.state().flowing = 0;
        if restart == 0 {
            report(&Report::Listens(addresses.clone()));
        }
        thread::scope(|scope| {
            let (accepting, ended) = bounded::<()>(0);
            scope.spawn(move || {
                // A server that restarts or exits accepts connections until all are flowing. Any
                // other server accepts connections until the order `over` arrives.
                let all = worker.scenario.connections();
                let is_enough = |flowing| (leaves || restart < restarts) && flowing >= all;
                drop(worker.wait(|state| state.over || is_enough(state.flowing)));
                drop(accepting);
            });
            accept(scope, worker, &listeners, &ended);
            drop(listeners);
            if restart < restarts || vanish {
                engine.clone().shutdown();
            }
        });
        if restart == restarts && !leaves && !vanish {
            release(engine)?;
        }
    }
    Ok(())
}

/// Accepts connections on all `listeners` until the sender of `end` is dropped. Each connection
/// runs in its own thread.
fn accept<'a>(
    scope: &'a Scope<'a, '_>,
    worker: &Arc<Worker>,
    listeners: &[RequestListener],
    end: &Receiver<()>,
) {
    let mut select = Select::new();
    for listener in listeners {
        select.recv(listener.requests());
    }
    select.recv(end);
    loop {
        let ready = select.select();
        let Some(listener) = listeners.get(ready.index()) else {
            let _ = ready.recv(end);
            return;
        };
        match ready.recv(listener.requests()) {
            Ok(request) => converse(scope, worker, request),
            Err(_) => {
                // The listener has ended, because its device or its address was removed. Its
                // connections break for the same reason. Accept no more connections, and wait until
                // the sender of `end` is dropped.
                let _ = end.recv();
                return;
            }
        }
    }
}

fn converse<'a>(scope: &'a Scope<'a, '_>, worker: &Arc<Worker>, request: Request) {
    let data = request.private_data();
    let Ok(connection) = data.try_into() else {
        return problem(format!("a request has unexpected private data: {data:?}"));
    };
    let conversation = Conversation::begin(worker, u32::from_le_bytes(connection));
    scope.spawn(move || conversation.run(request.accept()));
}
