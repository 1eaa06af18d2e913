//! Searches all orders in which the two sides of a session and the network can take steps, within
//! bounds.
//!
//! A breadth-first search visits each state of a [`World`]. The search checks that each message is
//! delivered once and in order, and is kept until its delivery. The search also checks that each
//! state has a path to a state in which all messages are delivered. If a check fails, the search
//! returns a shortest path to the violation.
//!
//! The model makes three simplifications:
//!
//! - A side processes each message as soon as the message arrives. This is equivalent to later
//!   processing, because a side processes everything that has arrived before it gives up a
//!   connection.
//! - A report of grants arrives immediately. A report that the network delays is equivalent to a
//!   report that the side sends later.
//! - If a request arrives while the connection of the passive side seems to work, the passive side
//!   refuses the request and sends a Ping. When the next request arrives, the passive side already
//!   knows whether the active side has answered the Ping. A real passive side might refuse more
//!   requests before it knows, but these are equivalent to lost requests.

mod scope;
mod world;

use std::{
    collections::{BTreeSet, HashMap, hash_map::DefaultHasher},
    env,
    fmt::Write,
    hash::{Hash, Hasher},
    mem,
    time::Instant,
};

use self::{
    scope::{A, Mistake, P, Scope, scope, with_trials},
    world::{Act, World},
};
use super::{ResumeRefused, Session, Unconfirmed};

/// The maximum number of states in a search. This limit bounds the memory of the search.
const MOST_STATES: usize = 8_000_000;

const SMALLEST: Scope = scope([1, 1], [0, 0], 1, [1, 1], 0);

/// The scopes that are searched by default. In most of these scopes, the message numbers wrap
/// around at 2³².
const SMALL: &[Scope] = &[
    scope([2, 1], [0, 0], 2, [2, 0], u32::MAX),
    scope([3, 2], [0, 0], 1, [1, 1], u32::MAX - 1),
    scope([1, 3], [0, 0], 2, [1, 1], u32::MAX),
    scope([2, 1], [0, 0], 2, [0, 2], 0),
    scope([1, 1], [0, 0], 1, [1, 2], u32::MAX),
    scope([3, 1], [0b101, 0], 2, [1, 1], u32::MAX),
    scope([2, 2], [0, 0], 2, [2, 1], u32::MAX - 1),
    scope([1, 1], [0, 0], 1, [3, 1], u32::MAX),
    scope([1, 1], [0, 0], 1, [1, 3], u32::MAX),
    scope([2, 1], [0b01, 0b1], 2, [2, 1], u32::MAX),
    scope([2, 2], [0b01, 0b10], 2, [2, 0], 0),
    // With trials, the active side checks another path to the peer, and can move to that path.
    with_trials(2, scope([2, 1], [0, 0], 1, [1, 1], u32::MAX)),
    with_trials(2, scope([1, 1], [0, 0], 1, [0, 2], 0)),
    with_trials(1, scope([2, 1], [0b1, 0], 2, [1, 1], u32::MAX)),
    scope([2, 1], [0, 0], 1, [2, 1], u32::MAX).with_forged_requests(2),
    scope([1, 2], [0, 0b01], 1, [1, 1], 0).with_forged_requests(3),
];

/// Larger scopes. The search of each scope takes about a minute.
const LARGE: &[Scope] = &[
    scope([3, 3], [0, 0], 2, [2, 1], u32::MAX - 1),
    scope([2, 1], [0, 0], 1, [3, 1], u32::MAX),
    scope([1, 1], [0, 0], 1, [2, 3], u32::MAX),
    scope([3, 2], [0b101, 0b01], 2, [2, 1], u32::MAX),
];

/// Returns a 128-bit hash that identifies a state.
fn fingerprint(world: &World) -> [u64; 2] {
    [0_u8, 1].map(|seed| {
        let mut hasher = DefaultHasher::new();
        (seed, world).hash(&mut hasher);
        hasher.finish()
    })
}

/// The result of a search.
struct Found {
    /// The kinds of steps that occurred in the search.
    kinds: BTreeSet<String>,
    /// A description of the violation and the path to it. `None` if no violation was found.
    violation: Option<String>,
}

/// Returns the text `problem`, followed by the steps that lead to the state with the number
/// `number`.
fn explain(origins: &[(u32, Option<Act>)], mut number: usize, problem: &str) -> String {
    let mut acts = Vec::new();
    while let (from, Some(act)) = origins[number] {
        acts.push(act);
        number = from as usize;
    }
    let mut text = String::from(problem);
    for act in acts.iter().rev() {
        let _ = write!(text, "\n    {act:?}");
    }
    text
}

/// Searches all states of a scope. Prints the number of states and the time in seconds.
fn search(scope: &Scope) -> Found {
    let start = Instant::now();
    let first = World::new(scope);
    let mut found = Found {
        kinds: BTreeSet::new(),
        violation: None,
    };
    let mut numbers = HashMap::from([(fingerprint(&first), 0_u32)]);
    let mut origins = vec![(0_u32, None)];
    let mut done = Vec::new();
    let mut edges = Vec::new();
    let mut frontier = vec![(0_u32, first)];
    while !frontier.is_empty() {
        for (number, world) in mem::take(&mut frontier) {
            if world.is_done(scope) {
                done.push(number);
            }
            for act in world.acts(scope) {
                let name = format!("{act:?}");
                let kind = name.split('(').next().unwrap_or_default();
                if !found.kinds.contains(kind) {
                    found.kinds.insert(kind.to_owned());
                }
                let mut to = world.clone();
                if let Err(message) = to.apply(act, scope) {
                    let message = format!("{message} in the step {name}, after:");
                    found.violation = Some(explain(&origins, number as usize, &message));
                    return found;
                }
                let next = numbers.entry(fingerprint(&to)).or_insert_with(|| {
                    let new = origins.len() as u32;
                    origins.push((number, Some(act)));
                    frontier.push((new, to));
                    new
                });
                edges.push((*next, number));
            }
        }
        assert!(
            origins.len() < MOST_STATES,
            "the scope must have fewer than {MOST_STATES} states: {scope:?}"
        );
    }
    let (states, transitions) = (origins.len(), edges.len());
    found.violation = find_stuck(states, edges, done).map(|number| {
        explain(
            &origins,
            number,
            "not all messages can be delivered, after:",
        )
    });
    let seconds = start.elapsed().as_secs_f64();
    println!("{states} states, {transitions} transitions, {seconds:.1} s: {scope:?}");
    found
}

