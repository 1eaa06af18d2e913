use std::{net::SocketAddr, sync::Arc, thread};

use rdmsg::Connector;
use toolbox::Side;

use crate::{plan::Plan, run::Run, session::Session};

/// Keeps `endpoints` connections going, each followed by the next one, until `wants` says of a
/// round that it is not wanted.
pub(crate) fn connect(
    run: &Arc<Run>,
    listeners: &[SocketAddr],
    endpoints: u64,
    first_round: u64,
    wants: impl Fn(u64) -> bool + Sync,
) {
    thread::scope(|scope| {
        for slot in 0..endpoints {
            let wants = &wants;
            scope.spawn(move || {
                for round in (first_round..).take_while(|round| wants(*round)) {
                    one(run, listeners, round * endpoints + slot);
                }
            });
        }
    });
}

fn one(run: &Arc<Run>, listeners: &[SocketAddr], id: u64) {
    let plan = Plan::new(run.seed, id);
    let session = Session::new(run, &plan, Side::Client);
    let connection = Connector::new()
        .config(plan.half(Side::Client).config.clone())
        .engine(&run.engine)
        .private_data(&id.to_le_bytes())
        .and_then(|connector| connector.connect(listeners[plan.listener as usize]));
    run.enter(session.run(connection));
}
