//! The rules for the books of both sides of every connection, after any fault and after a
//! particular one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rdmsg::CloseReason;
use serde::{Deserialize, Serialize};
use toolbox::Side;

use crate::{
    plan::{Ending, Plan},
    scenario::{Expect, Fault, Scenario},
};

/// One side's record of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Book {
    pub(crate) connection: u32,
    /// Messages that were given to `send`.
    pub(crate) begun: u64,
    /// Messages that `send` accepted.
    pub(crate) accepted: u64,
    /// Messages and operations that were accepted with an id.
    pub(crate) ids: u64,
    /// Completions with an id that report success.
    pub(crate) succeeded: u64,
    /// Completions with an id that report that the outcome is unknown.
    pub(crate) failed: u64,
    /// The number of the last message whose completion reports success, plus one.
    pub(crate) confirmed: u64,
    /// Messages received, in order, each with the right bytes.
    pub(crate) received: u64,
    /// The time of the end in milliseconds of this host's clock.
    pub(crate) ended: u64,
    /// Whether `close` reports after the end that everything was delivered.
    pub(crate) delivered: bool,
    pub(crate) end: End,
}

/// How a connection ended, as one side sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// It has not.
    #[default]
    Open,
    NotEstablished(String),
    /// This side dropped its handles.
    Dropped,
    LocallyClosed,
    PeerClosed,
    /// All other reasons, by their names.
    Broken(String),
}

impl End {
    pub(crate) fn new(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::LocallyClosed => Self::LocallyClosed,
            CloseReason::PeerClosed => Self::PeerClosed,
            other => Self::Broken(format!("{other:?}")),
        }
    }
}

/// All books of a scenario, and the times for their comparison.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) clients: Vec<Book>,
    pub(crate) servers: Vec<Book>,
    /// The beginning of the fault by the clocks of both hosts, first of the client; its end if a
    /// side can learn of it only then.
    pub(crate) began: [u64; 2],
    /// The time in which a side must know of the end.
    pub(crate) bound: Duration,
}

/// Judges all connections of a scenario, and returns a summary, or everything that does not fit.
pub(crate) fn judge(
    scenario: &Scenario,
    seed: u64,
    evidence: &Evidence,
) -> Result<String, Vec<String>> {
    let mut problems = Vec::new();
    let mut servers: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for book in &evidence.servers {
        servers.entry(book.connection).or_default().push(book);
    }
    let mut missing: BTreeSet<_> = (0..scenario.connections()).collect();
    for client in &evidence.clients {
        missing.remove(&client.connection);
        let servers = servers.remove(&client.connection).unwrap_or_default();
        let plan = Plan::new(scenario, seed, client.connection);
        let judged = match servers[..] {
            [] => connection(scenario, &plan, evidence, client, None),
            [server] => connection(scenario, &plan, evidence, client, Some(server)),
            _ => Err("the server has two books".into()),
        };
        if let Err(problem) = judged {
            problems.push(format!("{problem}; {client:?}; {servers:?}; {plan:?}"));
        }
    }
    // The client may not know of a connection that was established too late for it.
    let is_known = |book: &&&Book| book.received > 0 || book.end == End::PeerClosed;
    for book in servers.values().flatten().filter(is_known) {
        problems.push(format!("the client has no book of {book:?}"));
    }
    if !missing.is_empty() {
        problems.push(format!("no books of connections {missing:?}"));
    }
    if scenario.expect == Expect::ServedInTheEnd {
        problems.extend(not_served(scenario, &evidence.clients));
    }
    if problems.is_empty() {
        Ok(summary(scenario, evidence))
    } else {
        Err(problems)
    }
}