/// Returns the lowest number of a state from which no path leads to a state in `done`. Each edge is
/// a pair: the state after a step, followed by the state before the step.
fn find_stuck(states: usize, mut edges: Vec<(u32, u32)>, mut done: Vec<u32>) -> Option<usize> {
    edges.sort_unstable();
    let mut can_end = vec![false; states];
    while let Some(number) = done.pop() {
        if mem::replace(&mut can_end[number as usize], true) {
            continue;
        }
        let begin = edges.partition_point(|edge| edge.0 < number);
        let to_here = edges[begin..].iter().take_while(|edge| edge.0 == number);
        done.extend(to_here.map(|edge| edge.1));
    }
    can_end.iter().position(|can_end| !can_end)
}

#[test]
fn visit_every_state_of_smallest_scope() {
    let found = search(&SMALLEST);
    assert_eq!(found.violation, None);
}

/// Searches the small scopes, or only the large scopes if the environment variable `RDMSG_SCOPES`
/// is `large`.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes seconds even with optimization")]
fn visit_every_state_of_small_scopes() {
    if env::var_os("RDMSG_SCOPES").is_some_and(|scopes| scopes == "large") {
        for scope in LARGE {
            assert_eq!(search(scope).violation, None, "{scope:?}");
        }
        return;
    }
    let mut kinds = BTreeSet::new();
    for scope in SMALL {
        let found = search(scope);
        assert_eq!(found.violation, None, "{scope:?}");
        kinds.extend(found.kinds);
    }
    let all = "Cut Dial Establish ForgedRequest Leave LoseRequest Read RepeatRequest Report \
               Request Send Take Trial";
    assert!(kinds.iter().eq(all.split(' ')), "{kinds:?}");
}

#[test]
fn find_each_mistake() {
    use Mistake::*;
    const TWICE: &str = "a message is delivered twice";
    let cases = [
        (CountBeforeFence(A), TWICE),
        (CountBeforeFence(P), TWICE),
        (KeepWindow, "an undelivered message is discarded"),
        (TrustDevice, "an undelivered message is discarded"),
        (SendBeforeCount, TWICE),
        (RepeatEverything, TWICE),
        (AcceptOldRequest, "a request ends a working connection"),
        (TrustRequest, "a request ends a working connection"),
        (TakeRefusedEpoch, "not all messages can be delivered"),
    ];
    for (mistake, expected) in cases {
        let scope = match mistake {
            KeepWindow => scope([2, 0], [0b01, 0], 1, [1, 0], 0),
            _ => SMALLEST,
        };
        let scope = Scope {
            mistake: Some(mistake),
            ..scope.with_forged_requests(1)
        };
        let violation = search(&scope)
            .violation
            .expect("the search must find the mistake");
        println!("{mistake:?}: {violation}");
        assert!(violation.starts_with(expected), "{mistake:?}: {violation}");
    }
}

#[test]
fn wrong_numbers_and_old_epochs_are_refused() {
    let mut session = Session::default();
    let known = Unconfirmed {
        messages: 3,
        large: 0,
        max_messages: 4,
    };
    for number in 0..5 {
        session.keep(false, || known, |kept| *kept = number);
    }
    session.suspend(0, known);
    for (received, is_right) in [(0, false), (1, false), (2, true), (5, true), (6, false)] {
        let judged = session.check_attempt(1, received);
        assert_eq!(judged.is_ok(), is_right, "{received}");
        let is_impossible = matches!(judged, Err(ResumeRefused::Impossible(_)));
        assert_eq!(is_impossible, !is_right, "{received}");
    }
    session.take_attempt(7);
    for epoch in [0, 6, 7] {
        assert_eq!(session.check_attempt(epoch, 2), Err(ResumeRefused::Stale));
    }
    assert_eq!(session.check_attempt(8, 2), Ok(()));
    let received: Vec<_> = session.resume(4).unwrap().collect();
    assert_eq!(received, [2, 3]);
    assert_eq!(session.next_to_resend(), Some(4));
}

#[test]
fn grants_without_reads_fill_no_memory() {
    let known = Unconfirmed {
        messages: 1,
        large: 1,
        max_messages: 5,
    };
    let mut session = Session::default();
    for number in 0..1000 {
        session.keep(number == 0, || known, |kept| *kept = number);
    }
    assert_eq!(session.ring.len(), 5);
    session.suspend(0, known);
    // The session keeps only the newest five messages, so the peer must have received all others.
    let judged = session.check_attempt(1, 994);
    assert!(matches!(judged, Err(ResumeRefused::Impossible(_))));
    assert_eq!(session.check_attempt(1, 995), Ok(()));
}
