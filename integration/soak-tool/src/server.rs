use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use rdmsg::{
    Error, Request, RequestListener,
    crossbeam_channel::{Receiver, Select},
};
use toolbox::{Lab, Side};

use crate::{
    plan::{LISTENERS, Plan, listener_config},
    run::Run,
    session::Session,
};

/// The listeners that the plans speak of.
pub(crate) fn listen(run: &Run, lab: &Lab) -> Result<Vec<RequestListener>, Error> {
    (0..LISTENERS)
        .map(|listener| {
            let config = listener_config(run.seed, listener);
            RequestListener::bind_with(lab.at(0), &config, &run.engine)
        })
        .collect()
}

/// Accepts connections until `over` is disconnected, and waits for their end.
pub(crate) fn accept(run: &Arc<Run>, listeners: &[RequestListener], over: &Receiver<()>) {
    let mut sessions: Vec<JoinHandle<()>> = Vec::new();
    let mut select = Select::new();
    for listener in listeners {
        select.recv(listener.requests());
    }
    select.recv(over);
    loop {
        let ready = select.select();
        let Some(listener) = listeners.get(ready.index()) else {
            // Disconnected, which is all it is for.
            let _ = ready.recv(over);
            break;
        };
        match ready.recv(listener.requests()) {
            Ok(request) => {
                let run = Arc::clone(run);
                sessions.push(thread::spawn(move || one(&run, request)));
            }
            Err(_) => run.board.fail("a listener has ended"),
        }
        sessions.retain(|session| !session.is_finished());
    }
    for session in sessions {
        session.join().expect("sessions do not panic");
    }
}

fn one(run: &Arc<Run>, request: Request) {
    let Ok(id) = request.private_data().try_into() else {
        run.board.fail(&format!(
            "a request with private data {:?}",
            request.private_data()
        ));
    };
    let plan = Plan::new(run.seed, u64::from_le_bytes(id));
    let session = Session::new(run, &plan, Side::Server);
    run.enter(session.run(request.accept()));
}
