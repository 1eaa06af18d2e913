use std::{net::SocketAddr, sync::Arc, thread};

use rdmsg::{Connector, Endpoint, Engine, Error};

use super::{News, Worker, conversation::Conversation};
use crate::{book::End, scenario::Fault};

/// Makes all connections at once, each in a thread of its own.
pub(super) fn connect(worker: &Arc<Worker>, address: SocketAddr, engine: &Engine) {
    let slots = worker.scenario.connections();
    let threads: Vec<_> = (0..slots)
        .map(|slot| {
            let (worker, engine) = (Arc::clone(worker), engine.clone());
            thread::spawn(move || match worker.scenario.fault {
                Fault::ServerRestarts(_) => again_and_again(&worker, slot, address, &engine),
                _ => drop(one(&worker, slot, address, &engine)),
            })
        })
        .collect();
    let worker = Arc::clone(worker);
    thread::spawn(move || {
        for thread in threads {
            if thread.join().is_err() {
                worker.tell(News::Problem("a thread panicked".into()));
            }
        }
        worker.tell(News::Over);
    });
}

fn one(worker: &Arc<Worker>, connection: u32, address: SocketAddr, engine: &Engine) -> End {
    let conversation = worker.begin(connection);
    conversation.run(establish(&conversation, address, engine))
}

fn establish(
    conversation: &Conversation,
    address: SocketAddr,
    engine: &Engine,
) -> Result<Endpoint, Error> {
    Connector::new()
        .config(conversation.worker.config.clone())
        .engine(engine)
        .private_data(&conversation.connection.to_le_bytes())?
        .connect(address)
}

/// Follows each connection that the server ends with the next one, until it is to stop and has
/// closed one itself.
fn again_and_again(worker: &Arc<Worker>, slot: u32, address: SocketAddr, engine: &Engine) {
    let slots = worker.scenario.connections();
    for round in 0.. {
        let end = one(worker, slot + round * slots, address, engine);
        if end == End::LocallyClosed {
            return;
        }
    }
}
