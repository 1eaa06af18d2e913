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
        problems.push(format!("the clients have no records of {missing:?}"));
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
    let received = receiver.received;
    let is_complete = received == sender.accepted;
    // An abort by either side can discard a confirmed message whose frames have arrived, but for
    // which there was no memory yet, and all messages behind it. A close is not complete before
    // such a message has its memory.
    let mut sides = [sender, receiver].into_iter();
    let aborts = sides.any(|side| side.is_broken_by("LocallyAborted"));
    // A side that drops its handles or exits need not receive all messages.
    let takes_all = !matches!(receiver.end, End::Open | End::Dropped);
    let is_orderly = receiver.end == End::PeerClosed;
    let problem = match received {
        _ if received > sender.begun => "sent fewer messages than arrived",
        _ if !takes_all => return Ok(()),
        _ if !aborts && received < sender.confirmed => "sent confirmed messages that were lost",
        _ if sender.delivered && !is_complete => "has a close that confirmed lost messages",
        _ if is_orderly && !is_complete => "lost messages, but the end is an orderly close",
        _ => return Ok(()),
    };
    Err(format!("the {from} {problem}"))
}

/// Checks that the side has recorded an end, and that each message or operation with an id has
/// exactly one completion. If the side closed the connection and all its messages were delivered,
/// no completion may report a failure.
fn complete(side: Side, record: &Record) -> Result<(), String> {
    let completed = record.succeeded + record.failed;
    let confirms_all = record.delivered && record.end == End::LocallyClosed;
    let problem = match record.ids {
        _ if record.end == End::Open => "recorded no end",
        ids if ids != completed => "does not have one completion for each of its ids",
        _ if confirms_all && record.failed > 0 => "has a close that confirmed failed ids",
        _ => return Ok(()),
    };
    Err(format!("the {side} {problem}"))
}

/// Checks the rules for the expected result `expect`.
fn expected(
    expect: Expect,
    plan: &Plan,
    evidence: &Evidence,
    [client, server]: [&Record; 2],
) -> Result<(), String> {
    let [began, began_at_server] = evidence.began;
    let of_client = (Side::Client, client, began);
    let mut sides = [of_client, (Side::Server, server, began_at_server)].into_iter();
    let is_planned = |(side, record, _)| planned(plan.ending, side, record);
    let is_resumed = |(side, record, repaired)| resumed(side, record, repaired, evidence.bound);
    let is_broken = |(side, record, began)| broken(side, record, began, evidence.bound);
    match expect {
        Expect::Completes => sides.try_for_each(is_planned),
        Expect::Resumes => {
            sides.clone().try_for_each(is_planned)?;
            sides.try_for_each(is_resumed)
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
        Expect::EndsOrResumes => sides.try_for_each(is_planned),
        Expect::RetainsSessions => unreachable!("`abandoned` judges this result"),
        Expect::BothDetect => sides.try_for_each(is_broken),
        Expect::SessionsEnd if !client.is_broken_by("SessionLost") => {
            Err("the client did not detect that its session is lost".to_owned())
        }
        Expect::ClientDetects | Expect::SessionsEnd => is_broken(of_client),
        Expect::AllOfServerArrives => is_planned(of_client),
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
    match Duration::from_millis(record.ended.saturating_sub(repaired)) {
        _ if record.resumes == 0 => Err(format!("the {side} did not resume")),
        took if took > bound => Err(format!("the {side} took {took:?}, not within {bound:?}")),
        _ => Ok(()),
    }
}

/// Checks that a side detected a broken connection within `bound` after the fault.
fn broken(side: Side, record: &Record, began: u64, bound: Duration) -> Result<(), String> {
    let took = Duration::from_millis(record.ended.saturating_sub(began));
    let problem = match took {
        _ if !matches!(record.end, End::Broken(_)) => "did not detect a break",
        _ if record.delivered => "reports that everything was delivered",
        _ if record.ended < began => "detected the end before the fault",
        _ if took > bound => "detected the break too late",
        _ => return Ok(()),
    };
    Err(format!(
        "the {side} {problem}: after {took:?}, and the limit is {bound:?}"
    ))
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
    let ends: String = ends.collect();
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
    let known = known.map_or_else(String::new, |longest| {
        format!("ended within {longest:.1} s, ")
    });
    let sum = |of: fn(&Record) -> u64| sides.into_iter().flatten().map(of).sum::<u64>();
    let resumed = match (sum(|record| record.resumes), sum(|record| record.resent)) {
        (0, _) => String::new(),
        (count, resent) => format!("{count} resumed, {resent} resent, "),
    };
    let received = sum(|record| record.received);
    format!("{ends}{known}{resumed}{received} messages")
}

#[cfg(test)]
mod tests;
