//! The client's connects, and the server's accepts.

use std::{
    net::SocketAddr,
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::Result;
use rdmsg::{
    Connector, Engine, Listener, Request, RequestListener,
    crossbeam_channel::{Receiver, Select, never},
};

use super::{News, Said, Worker, conversation::Conversation, say};
use crate::{judge::End, plan::listener_configs, scenario::Fault};

/// Makes all connections at once, each in its own thread.
pub(super) fn connect(worker: &Arc<Worker>, addresses: Vec<SocketAddr>, engine: &Engine) {
    let (worker, engine) = (Arc::clone(worker), engine.clone());
    thread::spawn(move || {
        thread::scope(|scope| {
            for slot in 0..worker.scenario.connections() {
                let (worker, addresses, engine) = (&worker, &addresses, &engine);
                scope.spawn(move || follow_one_another(worker, slot, addresses, engine));
            }
        });
        worker.tell(News::Over);
    });
}

/// Has one connection, or one after the other: until the order to stop, and until a server that
/// restarts has served the last one to its end.
fn follow_one_another(worker: &Arc<Worker>, slot: u32, addresses: &[SocketAddr], engine: &Engine) {
    let connect = |conversation: &Conversation| {
        Connector::new()
            .config(&conversation.half().config)
            .engine(engine)
            .retry_refused(true)
            .private_data(&conversation.connection.to_le_bytes())
            .connect(addresses[conversation.plan.listener])
    };
    let slots = worker.scenario.connections();
    for connection in (slot..).step_by(slots as usize) {
        let conversation = Conversation::begin(worker, connection);
        let endpoint = connect(&conversation);
        let end = conversation.run(endpoint);
        let is_enough = match worker.scenario.fault {
            Fault::ServerRestarts(_) => end == End::LocallyClosed,
            _ => !worker.scenario.is_endless() || worker.told().stop,
        };
        if is_enough {
            return;
        }
    }
}

/// Listens, prints the addresses, and serves until `ended`. A server that restarts first serves and
/// ends everything, each time when all clients are there.
pub(super) fn serve(worker: &Arc<Worker>, address: SocketAddr, ended: &Receiver<()>) -> Result<()> {
    let configs = listener_configs(&worker.scenario, worker.seed);
    let listen = |addresses: &[SocketAddr]| -> Result<_> {
        let engine = Engine::new()?;
        let pairs = addresses.iter().zip(&configs);
        let bind = |(addr, config): (&SocketAddr, _)| {
            let builder = Listener::builder().config(config).engine(&engine);
            builder.backlog(1024).bind_requests(*addr)
        };
        let listeners = pairs.map(bind).collect::<Result<Vec<_>, _>>()?;
        Ok((engine, listeners))
    };
    let (mut engine, mut listeners) = listen(&vec![address; configs.len()])?;
    let addresses: Vec<_> = listeners.iter().map(RequestListener::local_addr).collect();
    say(&Said::Listens(addresses.clone()));
    let restarts = match worker.scenario.fault {
        Fault::ServerRestarts(times) => times,
        Fault::ProcessLeaves => {
            join(worker, accept(worker, &listeners, &never(), || true));
            worker.tell(News::Over);
            return Ok(());
        }
        _ => 0,
    };
    for _ in 0..restarts {
        let threads = accept(worker, &listeners, &never(), || true);
        drop(listeners);
        engine.shutdown();
        join(worker, threads);
        (engine, listeners) = listen(&addresses)?;
    }
    let threads = accept(worker, &listeners, ended, || {
        if restarts > 0 {
            say(&Said::Restarted);
        }
        false
    });
    drop(listeners);
    join(worker, threads);
    engine.shutdown();
    Ok(())
}

/// Takes connections, each in its own thread, until `end` is disconnected, or all have flowed and
/// that is enough.
fn accept(
    worker: &Arc<Worker>,
    listeners: &[RequestListener],
    end: &Receiver<()>,
    is_enough: impl Fn() -> bool,
) -> Vec<JoinHandle<()>> {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut missing = worker.scenario.connections();
    let mut select = Select::new();
    for listener in listeners {
        select.recv(listener.requests());
    }
    let of_flows = select.recv(&worker.flows.1);
    select.recv(end);
    loop {
        let ready = select.select();
        if let Some(listener) = listeners.get(ready.index()) {
            let Ok(request) = ready.recv(listener.requests()) else {
                // The device or the address is gone. The connections end by themselves.
                let _ = end.recv();
                return threads;
            };
            threads.extend(converse(worker, request));
            threads.retain(|thread| !thread.is_finished());
        } else if ready.index() == of_flows {
            let _ = ready.recv(&worker.flows.1);
            missing = missing.saturating_sub(1);
            if missing == 0 && is_enough() {
                return threads;
            }
        } else {
            let _ = ready.recv(end);
            return threads;
        }
    }
}

fn converse(worker: &Arc<Worker>, request: Request) -> Option<JoinHandle<()>> {
    let Ok(connection) = request.private_data().try_into() else {
        worker.problem(format!("a request with data {:?}", request.private_data()));
        return None;
    };
    let conversation = Conversation::begin(worker, u32::from_le_bytes(connection));
    Some(thread::spawn(move || {
        drop(conversation.run(request.accept()))
    }))
}

fn join(worker: &Worker, threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            worker.problem("a thread panicked".into());
        }
    }
}
