use std::{fmt::Write, time::Duration};

use crate::{
    Result,
    case::{Case, Ends, Place, Side},
    process::{Ended, Process},
    remote::Agent,
};

/// How long a server that nothing ends by itself goes on when its clients are done.
const A_MOMENT: Duration = Duration::from_millis(200);

/// Runs a case. Whatever it started has ended then.
pub(crate) fn run(case: &Case, place: &Place, agent: &mut Agent) -> Result<()> {
    let limit = Duration::from_secs(case.seconds);
    agent.start(&place.argv(&case.server), case.ready)?;
    let mut clients = Vec::new();
    for client in &case.clients {
        let ended = Process::start(&place.argv(client)).and_then(|process| process.finish(limit));
        clients.push((client, ended));
    }
    let patience = if case.server.ends == Ends::WhenKilled {
        A_MOMENT
    } else {
        limit
    };
    let server = agent.finish(patience)?;

    let mut problems = String::new();
    let mut sides = vec![("server", &case.server, server)];
    for (client, ended) in clients {
        sides.push(("client", client, ended?));
    }
    for (name, side, ended) in &sides {
        if let Err(problem) = check(side, ended) {
            writeln!(problems, "  the {name} {problem}")?;
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    for (name, side, ended) in &sides {
        writeln!(
            problems,
            "  the {name}, {}, printed:",
            place.argv(side).join(" ")
        )?;
        for line in ended.output.lines() {
            writeln!(problems, "    {line}")?;
        }
    }
    Err(problems.into())
}

fn check(side: &Side, ended: &Ended) -> Result<(), String> {
    let as_it_should = match (side.ends, ended.status) {
        (Ends::Well, status) => status == Some(0),
        (Ends::Badly, status) => {
            status.is_some_and(|status| status != 0 && status < 128 || status == 255)
        }
        (Ends::Somehow, status) => status.is_some(),
        (Ends::WhenKilled, status) => status.is_none(),
    };
    if !as_it_should {
        return Err(match ended.status {
            Some(status) => format!("ended with status {status}"),
            None => "did not end".to_owned(),
        });
    }
    match side
        .says
        .iter()
        .find(|what| !ended.output.contains(what.as_str()))
    {
        Some(missing) => Err(format!("did not say {missing:?}")),
        None => Ok(()),
    }
}