fn connection(
    scenario: &Scenario,
    plan: &Plan,
    evidence: &Evidence,
    client: &Book,
    server: Option<&Book>,
) -> Result<(), String> {
    complete(Side::Client, client)?;
    let lost = Book::default();
    let server = match (server, &client.end) {
        (Some(server), _) => {
            direction(Side::Client, client, server)?;
            direction(Side::Server, server, client)?;
            if scenario.fault != Fault::ProcessLeaves {
                complete(Side::Server, server)?;
            }
            server
        }
        (None, _) if scenario.fault.kills() => &lost,
        (None, End::NotEstablished(_)) if scenario.expect == Expect::ServedInTheEnd => {
            return Ok(());
        }
        (None, _) => return Err("the server has no book".into()),
    };
    expected(scenario.expect, plan, evidence, [client, server])
}

/// The rules for the messages in one direction: each is received once and in order, or its sender
/// learns that this is not known, and its receiver that there may be more.
fn direction(from: Side, sender: &Book, receiver: &Book) -> Result<(), String> {
    let (accepted, received) = (sender.accepted, receiver.received);
    // A side that drops a connection or leaves does not take everything.
    let takes_all = !matches!(receiver.end, End::Open | End::Dropped);
    let problem = if received > sender.begun {
        format!("the {from} sent {}, and", sender.begun)
    } else if takes_all && received < sender.confirmed {
        format!(
            "{} messages of the {from} are confirmed, but",
            sender.confirmed
        )
    } else if takes_all && sender.delivered && received != accepted {
        format!("the {from}'s close says that all {accepted} arrived, but")
    } else if takes_all && receiver.end == End::PeerClosed && received != accepted {
        format!("the {from} sent {accepted}, and there is a clean end, but")
    } else {
        return Ok(());
    };
    Err(format!("{problem} {received} came"))
}

/// Everything with an id has one completion.
fn complete(side: Side, book: &Book) -> Result<(), String> {
    if book.end == End::Open {
        return Err(format!("the {side} has come to no end"));
    }
    if book.ids != book.succeeded + book.failed {
        return Err(format!("the {side}'s ids have not one completion each"));
    }
    Ok(())
}

/// The rules of a particular scenario.
fn expected(
    expect: Expect,
    plan: &Plan,
    evidence: &Evidence,
    [client, server]: [&Book; 2],
) -> Result<(), String> {
    let [begin, begin_of_server] = evidence.began;
    match expect {
        Expect::GoesOn => {
            planned(plan.ending, Side::Client, client)?;
            planned(plan.ending, Side::Server, server)
        }
        Expect::BothLearn | Expect::ServerLearnsLater => {
            broken(Side::Client, client, begin, evidence.bound)?;
            broken(Side::Server, server, begin_of_server, evidence.bound)
        }
        Expect::ClientLearns => broken(Side::Client, client, begin, evidence.bound),
        Expect::AllOfServerArrives => planned(plan.ending, Side::Client, client),
        Expect::Honest | Expect::ServedInTheEnd => Ok(()),
    }
}

/// A side came to the end of the plan.
fn planned(ending: Ending, side: Side, book: &Book) -> Result<(), String> {
    let is_broken = |reason: &str| book.end == End::Broken(reason.to_owned());
    let is_aborted = |code| is_broken(&format!("PeerAborted({code})"));
    let (is_planned, delivered) = match ending {
        Ending::Close(by) | Ending::CloseEarly(by) if by == side => {
            (book.end == End::LocallyClosed, true)
        }
        Ending::CloseBoth if book.end == End::LocallyClosed => (true, true),
        Ending::Drop(by, _) if by == side => (book.end == End::Dropped, false),
        Ending::Abort(by, _) if by == side => (is_broken("LocallyAborted"), false),
        // The notice of an abort may be late.
        Ending::Abort(_, code) => (is_aborted(code) || is_broken("PeerDisconnected"), false),
        _ => (book.end == End::PeerClosed, true),
    };
    if is_planned && book.delivered == delivered {
        return Ok(());
    }
    Err(format!("the {side} came to another end than planned"))
}

