//! Checks the records that both sides write about each connection. Some rules apply to all
//! scenarios. The other rules depend on the expected result of the scenario.

mod abandoned;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use toolbox::Side;

use crate::{
    plan::{Ending, Plan},
    record::{End, Record},
    scenario::{Expect, Fault, Scenario},
};

/// The records of all connections of a scenario, and the times that the rules use.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) clients: Vec<Record>,
    pub(crate) servers: Vec<Record>,
    /// The time at which the fault started, in milliseconds since 1970. The first value is by the
    /// client's clock, and the second by the server's clock. If a side can detect the fault only
    /// after the fault has ended, or if sessions are suspended during the fault, the value is the
    /// time at which the fault ended. With [`Fault::ClientsVanish`], the second value is the time
    /// by which the server had ended all old sessions.
    pub(crate) began: [u64; 2],
    /// The time limit for a side to detect that a connection has ended.
    pub(crate) bound: Duration,
}

/// Checks all connections of a scenario. Returns a list of all violations.
pub(crate) fn judge(scenario: &Scenario, seed: u64, evidence: &Evidence) -> Vec<String> {
    if let Fault::ClientsVanish(rounds) = scenario.fault {
        return abandoned::judge(scenario, rounds, evidence);
    }
    let mut problems = Vec::new();
    let mut servers = BTreeMap::new();
    for record in &evidence.servers {
        if let Some(other) = servers.insert(record.connection, record) {
            problems.push(format!("the server has two records: {other:?}, {record:?}"));
        }
    }
    let mut missing: BTreeSet<_> = (0..scenario.connections()).collect();
    for client in &evidence.clients {
        missing.remove(&client.connection);
        let server = servers.remove(&client.connection);
        let plan = Plan::new(scenario, seed, client.connection);
        if let Err(problem) = connection(scenario, &plan, evidence, client, server) {
            problems.push(format!("{problem}; {client:?}; {server:?}; {plan:?}"));
        }
    }
    // A client may abandon a connection attempt that the server has already accepted. The client
    // then has no record of the connection. Ignore the server's record if it contains neither
    // received messages nor an orderly close.
    let was_used = |record: &&&Record| record.received > 0 || record.end == End::PeerClosed;
    for record in servers.values().filter(was_used) {
        problems.push(format!("the client has no record of {record:?}"));
    }
    if !missing.is_empty() {
        problems.push(format!(
            "the clients have no records of connections {missing:?}"
        ));
    }
    if scenario.expect == Expect::Reconnects {
        problems.extend(not_served(scenario, &evidence.clients));
    }
    let resumes = evidence.clients.iter().any(|record| record.resumes > 0);
    if scenario.expect == Expect::EndsOrResumes && !resumes {
        problems.push("no connection resumed".to_owned());
    }
    problems
}

fn connection(
    scenario: &Scenario,
    plan: &Plan,
    evidence: &Evidence,
    client: &Record,
    server: Option<&Record>,
) -> Result<(), String> {
    complete(Side::Client, client)?;
    let lost = Record::default();
    let is_failed_attempt =
        scenario.expect == Expect::Reconnects && matches!(client.end, End::NotEstablished(_));
    let server = match server {
        Some(server) => {
            direction(Side::Client, client, server)?;
            direction(Side::Server, server, client)?;
            if scenario.fault != Fault::ProcessLeaves {
                complete(Side::Server, server)?;
            }
            server
        }
        None if scenario.fault.kills() => &lost,
        None if is_failed_attempt => return Ok(()),
        None => return Err("the server has no record".into()),
    };
    expected(scenario.expect, plan, evidence, [client, server])
}

