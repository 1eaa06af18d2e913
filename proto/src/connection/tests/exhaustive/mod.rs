//! Every order of events, within scopes.
//!
//! A scope is a pair of sides with a budget of deeds: sends, closes, faults. The search visits
//! each state that any order of deeds and of the pair's steps leads to, breadth first, and judges
//! it: see [`judge`]. So the path to a violation that it prints is the shortest one. A state is
//! known by a fingerprint of 128 bits: see [`fingerprint`].
//!
//! The completions of a side's two queues are polled in any order, and those of one queue in their
//! own. Connection manager events overtake completions and are overtaken. A frame arrives, and is
//! acknowledged, at any later time. Deadlines pass when nothing else happens; [`Deed::Wait`] has
//! them pass before. There are no cycles, because each transition spends a budget, a frame or a
//! deadline. So each path has an end, and it is enough to judge the ends.
//!
//! # Reduction
//!
//! The search leaves out orders that differ in transitions which commute, and finds the same ends
//! (see [`reduction`]). Each reduction makes a set of transitions alone, which is sound because of
//! two facts. Whatever the others do first, they neither disable a transition of this set, nor
//! enable another one that conflicts with it, nor get another result by coming first. And they
//! remain possible behind it, since no cycle of transitions puts them off.
//!
//! * *Unobservable*: the poll of a flushed work request, or of a completed send, at a side that
//!   drains. It changes no decision: the first has no cause that is not known, and the second
//!   frees a slot that is not used any more.
//! * *Carried*: a frame arrives, or is acknowledged, at once if neither queue pair can fail before.
//!   It only appends to queues whose front is polled at any later time, and takes the oldest
//!   receive, of which there are fewest then. No fault is left in the budget, and a side disconnects
//!   only when both acknowledgements of a close have left and its own frames are acknowledged. A
//!   READ is not carried at once, because its sender checks memory that the peer may take back.
//! * *One side first*: a live side with a completion in each queue that may get one. What arrives
//!   later is polled behind what is there, so the other side changes nothing that this one may do.
//! * *One side drains*: its queue pair has failed, and both sides have, or will have, the event
//!   that says so. It sends nothing any more.
//!
//! With one side first, the two sides are compared in fewer states. A verdict that is true at the
//! end but early is still found, in a scope in which the peer may be killed: such scopes are not
//! reduced while that may happen. [`keep_outcomes_with_reduction`] compares the ends of both ways.

mod fingerprint;
mod judge;
mod mistake;
mod reduction;
mod scopes;
mod search;
mod world;

use std::{collections::BTreeSet, env, time::Instant};

use self::{
    mistake::Mistake,
    scopes::{LARGE, QUICK, SMALL, SMALLEST, Scope, scopes},
    search::{Found, Search},
    world::{Deed, World},
};

/// The number of states after which the search of a large scope is cut off, by memory.
const MOST_STATES: usize = 5_000_000;

/// Searches a scope, and prints what that took.
fn search(scope: &Scope) -> Found {
    let start = Instant::now();
    let mut search = Search::new(World::new(scope));
    search.most_states = MOST_STATES;
    let found = search.run();
    println!(
        "{:<50} {:>9} states {:>9} transitions {:>4} ends, depth {:>3}, {:>6.1} s{}",
        scope.name,
        found.states,
        found.transitions,
        found.outcomes.len(),
        found.depth,
        start.elapsed().as_secs_f64(),
        if found.is_complete { "" } else { ": cut off" }
    );
    if let Some(violation) = &found.violation {
        panic!("{}: {violation}", scope.name);
    }
    found
}

#[test]
fn visit_every_state_of_quick_scopes() {
    for scope in QUICK {
        assert!(search(scope).is_complete);
    }
}

