//! The scenarios. The last one kills a host.

mod cuts;
mod losses;
mod processes;
mod storms;

use anyhow::{Context, Result};

use crate::scenario::{Group, Scenario, Talk};

/// Some connections of each kind.
const SOME: [Group; 5] = [
    Group::new(1, Talk::Idle),
    Group::new(1, Talk::Operations),
    Group::new(1, Talk::Small),
    Group::new(1, Talk::Large),
    Group::new(2, Talk::Mixed),
];

/// One that does nothing and one that is never quiet.
const IDLE_AND_BUSY: [Group; 3] = [
    Group::new(1, Talk::Idle),
    Group::new(1, Talk::Small),
    Group::new(1, Talk::Mixed),
];

pub(crate) fn all() -> Vec<Scenario> {
    let calm = Scenario::new("calm", &SOME).quick();
    [
        vec![calm],
        losses::scenarios(),
        storms::scenarios(),
        cuts::scenarios(),
        processes::scenarios(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The scenario of that name.
pub(crate) fn named(name: &str) -> Result<Scenario> {
    all()
        .into_iter()
        .find(|scenario| scenario.name == name)
        .with_context(|| format!("there is no scenario {name}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario::Fault;

    #[test]
    fn names_differ() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn only_the_last_kills_a_host() {
        let all = all();
        let kills = all
            .iter()
            .position(|scenario| scenario.fault == Fault::HostKilled);
        assert_eq!(kills, Some(all.len() - 1));
    }
}