/// Checks how many messages arrived in one direction. The receiver has already checked their order
/// and their bytes. Every confirmed message must have arrived. If the sender's close confirmed all
/// messages, or if the receiver got an orderly close, all accepted messages must have arrived.
fn direction(from: Side, sender: &Record, receiver: &Record) -> Result<(), String> {
    let (accepted, received) = (sender.accepted, receiver.received);
    // A side that drops its handles or exits need not receive all messages.
    let takes_all = !matches!(receiver.end, End::Open | End::Dropped);
    // An abort can discard a confirmed message whose frames have arrived, but for which there was
    // no memory yet. A close is not complete before such a message has its memory.
    let aborts = receiver.is_broken_by("LocallyAborted");
    let problem = if received > sender.begun {
        format!("the {from} sent {}, and", sender.begun)
    } else if takes_all && !aborts && received < sender.confirmed {
        format!(
            "{} messages of the {from} are confirmed, but",
            sender.confirmed
        )
    } else if takes_all && sender.delivered && received != accepted {
        format!("the {from}'s close confirmed all {accepted}, but")
    } else if takes_all && receiver.end == End::PeerClosed && received != accepted {
        format!("the {from} sent {accepted}, and the end is an orderly close, but")
    } else {
        return Ok(());
    };
    Err(format!("{problem} {received} arrived"))
}

/// Checks that the side has recorded an end, and that each message or operation with an id has
/// exactly one completion. If the side closed the connection and all its messages were delivered,
/// no completion may report a failure.
fn complete(side: Side, record: &Record) -> Result<(), String> {
    if record.end == End::Open {
        return Err(format!("the {side} recorded no end"));
    }
    if record.ids != record.succeeded + record.failed {
        return Err(format!("the {side}'s ids do not have one completion each"));
    }
    if record.delivered && record.end == End::LocallyClosed && record.failed > 0 {
        let failed = record.failed;
        return Err(format!(
            "the {side}'s close confirms all, but {failed} ids failed"
        ));
    }
    Ok(())
}

/// Checks the rules for the expected result `expect`.
fn expected(
    expect: Expect,
    plan: &Plan,
    evidence: &Evidence,
    [client, server]: [&Record; 2],
) -> Result<(), String> {
    let [begin, begin_of_server] = evidence.began;
    let is_planned = || {
        planned(plan.ending, Side::Client, client)?;
        planned(plan.ending, Side::Server, server)
    };
    match expect {
        Expect::Completes => is_planned(),
        Expect::Resumes => {
            is_planned()?;
            resumed(Side::Client, client, begin, evidence.bound)?;
            resumed(Side::Server, server, begin_of_server, evidence.bound)
        }
        // After a side has started to end a session, the session does not resume, so the side's
        // last frames can be lost.
        Expect::EndsOrResumes if client.ends || server.ends => Ok(()),
        // The connection was cut after the server had sent its reply, but before the server had
        // received a confirmation that the reply arrived. The server therefore has no session, and
        // the client must get the error `SessionLost`.
        Expect::EndsOrResumes if matches!(server.end, End::NotEstablished(_)) => {
            let is_unconfirmed = client.confirmed == 0 && client.received == 0;
            if is_unconfirmed && client.is_broken_by("SessionLost") {
                return Ok(());
            }
            Err("the server has no session, so the client must only get SessionLost".to_owned())
        }
        Expect::EndsOrResumes => is_planned(),
        Expect::RetainsSessions => unreachable!("`abandoned` judges this result"),
        Expect::BothDetect => {
            broken(Side::Client, client, begin, evidence.bound)?;
            broken(Side::Server, server, begin_of_server, evidence.bound)
        }
        Expect::SessionsEnd if !client.is_broken_by("SessionLost") => {
            Err("the client did not detect that its session is lost".to_owned())
        }
        Expect::ClientDetects | Expect::SessionsEnd => {
            broken(Side::Client, client, begin, evidence.bound)
        }
        Expect::AllOfServerArrives => planned(plan.ending, Side::Client, client),
        Expect::RulesOnly | Expect::Reconnects => Ok(()),
    }
}

/// Checks that a side's connection has ended as planned.
fn planned(ending: Ending, side: Side, record: &Record) -> Result<(), String> {
    let (is_planned, delivered) = match ending {
        Ending::Close(by) | Ending::CloseEarly(by) if by == side => {
            (record.end == End::LocallyClosed, true)
        }
        Ending::CloseBoth if record.end == End::LocallyClosed => (true, true),
        Ending::Drop(by, _) if by == side => (record.end == End::Dropped, false),
        Ending::Abort(by, _) if by == side => (record.is_broken_by("LocallyAborted"), false),
        // The connection can break before the abort code arrives.
        Ending::Abort(_, code) => {
            let reasons = [&*format!("PeerAborted({code})"), "PeerDisconnected"];
            (
                reasons.iter().any(|reason| record.is_broken_by(reason)),
                false,
            )
        }
        _ => (record.end == End::PeerClosed, true),
    };
    if is_planned && record.delivered == delivered {
        return Ok(());
    }
    Err(format!("the {side} reached another end than planned"))
}

