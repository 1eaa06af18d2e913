//! Tests every order of events within a scope.
//!
//! A scope is a pair of sides with a budget of side events, such as sends, closes and faults. The
//! search visits, breadth first, each state that any order of side events and steps can reach.
//! [`judge`] checks each state. If a check fails, the search prints a shortest path to the
//! violation. [`fingerprint`] reduces a state to 128 bits.
//!
//! A side polls the completions of each queue in order, and switches between its two queues
//! arbitrarily. Completions and connection manager events can overtake each other. A frame can
//! arrive at any time after it is posted, and the peer's device can acknowledge the frame at any
//! time after its arrival. A deadline passes if nothing else is possible, or at any time with
//! [`SideEvent::Wait`]. There are no cycles, because each transition consumes something: a frame, a
//! completion, a connection manager event, a received message, a deadline or a part of a budget.
//! Each path therefore ends, and the check of the final states proves that no side waits forever.
//!
//! # Reduction
//!
//! If two transitions commute, both orders lead to the same state. Therefore [`reduction`] selects
//! a set of a state's transitions, and the search makes only these transitions. The search still
//! finds all final states if the omitted transitions cannot affect the set: after an omitted
//! transition, the transitions in the set are still possible and have the same effect, and no
//! transition joins the set. The search makes the omitted transitions later. It cannot postpone
//! them forever, because there are no cycles. There are four kinds of such sets:
//!
//! * *Unobservable.* A draining side polls the completion of a flushed work request or of a send. A
//!   flushed work request does not change the reported cause of the end. A completed send frees a
//!   slot, but a draining side sends nothing.
//! * *Carried.* A frame arrives, or the peer's device acknowledges a frame, and neither queue pair
//!   can fail before this transition. The transition appends to a queue that is polled from its
//!   front. An arrival also consumes the oldest receive; other transitions can only post further
//!   receives. Queue pairs cannot fail if the remaining budget contains no fault and no side can
//!   disconnect. A side disconnects only after a rejection, or after both CloseAcks have been sent
//!   and all frames of the side are acknowledged. The arrival of a READ is not in the set, because
//!   a READ may arrive only while the peer exposes the memory, and the peer can revoke the memory.
//! * *One side continues.* Each queue in which a side can receive completions contains a
//!   completion, no READ of the peer can arrive, and no queue pair can fail. The set contains
//!   everything that the library and the application of this side can do. No further transition
//!   joins the set, because later completions are polled after the current ones.
//! * *One side drains.* The queue pair of the side has failed, and the connection manager has
//!   reported the failure to both sides. The side sends nothing and receives nothing, so its polls
//!   affect only the side itself.
//!
//! With the last two kinds of sets, the search advances one side before the other, and checks fewer
//! combinations of the states of both sides. A side's report about the end of the connection can
//! then escape the checks if the report is wrong at first, but becomes true later. In a scope with
//! a kill, such a report stays wrong if the peer is killed before the report becomes true. The
//! search does not omit these paths: it does not use *One side continues* while a kill is possible,
//! and *One side drains* contains the kill of the draining side. The test
//! `keep_outcomes_with_reduction` compares the final states with those of a search of all orders.

mod fingerprint;
mod judge;
mod mistake;
mod queues;
mod reduction;
mod scopes;
mod search;
mod world;

use std::{collections::BTreeSet, env, time::Instant};

use self::{
    mistake::Mistake,
    scopes::{LARGE, QUICK, SMALL, SMALLEST, Scope, scopes},
    search::{Found, Search},
    world::{SideEvent, World},
};
use super::pair::{A, B};

/// The limit on the number of states in a search. To limit its memory, the search stops after the
/// first depth at which it has found more states than this number.
const MOST_STATES: usize = 5_000_000;

/// Searches a scope, and prints the size and the duration of the search. Panics if the
/// search finds a violation, or if the search is complete but a side event of the scope has never
/// had an effect.
fn search(scope: &Scope) -> Found {
    let start = Instant::now();
    let mut search = Search::new(World::new(scope));
    search.most_states = MOST_STATES;
    let found = search.run();
    println!(
        "{:<50} {:>9} states {:>9} transitions {:>4} outcomes, depth {:>3}, {:>6.1} s{}",
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
    for (side_event, counts) in scope.side_events {
        for at in [A, B] {
            let is_done = found.done[*side_event as usize][at] || counts[at] == 0;
            assert!(
                is_done || !found.is_complete,
                "{}: {side_event:?} never has an effect",
                scope.name
            );
        }
    }
    found
}

#[test]
fn visit_every_state_of_quick_scopes() {
    for scope in QUICK {
        assert!(search(scope).is_complete);
    }
}

/// Searches the small scopes. If the environment variable `RDMSG_SCOPES` is `large`, searches the
/// large scopes instead.
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
    // A search that does not reach all these outcomes would prove little.
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
    const ACCUSED: &str = "a violation is reported";
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
            "reported as taken while it is read",
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
            "blocked forever",
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
        let violation = found.violation.expect("the search finds the mistake");
        assert!(violation.contains(expected), "{mistake:?}: {violation}");
    }
}
