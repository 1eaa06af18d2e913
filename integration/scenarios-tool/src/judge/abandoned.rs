//! Checks sessions whose clients were killed. Only the server has records of these sessions.

use std::{collections::BTreeSet, time::Duration};

use toolbox::Side;

use super::{Evidence, broken, complete};
use crate::{
    record::Record,
    scenario::{MOST_SUSPENDED, Scenario},
};

/// Checks the sessions of a server. The server must retain the newest `MOST_SUSPENDED` sessions
/// until it stops, and must end all other sessions earlier, the oldest first. The sessions of one
/// round have the same age, because their clients were killed together.
pub(super) fn judge(scenario: &Scenario, rounds: u32, evidence: &Evidence) -> Vec<String> {
    let records = &evidence.servers;
    let mut problems = Vec::new();
    let all = scenario.connections() * rounds;
    let numbers: BTreeSet<_> = records.iter().map(|record| record.connection).collect();
    if records.len() != all as usize || numbers != (0..all).collect() {
        problems.push(format!("{} records of {all} connections", records.len()));
    }
    let lost = |record| {
        complete(Side::Server, record)?;
        broken(Side::Server, record, 0, Duration::MAX)
    };
    for record in records {
        problems.extend(
            lost(record)
                .err()
                .map(|problem| format!("{problem}; {record:?}")),
        );
    }
    let [_, stopped] = evidence.began;
    let (retained, others): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| record.ended >= stopped);
    let count = retained.len();
    if count != MOST_SUSPENDED.min(all as usize) {
        problems.push(format!("the server retained {count} sessions of {all}"));
    }
    let round = |record: &&Record| record.connection / scenario.connections();
    let oldest = retained.iter().map(round).min();
    let youngest = others.iter().map(round).max();
    if oldest < youngest {
        problems.push(format!(
            "a session of round {youngest:?} ended before one of round {oldest:?}"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::End,
        scenario::{Expect, tests::single},
    };

    const ROUNDS: u32 = 1030;

    const STOPPED: u64 = 5000;

    /// Checks a scenario with one client per round. `ended` lists the clients in the order in which
    /// the server ended their sessions. Returns the violations, if any.
    fn problem(ended: impl Iterator<Item = u32>) -> Option<String> {
        let ended_early = ROUNDS as usize - MOST_SUSPENDED;
        let servers = ended.enumerate().map(|(at, connection)| Record {
            connection,
            ended: STOPPED - u64::from(at < ended_early),
            end: End::Broken("PeerDisconnected".to_owned()),
            ..Record::default()
        });
        let evidence = Evidence {
            clients: vec![],
            servers: servers.collect(),
            began: [0, STOPPED],
            bound: Duration::ZERO,
        };
        let problems = judge(&single(Expect::RetainsSessions), ROUNDS, &evidence);
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    #[test]
    fn accept_sessions_that_end_by_age() {
        assert_eq!(problem(0..ROUNDS), None);
    }

    #[test]
    fn find_missing_and_young_sessions() {
        let missing = problem(1..ROUNDS).unwrap();
        assert!(missing.contains("1029 records of 1030"), "{missing}");
        assert!(missing.contains("retained 1023 sessions"), "{missing}");
        let young = problem((0..5).chain([9]).chain(5..9).chain(10..ROUNDS)).unwrap();
        assert!(young.contains("round Some(9) ended"), "{young}");
    }
}