/// `RDMSG_SCOPES=large` in the environment selects the large scopes instead.
#[test]
#[ignore = "it takes a minute, and integration/test runs it"]
fn visit_every_state_of_small_scopes() {
    if env::var_os("RDMSG_SCOPES").is_some_and(|scopes| scopes == "large") {
        LARGE.iter().for_each(|scope| drop(search(scope)));
        return;
    }
    let mut ends = BTreeSet::new();
    for scope in SMALL {
        let found = search(scope);
        assert!(found.is_complete, "{}", scope.name);
        ends.extend(found.outcomes);
    }
    // The scopes are worth nothing if these never happen.
    for reason in [
        "LocallyClosed, true",
        "LocallyClosed, false",
        "PeerClosed, true",
        "PeerClosed, false",
        "Truncated { missing: 1 }",
        "PeerDisconnected",
        "LocallyAborted",
        "PeerAborted(3)",
        "DeviceRemoved",
        "RETRY_EXC_ERR",
        "ProtocolViolation",
        "OutOfMemory",
        "PeerOutOfResources",
    ] {
        assert!(
            ends.iter().any(|end| end.contains(reason)),
            "{reason}: {ends:#?}"
        );
    }
}

#[test]
#[ignore = "it takes seconds, and integration/test runs it"]
fn keep_outcomes_with_reduction() {
    const COMPARED: &[Scope] = scopes! {
        "two closes" => Close 1 1;
        "a large message" => Large 1 0;
        "a message and a close" => Send 0 1, Close 1 0;
        "acknowledgements get lost" acknowledgements_get_lost true => Close 1 1;
        "a kill of a close" => Kill 0 1, Close 1 0;
        "drain markers get lost" => LoseMarkers 1 1, Close 1 0;
        "a close takes too long" => Wait 1 0, Close 1 0;
    };
    for scope in COMPARED {
        let reduced = search(scope);
        let mut all = Search::new(World::new(scope));
        all.reduces = false;
        let all = all.run();
        println!("{}: {} states without reduction", scope.name, all.states);
        assert!(all.states > reduced.states);
        assert_eq!(all.outcomes, reduced.outcomes, "{}", scope.name);
    }
}

#[test]
fn find_each_mistake() {
    use Mistake::*;
    const ACCUSED: &str = "a peer is accused";
    const UNCONFIRMED: &str = "does not confirm delivery";
    let cases: &[(Mistake, bool, &[Scope], &str)] = &[
        (Repeat, false, scopes! { "" => Send 1 0; }, ACCUSED),
        (
            Lose,
            false,
            scopes! { "" => Send 1 0; },
            "messages never arrive",
        ),
        (
            AcknowledgeEarly,
            false,
            scopes! { "" => Close 1 0; },
            UNCONFIRMED,
        ),
        (GrantMore, false, scopes! { "" => Send 1 0; }, ACCUSED),
        (
            AcknowledgeClose,
            true,
            scopes! { "" => Send 1 0, Close 1 1; },
            "delivered, but messages are missing",
        ),
        (
            TakeEarly,
            false,
            scopes! { "" => Large 1 0; },
            "is taken that is being read",
        ),
        (DrainEarly, false, scopes! { "" => Close 1 0; }, UNCONFIRMED),
        (
            LoseCompletion,
            false,
            scopes! { "" => Send 1 0; },
            "sends nothing more",
        ),
        (
            KeepReceive,
            false,
            scopes! { "" => Send 1 0; },
            "a receive is lost",
        ),
        (
            ForgetWritable,
            false,
            scopes! { "" => Send 2 0; },
            "blocked for ever",
        ),
    ];
    for (mistake, reduces, scopes, expected) in cases {
        let mut search = Search::new(World::new(&scopes[0]));
        search.first.mistake = Some(*mistake);
        search.reduces = *reduces;
        let found = search.run();
        println!(
            "{mistake:?}: {} states, {:?}",
            found.states, found.violation
        );
        let violation = found.violation.expect("it is found");
        assert!(violation.contains(expected), "{mistake:?}: {violation}");
    }
}