/// A side learned of a break in time.
fn broken(side: Side, book: &Book, begin: u64, bound: Duration) -> Result<(), String> {
    let took = book.ended.checked_sub(begin).map(Duration::from_millis);
    let problem = match took {
        _ if !matches!(book.end, End::Broken(_)) => "did not learn that it broke".to_owned(),
        _ if book.delivered => "learns that everything arrived".to_owned(),
        None => "learned of the end before the fault".to_owned(),
        Some(took) if took > bound => format!("learned of it after {took:?}, not within {bound:?}"),
        Some(_) => return Ok(()),
    };
    Err(format!("the {side} {problem}"))
}

/// The clients that never closed a connection themselves.
fn not_served(scenario: &Scenario, clients: &[Book]) -> impl Iterator<Item = String> {
    let slots = scenario.connections();
    let closed = |book: &&Book| book.end == End::LocallyClosed && book.delivered;
    let closed = clients.iter().filter(closed);
    let served: BTreeSet<_> = closed.map(|book| book.connection % slots).collect();
    let others = (0..slots).filter(move |slot| !served.contains(slot));
    others.map(|slot| format!("client {slot} was not served in the end"))
}

/// The clients' ends, the time until breaks were known, and the number of messages.
fn summary(scenario: &Scenario, evidence: &Evidence) -> String {
    let mut ends: BTreeMap<_, usize> = BTreeMap::new();
    for book in &evidence.clients {
        let end = format!("{:?}", book.end);
        let name = end.split('(').next().unwrap_or_default().to_owned();
        *ends.entry(name).or_default() += 1;
    }
    let ends = ends.iter().map(|(end, count)| format!("{count} {end}, "));
    let sides = [&evidence.clients, &evidence.servers];
    let learn = match scenario.expect {
        Expect::BothLearn | Expect::ServerLearnsLater => 2,
        Expect::ClientLearns => 1,
        _ => 0,
    };
    let books = sides.iter().zip(evidence.began).take(learn);
    let took = books.flat_map(|(books, began)| books.iter().map(move |book| book.ended - began));
    let known = took
        .max()
        .map(|longest| format!("known in {:.1} s, ", longest as f64 / 1e3));
    let messages: u64 = sides.into_iter().flatten().map(|book| book.received).sum();
    format!(
        "{}{}{messages} messages",
        ends.collect::<String>(),
        known.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::tests::planned as a_plan, scenario::tests::single};

    const BEGAN: u64 = 1_000_000;

    fn book(sent: u64, received: u64, end: End) -> Book {
        Book {
            connection: 0,
            begun: sent,
            accepted: sent,
            ids: sent,
            succeeded: sent,
            failed: 0,
            confirmed: sent,
            received,
            ended: BEGAN + 500,
            delivered: true,
            end,
        }
    }

    /// A connection that was closed when all was received.
    fn closed() -> [Book; 2] {
        [book(5, 7, End::LocallyClosed), book(7, 5, End::PeerClosed)]
    }

    /// A connection that broke, with messages in flight in both directions.
    fn broke() -> [Book; 2] {
        let broken = |sent, received| Book {
            begun: sent + 1,
            succeeded: sent - 2,
            failed: 2,
            confirmed: sent - 2,
            delivered: false,
            ..book(sent, received, End::Broken("KeepaliveTimeout".into()))
        };
        [broken(5, 7), broken(7, 4)]
    }

    fn problem(expect: Expect, books: [Book; 2]) -> Option<String> {
        after(expect, books, Fault::Nothing)
    }

    fn after(expect: Expect, [client, server]: [Book; 2], fault: Fault) -> Option<String> {
        let mut scenario = single(expect);
        scenario.fault = fault;
        let mut evidence = evidence();
        evidence.clients.push(client);
        if !fault.kills() {
            evidence.servers.push(server);
        }
        let problems = judge(&scenario, 1, &evidence).err()?;
        Some(problems.join("; "))
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
        let problem = problem.expect("it is found");
        assert!(problem.contains(text), "{problem}");
    }

    #[test]
    fn accept_a_good_and_a_broken_connection() {
        assert_eq!(problem(Expect::GoesOn, closed()), None);
        assert_eq!(problem(Expect::BothLearn, broke()), None);
        assert_eq!(problem(Expect::Honest, broke()), None);
        assert_eq!(
            after(Expect::ClientLearns, broke(), Fault::HostKilled),
            None
        );
    }

    #[test]
    fn find_a_lost_message() {
        let [client, mut server] = closed();
        server.received = 4;
        found(problem(Expect::Honest, [client, server]), "but 4 came");
    }

    #[test]
    fn find_an_added_message() {
        let [client, mut server] = broke();
        server.received = 7;
        found(problem(Expect::Honest, [client, server]), "and 7 came");
    }

    #[test]
    fn find_a_clean_end_of_a_truncated_conversation() {
        let [client, mut server] = broke();
        server.end = End::PeerClosed;
        found(problem(Expect::Honest, [client, server]), "a clean end");
    }

    #[test]
    fn find_a_confirmation_of_a_lost_message() {
        let [client, mut server] = broke();
        server.received = 2;
        let mut books = [client, server];
        found(problem(Expect::Honest, books.clone()), "are confirmed");
        // A process that leaves need not take everything.
        books[1].end = End::Open;
        assert_eq!(
            after(Expect::ClientLearns, books, Fault::ProcessLeaves),
            None
        );
    }

    #[test]
    fn find_a_close_that_lies() {
        let [mut client, server] = broke();
        client.delivered = true;
        found(problem(Expect::Honest, [client, server]), "close says");
    }

    #[test]
    fn find_an_id_without_a_completion() {
        let [mut client, server] = broke();
        client.failed = 1;
        found(problem(Expect::Honest, [client, server]), "ids");
    }

    #[test]
    fn find_a_break_that_no_fault_explains() {
        found(problem(Expect::GoesOn, broke()), "another end");
    }

    #[test]
    fn find_a_side_that_learns_late_early_or_never() {
        for (ended, text) in [
            (BEGAN + 1001, "not within"),
            (BEGAN - 1, "before the fault"),
        ] {
            let [client, mut server] = broke();
            server.ended = ended;
            found(problem(Expect::BothLearn, [client, server]), text);
        }
        let [client, mut server] = broke();
        server.end = End::Open;
        found(problem(Expect::BothLearn, [client, server]), "no end");
    }

    #[test]
    fn find_a_connection_without_a_book() {
        let scenario = single(Expect::GoesOn);
        judge(&scenario, 1, &evidence()).unwrap_err();
    }

    /// The problem of a connection with such a plan.
    fn unplanned(ending: impl Fn(Ending) -> bool, [client, server]: &[Book; 2]) -> Option<String> {
        let plan = a_plan(ending);
        connection(
            &single(Expect::GoesOn),
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
        let dropped = Book {
            end: End::Dropped,
            delivered: false,
            received: 3,
            ..server
        };
        found(unplanned(by_client, &[client, dropped]), "another end");
    }

    #[test]
    fn allow_missing_messages_after_an_abort_and_no_others() {
        let is_abort = |ending| matches!(ending, Ending::Abort(Side::Client, _));
        let Ending::Abort(_, code) = a_plan(is_abort).ending else {
            unreachable!("it was looked for")
        };
        let books = |received, code| {
            let [client, server] = closed();
            let ends = ["LocallyAborted".into(), format!("PeerAborted({code})")];
            let [client, server] = [(client, 7), (server, received)].map(|(book, received)| Book {
                received,
                delivered: false,
                confirmed: 0,
                ..book
            });
            let [client_end, server_end] = ends.map(End::Broken);
            [
                Book {
                    end: client_end,
                    ..client
                },
                Book {
                    end: server_end,
                    ..server
                },
            ]
        };
        assert_eq!(unplanned(is_abort, &books(2, code)), None);
        found(unplanned(is_abort, &books(6, code)), "and 6 came");
        found(unplanned(is_abort, &books(2, code ^ 1)), "another end");
    }
}