/// Checks that a side resumed its session, and that its connection then ended within `bound` after
/// the repair.
fn resumed(side: Side, record: &Record, repaired: u64, bound: Duration) -> Result<(), String> {
    let took = Duration::from_millis(record.ended.saturating_sub(repaired));
    if record.resumes == 0 {
        return Err(format!("the {side} did not resume"));
    }
    if took > bound {
        return Err(format!(
            "the {side} took {took:?} instead of {bound:?} at most"
        ));
    }
    Ok(())
}

/// Checks that a side detected a broken connection within `bound` after the fault.
fn broken(side: Side, record: &Record, begin: u64, bound: Duration) -> Result<(), String> {
    let took = record.ended.checked_sub(begin).map(Duration::from_millis);
    let problem = match took {
        _ if !matches!(record.end, End::Broken(_)) => "did not detect a break".to_owned(),
        _ if record.delivered => "reports that everything was delivered".to_owned(),
        None => "detected the end before the fault".to_owned(),
        Some(took) if took > bound => {
            format!("detected the break after {took:?}, not within {bound:?}")
        }
        Some(_) => return Ok(()),
    };
    Err(format!("the {side} {problem}"))
}

/// Returns a violation for each client without a successful close. A close is successful if the
/// client itself closed the connection, and all its messages were delivered.
fn not_served(scenario: &Scenario, clients: &[Record]) -> impl Iterator<Item = String> {
    let slots = scenario.connections();
    let closed = |record: &&Record| record.end == End::LocallyClosed && record.delivered;
    let closed = clients.iter().filter(closed);
    let served: BTreeSet<_> = closed.map(|record| record.connection % slots).collect();
    let others = (0..slots).filter(move |slot| !served.contains(slot));
    others.map(|slot| format!("client {slot} never closed a connection itself"))
}

/// Returns a summary: the number of clients for each kind of end, the longest time until a break
/// was detected or a resumed connection was closed, the number of resumptions, the number of resent
/// messages, and the number of received messages.
pub(crate) fn summary(scenario: &Scenario, evidence: &Evidence) -> String {
    let mut ends: BTreeMap<_, usize> = BTreeMap::new();
    for record in &evidence.clients {
        let end = format!("{:?}", record.end);
        let name = end.split('(').next().unwrap_or_default().to_owned();
        *ends.entry(name).or_default() += 1;
    }
    let ends = ends.iter().map(|(end, count)| format!("{count} {end}, "));
    let sides = [&evidence.clients, &evidence.servers];
    let learn = match scenario.expect {
        Expect::BothDetect | Expect::Resumes => 2,
        Expect::ClientDetects | Expect::SessionsEnd => 1,
        _ => 0,
    };
    let learning = sides.iter().zip(evidence.began).take(learn);
    let took = learning.flat_map(|(records, began)| {
        let ended = records.iter().map(|record| record.ended);
        ended.map(move |ended| ended.saturating_sub(began) as f64 / 1e3)
    });
    let known = took.reduce(f64::max);
    let known = known.map(|longest| format!("ended within {longest:.1} s, "));
    let sum = |of: fn(&Record) -> u64| sides.into_iter().flatten().map(of).sum::<u64>();
    let resumed = Some(sum(|record| record.resumes)).filter(|count| *count > 0);
    let resent = sum(|record| record.resent);
    let resumed = resumed.map(|count| format!("{count} resumed, {resent} resent, "));
    format!(
        "{}{}{}{} messages",
        ends.collect::<String>(),
        known.unwrap_or_default(),
        resumed.unwrap_or_default(),
        sum(|record| record.received)
    )
}

#[cfg(test)]
mod tests;
