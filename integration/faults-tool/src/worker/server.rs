use std::{
    net::SocketAddr,
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::Result;
use rdmsg::{
    Engine, Error, Request, RequestListener,
    crossbeam_channel::{Receiver, Sender, bounded, never, select},
};

use super::{News, Worker, say};
use crate::scenario::Fault;

/// A server that has had all its connections.
#[derive(Debug)]
pub(super) struct Over {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Over {
    /// Ends listener and engine.
    pub(super) fn finish(self) {
        drop(self.end);
        if self.thread.join().is_err() {
            say("problem the server panicked");
        }
    }
}

/// Listens, and says where. Whatever comes from then on is served.
pub(super) fn serve(worker: &Arc<Worker>, address: SocketAddr) -> Result<Over> {
    let engine = Engine::new()?;
    let listener = RequestListener::bind_with(address, &worker.config, &engine)?;
    say(&format!("port {}", listener.local_addr().port()));
    let (end, ended) = bounded(0);
    let worker = Arc::clone(worker);
    let thread = thread::spawn(move || match worker.scenario.fault {
        Fault::ServerRestarts(times) => {
            if let Err(error) = restart(&worker, listener, engine, times, &ended) {
                worker.tell(News::Problem(format!("the server: {error}")));
            }
        }
        Fault::ProcessLeaves => leave(&worker, &listener),
        _ => {
            accept(&worker, &listener, &ended, || false);
            drop(listener);
            engine.shutdown();
        }
    });
    Ok(Over { end, thread })
}

/// Takes connections, each in a thread of its own, until that is to end, or all are there and that
/// is enough.
fn accept(
    worker: &Arc<Worker>,
    listener: &RequestListener,
    end: &Receiver<()>,
    is_enough: impl Fn() -> bool,
) -> Vec<JoinHandle<()>> {
    let mut threads = Vec::new();
    let mut missing = worker.scenario.connections();
    loop {
        select! {
            recv(listener.requests()) -> request => match request {
                Ok(request) => threads.extend(converse(worker, request)),
                Err(_) => {
                    // The device is gone, or the address. The connections end by themselves.
                    let _ = end.recv();
                    return threads;
                }
            },
            recv(worker.flows.1) -> _ => {
                missing = missing.saturating_sub(1);
                if missing == 0 && is_enough() {
                    return threads;
                }
            },
            recv(end) -> _ => return threads,
        }
    }
}

fn converse(worker: &Arc<Worker>, request: Request) -> Option<JoinHandle<()>> {
    let Ok(connection) = request.private_data().try_into() else {
        let data = request.private_data();
        worker.tell(News::Problem(format!("a request with data {data:?}")));
        return None;
    };
    let conversation = worker.begin(u32::from_le_bytes(connection));
    Some(thread::spawn(move || {
        conversation.run(request.accept());
    }))
}

/// Takes all connections, and when these have said what they had to, has the process end as it is.
fn leave(worker: &Arc<Worker>, listener: &RequestListener) {
    let threads: Vec<_> = (0..worker.scenario.connections())
        .filter_map(|_| converse(worker, listener.requests().recv().ok()?))
        .collect();
    join(threads);
    worker.tell(News::Over);
}

/// Serves, and ends everything so often when all clients are there, as a server does that is
/// started anew.
fn restart(
    worker: &Arc<Worker>,
    listener: RequestListener,
    engine: Engine,
    times: u32,
    end: &Receiver<()>,
) -> Result<(), Error> {
    let address = listener.local_addr();
    let never = never();
    let (mut listener, mut engine) = (listener, engine);
    for _ in 0..times {
        let threads = accept(worker, &listener, &never, || true);
        drop(listener);
        engine.shutdown();
        join(threads);
        engine = Engine::new()?;
        listener = RequestListener::bind_with(address, &worker.config, &engine)?;
    }
    let threads = accept(worker, &listener, end, || {
        say("restarted");
        false
    });
    drop(listener);
    engine.shutdown();
    join(threads);
    Ok(())
}

/// A thread that panicked says by itself why.
fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        let _ = thread.join();
    }
}
