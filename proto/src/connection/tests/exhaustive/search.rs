//! A breadth-first search, which finds a shortest path to a violation.

use std::{
    any::Any,
    collections::{BTreeSet, HashMap},
    fmt::Write,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{
    fingerprint,
    judge::judge,
    reduction,
    world::{Act, Next, SIDE_EVENTS, World},
};
use crate::connection::tests::pair::{A, B};

/// The maximum depth of a search. A path that continues beyond this depth is considered endless.
const MAX_DEPTH: usize = 1000;

/// A search of a scope for a violation.
pub(super) struct Search {
    pub(super) first: World,
    /// Whether the search omits redundant orders of commuting transitions.
    pub(super) reduces: bool,
    /// The search stops after the first depth at which it has found more states than this number.
    pub(super) most_states: usize,
}

/// The result of a search.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) states: usize,
    pub(super) transitions: u64,
    pub(super) depth: usize,
    pub(super) is_complete: bool,
    /// The distinct outcomes. Each outcome describes how the connection ended for both
    /// applications.
    pub(super) outcomes: BTreeSet<String>,
    /// The side events that had an effect in at least one state, by side.
    pub(super) done: [[bool; 2]; SIDE_EVENTS],
    /// The message of the violation, and the path to it. `None` if no violation was found.
    pub(super) violation: Option<String>,
}

/// How a state was reached: the previous state and the transition.
#[derive(Clone, Copy)]
struct Origin {
    from: u32,
    act: Option<Act>,
}

impl Search {
    pub(super) fn new(first: World) -> Self {
        Self {
            first,
            reduces: true,
            most_states: usize::MAX,
        }
    }

    /// Visits each state once. Stops at the first violation.
    pub(super) fn run(self) -> Found {
        let mut found = Found {
            states: 1,
            transitions: 0,
            depth: 0,
            is_complete: false,
            outcomes: BTreeSet::new(),
            done: [[false; 2]; SIDE_EVENTS],
            violation: None,
        };
        let mut origins = vec![Origin { from: 0, act: None }];
        let mut numbers = HashMap::from([(fingerprint::of(&self.first), 0_u32)]);
        let mut frontier = vec![(0_u32, self.first.copy())];
        while !frontier.is_empty() {
            let mut next = Vec::new();
            for (number, world) in frontier {
                let Next { acts, is_quiet } = world.next(self.reduces);
                if let Err(message) = caught(|| judge(&world, is_quiet)) {
                    found.violation = Some(self.explain(&origins, number, None, &message));
                    return found;
                }
                for (all, here) in found.done.iter_mut().zip(world.done) {
                    *all = [all[A] | here[A], all[B] | here[B]];
                }
                if acts.is_empty() {
                    found.outcomes.insert(outcome(&world));
                }
                let mut world = Some(world);
                let count = acts.len();
                for (done, act) in acts.into_iter().enumerate() {
                    found.transitions += 1;
                    // The last transition from a state changes the state itself, not a copy.
                    let is_last = done + 1 == count;
                    let to = if is_last {
                        world.take()
                    } else {
                        world.as_ref().map(World::copy)
                    };
                    let mut to = to.expect("only the last transition takes the state");
                    if let Err(message) = caught(|| self.take(&mut to, act, None)) {
                        found.violation = Some(self.explain(&origins, number, Some(act), &message));
                        return found;
                    }
                    numbers.entry(fingerprint::of(&to)).or_insert_with(|| {
                        let new = origins.len() as u32;
                        let (from, act) = (number, Some(act));
                        origins.push(Origin { from, act });
                        next.push((new, to));
                        new
                    });
                }
            }
            found.states = origins.len();
            found.depth += 1;
            if found.depth > MAX_DEPTH {
                let last = origins.len() as u32 - 1;
                found.violation = Some(self.explain(&origins, last, None, "the path has no end"));
                return found;
            }
            if found.states > self.most_states {
                return found;
            }
            frontier = next;
        }
        found.is_complete = true;
        found
    }

    /// Makes the transition `act`. If `reduces` is true, also makes further transitions, as long as
    /// one of the possible transitions commutes with all others. Adds the descriptions of all these
    /// transitions to `lines`.
    fn take(&self, world: &mut World, act: Act, mut lines: Option<&mut Vec<String>>) {
        let mut next = Some(act);
        while let Some(act) = next {
            if let Some(lines) = &mut lines {
                lines.push(world.describe(act));
            }
            world.apply(act);
            next = self.reduces.then(|| reduction::only(world)).flatten();
        }
    }

    /// Describes the path to the state `number`, the transition `last` from this state, and the
    /// message.
    fn explain(&self, origins: &[Origin], number: u32, last: Option<Act>, message: &str) -> String {
        let mut acts: Vec<Act> = last.into_iter().collect();
        let mut origin = origins[number as usize];
        while let Some(act) = origin.act {
            acts.push(act);
            origin = origins[origin.from as usize];
        }
        let mut world = self.first.copy();
        let mut lines = Vec::new();
        for act in acts.into_iter().rev() {
            let _ = caught(|| self.take(&mut world, act, Some(&mut lines)));
        }
        let mut text = format!("{message}, after {} transitions:", lines.len());
        for same in lines.chunk_by(|one, next| one == next) {
            let _ = match same {
                [line] => write!(text, "\n    {line}"),
                lines => write!(text, "\n    {} (× {})", lines[0], lines.len()),
            };
        }
        for at in [A, B] {
            let side = &world.pair.sides[at];
            let name = ["A", "B"][at];
            let _ = write!(
                text,
                "\n    {name}: {} sent, {} received, {:?}",
                side.sent, side.received, side.ended
            );
        }
        text
    }
}

/// Describes how the connection ended: for each side, the reported reason, whether complete
/// delivery was reported, and the numbers of messages sent and received.
fn outcome(world: &World) -> String {
    let seen = |at: usize| {
        let side = &world.pair.sides[at];
        format!("{:?} {}/{}", side.ended, side.sent, side.received)
    };
    format!("A {}, B {}", seen(A), seen(B))
}

/// Calls a function. If the function panics, returns the panic message as an error.
fn caught(call: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let owned = panic.downcast_ref::<String>().cloned();
    let fixed = panic.downcast_ref::<&str>().copied();
    owned.unwrap_or_else(|| fixed.unwrap_or("a panic").to_owned())
}
