use super::*;
use crate::{plan::tests::planned as a_plan, scenario::tests::single};

const BEGAN: u64 = 1_000_000;

fn record(sent: u64, received: u64, end: End) -> Record {
    Record {
        connection: 0,
        begun: sent,
        accepted: sent,
        ids: sent,
        succeeded: sent,
        failed: 0,
        confirmed: sent,
        received,
        ended: BEGAN + 500,
        has_last: true,
        ends: true,
        resumes: 0,
        resent: 0,
        delivered: true,
        end,
    }
}

/// Returns the records of a connection that was closed after both sides had received everything.
fn closed() -> [Record; 2] {
    [
        record(5, 7, End::LocallyClosed),
        record(7, 5, End::PeerClosed),
    ]
}

/// Returns the records of a connection that broke while messages were in flight in both directions.
fn broke() -> [Record; 2] {
    let broken = |sent, received| Record {
        begun: sent + 1,
        succeeded: sent - 2,
        failed: 2,
        confirmed: sent - 2,
        delivered: false,
        ..record(sent, received, End::Broken("KeepaliveTimeout".into()))
    };
    [broken(5, 7), broken(7, 4)]
}

fn problem(expect: Expect, records: [Record; 2]) -> Option<String> {
    after(expect, records, Fault::Nothing)
}

fn after(expect: Expect, [client, server]: [Record; 2], fault: Fault) -> Option<String> {
    let mut scenario = single(expect);
    scenario.fault = fault;
    let mut evidence = evidence();
    evidence.clients.push(client);
    if !fault.kills() {
        evidence.servers.push(server);
    }
    let problems = judge(&scenario, 1, &evidence);
    (!problems.is_empty()).then(|| problems.join("; "))
}

fn evidence() -> Evidence {
    Evidence {
        clients: vec![],
        servers: vec![],
        began: [BEGAN; 2],
        bound: Duration::from_secs(1),
    }
}

fn found(problem: Option<String>, text: &str) {
    let problem = problem.expect("the judge must report a problem");
    assert!(problem.contains(text), "{problem}");
}

#[test]
fn accept_a_good_and_a_broken_connection() {
    assert_eq!(problem(Expect::Completes, closed()), None);
    assert_eq!(problem(Expect::BothDetect, broke()), None);
    assert_eq!(problem(Expect::RulesOnly, broke()), None);
    assert_eq!(
        after(Expect::ClientDetects, broke(), Fault::HostKilled),
        None
    );
}

#[test]
fn find_a_lost_message() {
    let [client, mut server] = closed();
    server.received = 4;
    found(
        problem(Expect::RulesOnly, [client, server]),
        "confirmed messages",
    );
}

#[test]
fn find_an_added_message() {
    let [client, mut server] = broke();
    server.received = 7;
    found(
        problem(Expect::RulesOnly, [client, server]),
        "fewer messages",
    );
}

#[test]
fn find_a_clean_end_of_a_truncated_conversation() {
    let [client, mut server] = broke();
    server.end = End::PeerClosed;
    found(
        problem(Expect::RulesOnly, [client, server]),
        "orderly close",
    );
}

#[test]
fn find_a_confirmation_of_a_lost_message() {
    let [client, mut server] = broke();
    server.received = 2;
    let mut records = [client, server];
    found(
        problem(Expect::RulesOnly, records.clone()),
        "confirmed messages",
    );
    // A process that aborts or exits need not receive all messages that were confirmed to its peer.
    records[1].end = End::Broken("LocallyAborted".to_owned());
    assert_eq!(problem(Expect::RulesOnly, records.clone()), None);
    records[1].end = End::Open;
    assert_eq!(
        after(Expect::ClientDetects, records, Fault::ProcessLeaves),
        None
    );
}

#[test]
fn find_a_close_that_lies() {
    let [mut client, server] = broke();
    client.delivered = true;
    found(
        problem(Expect::RulesOnly, [client, server]),
        "close that confirmed lost",
    );
}

#[test]
fn find_an_id_without_a_completion() {
    let [mut client, server] = broke();
    client.failed = 1;
    found(problem(Expect::RulesOnly, [client, server]), "ids");
}

#[test]
fn find_a_break_that_no_fault_explains() {
    found(problem(Expect::Completes, broke()), "another end");
}

#[test]
fn find_a_side_that_learns_late_early_or_never() {
    for (ended, text) in [(BEGAN + 1001, "too late"), (BEGAN - 1, "before the fault")] {
        let [client, mut server] = broke();
        server.ended = ended;
        found(problem(Expect::BothDetect, [client, server]), text);
    }
    let [client, mut server] = broke();
    server.end = End::Open;
    found(problem(Expect::BothDetect, [client, server]), "no end");
}

#[test]
fn find_a_connection_without_a_record() {
    let scenario = single(Expect::Completes);
    let problems = judge(&scenario, 1, &evidence());
    assert_eq!(problems.len(), 1, "{problems:?}");
}

/// Checks the records of both sides against a plan whose ending satisfies `ending`. Returns the
/// violation, if any.
fn unplanned(ending: impl Fn(Ending) -> bool, [client, server]: &[Record; 2]) -> Option<String> {
    let plan = a_plan(ending);
    connection(
        &single(Expect::Completes),
        &plan,
        &evidence(),
        client,
        Some(server),
    )
    .err()
}

#[test]
fn find_an_end_that_is_not_planned() {
    let plan = |ending| move |other| other == ending;
    let [client, server] = closed();
    let by_client = plan(Ending::Close(Side::Client));
    assert_eq!(unplanned(by_client, &closed()), None);
    assert_eq!(unplanned(plan(Ending::CloseBoth), &closed()), None);
    let by_server = plan(Ending::Close(Side::Server));
    found(unplanned(by_server, &closed()), "another end");
    let dropped = Record {
        end: End::Dropped,
        delivered: false,
        received: 3,
        ..server
    };
    found(unplanned(by_client, &[client, dropped]), "another end");
}

#[test]
fn only_abort_permits_missing_messages() {
    let is_abort = |ending| matches!(ending, Ending::Abort(Side::Client, _));
    let Ending::Abort(_, code) = a_plan(is_abort).ending else {
        unreachable!("`a_plan` must return a plan whose ending is an abort")
    };
    let records = |received, code| {
        let [client, server] = closed();
        let ends = ["LocallyAborted".into(), format!("PeerAborted({code})")];
        let [client, server] = [(client, 7), (server, received)].map(|(record, received)| Record {
            received,
            delivered: false,
            confirmed: 0,
            ..record
        });
        let [client_end, server_end] = ends.map(End::Broken);
        [
            Record {
                end: client_end,
                ..client
            },
            Record {
                end: server_end,
                ..server
            },
        ]
    };
    assert_eq!(unplanned(is_abort, &records(2, code)), None);
    found(unplanned(is_abort, &records(6, code)), "fewer messages");
    found(unplanned(is_abort, &records(2, code ^ 1)), "another end");
}

fn resumed() -> [Record; 2] {
    closed().map(|record| Record {
        resumes: 1,
        ..record
    })
}

#[test]
fn find_a_connection_that_did_not_resume() {
    assert_eq!(problem(Expect::Resumes, resumed()), None);
    for side in Side::BOTH {
        let mut records = resumed();
        records[side as usize].resumes = 0;
        found(problem(Expect::Resumes, records), "did not resume");
    }
    let late = resumed().map(|record| Record {
        ended: BEGAN + 1001,
        ..record
    });
    found(problem(Expect::Resumes, late), "not within 1s");
    found(problem(Expect::EndsOrResumes, closed()), "no connection");
}

#[test]
fn allow_a_loss_at_the_end_and_no_other() {
    let broke = |ends| {
        broke().map(|record| Record {
            ends,
            resumes: 1,
            ..record
        })
    };
    assert_eq!(problem(Expect::EndsOrResumes, broke(true)), None);
    found(problem(Expect::EndsOrResumes, broke(false)), "another end");
}

#[test]
fn find_a_session_that_ends_for_another_reason() {
    let lost = |reason: &str| {
        broke().map(|record| Record {
            end: End::Broken(reason.to_owned()),
            ..record
        })
    };
    let problem = |reason| after(Expect::SessionsEnd, lost(reason), Fault::ProcessReplaced);
    assert_eq!(problem("SessionLost"), None);
    found(problem("KeepaliveTimeout"), "its session is lost");
}
