//! What the books of both sides must say of every connection, whatever happened to it, and what
//! they must say after a particular fault.

use std::{collections::BTreeMap, time::Duration};

use toolbox::Side;

use crate::{
    book::{Book, End},
    scenario::{Expect, Scenario},
};

/// All books of a scenario, and the times that they are held against.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) clients: Vec<Book>,
    pub(crate) servers: Vec<Book>,
    pub(crate) fate: Fate,
    /// When the fault began, by the clocks of the client's and the server's host; when it was over
    /// where a side can learn of it only then.
    pub(crate) began: [u64; 2],
    /// In which time the end must be known.
    pub(crate) bound: Duration,
}

/// What became of the server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It had all connections to the end, and its books are complete.
    Whole,
    /// It ended before it could take everything: its books are those of its journal, or of the
    /// moment when it left.
    CutShort,
    /// It took its books along.
    Lost,
}

/// Judges all connections of a scenario: a line that says what was seen, or all that does not fit.
pub(crate) fn judge(scenario: &Scenario, evidence: &Evidence) -> Result<String, Vec<String>> {
    let mut problems = Vec::new();
    let mut servers: BTreeMap<u32, &Book> = BTreeMap::new();
    for book in &evidence.servers {
        if servers.insert(book.connection, book).is_some() {
            problems.push(format!("the server has two books: {book}"));
        }
    }
    for client in &evidence.clients {
        let server = servers.remove(&client.connection);
        if let Err(problem) = connection(scenario.expect, evidence, client, server) {
            let server = server.map_or_else(|| "no book".to_owned(), ToString::to_string);
            problems.push(format!("{problem}; client {client}; server {server}"));
        }
    }
    // The client may not know of a connection that came about too late for it.
    for server in servers.values() {
        if server.received > 0 || server.end == End::PeerClosed {
            problems.push(format!("the client has no book of {server}"));
        }
    }
    let clients: std::collections::BTreeSet<u32> = evidence
        .clients
        .iter()
        .map(|book| book.connection)
        .collect();
    for connection in 0..scenario.connections() {
        if !clients.contains(&connection) {
            problems.push(format!("there is no book of connection {connection}"));
        }
    }
    if scenario.expect == Expect::ServedInTheEnd {
        problems.extend(not_served(scenario, &evidence.clients));
    }
    if problems.is_empty() {
        Ok(seen(scenario, evidence))
    } else {
        Err(problems)
    }
}

fn connection(
    expect: Expect,
    evidence: &Evidence,
    client: &Book,
    server: Option<&Book>,
) -> Result<(), String> {
    let Some(server) = server else {
        return without_a_server(expect, evidence, client);
    };
    let whole = evidence.fate == Fate::Whole;
    direction(Side::Client, client, server, whole)?;
    direction(Side::Server, server, client, true)?;
    complete(Side::Client, client)?;
    if whole {
        complete(Side::Server, server)?;
    }
    expected(expect, evidence, client, server)
}

/// A connection of which the server knows nothing.
fn without_a_server(expect: Expect, evidence: &Evidence, client: &Book) -> Result<(), String> {
    complete(Side::Client, client)?;
    match (evidence.fate, &client.end) {
        (Fate::Lost, _) => expected(expect, evidence, client, &Book::default()),
        (Fate::Whole | Fate::CutShort, End::NotEstablished(_))
            if expect == Expect::ServedInTheEnd =>
        {
            Ok(())
        }
        (Fate::Whole | Fate::CutShort, _) => Err("the server has no book".into()),
    }
}

/// What always holds of the messages in one direction: each that was sent is received once and in
/// order, or its sender is told that this is not known and its receiver that there may be more.
fn direction(
    from: Side,
    sender: &Book,
    receiver: &Book,
    receiver_is_whole: bool,
) -> Result<(), String> {
    let Book {
        begun,
        accepted,
        confirmed,
        ..
    } = *sender;
    let received = receiver.received;
    if received > begun {
        return Err(format!(
            "the {from} sent {begun} messages, and {received} came"
        ));
    }
    if !receiver_is_whole {
        return Ok(());
    }
    if received < confirmed {
        return Err(format!(
            "{confirmed} messages of the {from}'s are confirmed, but {received} came"
        ));
    }
    if sender.delivered && received != accepted {
        return Err(format!(
            "the {from}'s close says that all {accepted} messages arrived, but {received} came"
        ));
    }
    if receiver.end == End::PeerClosed && received != accepted {
        return Err(format!(
            "after {received} of the {from}'s {accepted} messages comes what looks like a clean end"
        ));
    }
    Ok(())
}

/// Everything that has an id ends in one completion with it.
fn complete(side: Side, book: &Book) -> Result<(), String> {
    if book.end == End::Open {
        return Err(format!("the {side} has come to no end"));
    }
    if book.ids != book.succeeded + book.failed {
        return Err(format!(
            "of the {side}'s {} ids {} succeeded and {} failed",
            book.ids, book.succeeded, book.failed
        ));
    }
    Ok(())
}

/// What is to be seen in a scenario.
fn expected(
    expect: Expect,
    evidence: &Evidence,
    client: &Book,
    server: &Book,
) -> Result<(), String> {
    let [begin, begin_of_server] = evidence.began;
    match expect {
        Expect::GoesOn => {
            if client.end != End::LocallyClosed || server.end != End::PeerClosed {
                return Err("it did not go on until it was closed".into());
            }
            if !client.delivered || !server.delivered {
                return Err("not everything is said to have arrived".into());
            }
            Ok(())
        }
        Expect::BothLearn | Expect::ServerLearnsAfterwards => {
            broken(Side::Client, client, begin, evidence.bound)?;
            broken(Side::Server, server, begin_of_server, evidence.bound)
        }
        Expect::ClientLearns => broken(Side::Client, client, begin, evidence.bound),
        Expect::Honest | Expect::ServedInTheEnd => Ok(()),
        Expect::AllOfServerArrives => {
            if client.end == End::PeerClosed && client.received == server.accepted {
                Ok(())
            } else {
                Err("not everything arrived with a clean end".into())
            }
        }
    }
}

/// A side learned of a break, and in time.
fn broken(side: Side, book: &Book, begin: u64, bound: Duration) -> Result<(), String> {
    if !matches!(book.end, End::Broken(_)) {
        return Err(format!("the {side} did not learn that it broke"));
    }
    if book.delivered {
        return Err(format!("the {side} is told that everything arrived"));
    }
    if book.ended < begin {
        return Err(format!(
            "for the {side} it ended {} ms before the fault",
            begin - book.ended
        ));
    }
    let took = Duration::from_millis(book.ended - begin);
    if took > bound {
        return Err(format!(
            "the {side} learned of it after {took:?}, not within {bound:?}"
        ));
    }
    Ok(())
}

/// The clients that never closed a connection themselves.
fn not_served(scenario: &Scenario, clients: &[Book]) -> Vec<String> {
    let slots = scenario.connections();
    let served = |slot| {
        let mut books = clients
            .iter()
            .filter(|book| book.connection % slots == slot);
        books.any(|book| book.end == End::LocallyClosed && book.delivered)
    };
    (0..slots)
        .filter(|slot| !served(*slot))
        .map(|slot| format!("client {slot} was not served in the end"))
        .collect()
}

/// How the connections ended, and how long that took where they broke.
fn seen(scenario: &Scenario, evidence: &Evidence) -> String {
    let Evidence {
        clients,
        servers,
        began,
        ..
    } = evidence;
    let messages: u64 = clients
        .iter()
        .chain(servers)
        .map(|book| book.received)
        .sum();
    let count = |end: fn(&End) -> bool| clients.iter().filter(|book| end(&book.end)).count();
    let mut parts = Vec::new();
    for (number, what) in [
        (count(|end| *end == End::LocallyClosed), "closed"),
        (count(|end| *end == End::PeerClosed), "closed by the server"),
        (count(|end| matches!(end, End::Broken(_))), "broken"),
        (
            count(|end| matches!(end, End::NotEstablished(_))),
            "refused",
        ),
    ] {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    let learns = match scenario.expect {
        Expect::BothLearn | Expect::ServerLearnsAfterwards => {
            vec![(clients, began[0]), (servers, began[1])]
        }
        Expect::ClientLearns => vec![(clients, began[0])],
        Expect::GoesOn | Expect::Honest | Expect::AllOfServerArrives | Expect::ServedInTheEnd => {
            Vec::new()
        }
    };
    let took = learns
        .iter()
        .flat_map(|(books, began)| books.iter().map(|book| book.ended.saturating_sub(*began)));
    if let Some(longest) = took.max() {
        parts.push(format!("known in {:.1} s", longest as f64 / 1e3));
    }
    parts.push(format!("{messages} messages"));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Group, Talk};

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

    /// One that broke, with messages under way in both directions.
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

    fn problem(expect: Expect, [client, server]: [Book; 2]) -> Option<String> {
        fate(expect, [client, server], Fate::Whole)
    }

    fn fate(expect: Expect, [client, server]: [Book; 2], fate: Fate) -> Option<String> {
        let scenario = Scenario {
            expect,
            ..Scenario::new("some", &[Group::new(1, Talk::Small)])
        };
        let evidence = Evidence {
            clients: vec![client],
            servers: if fate == Fate::Lost {
                vec![]
            } else {
                vec![server]
            },
            fate,
            began: [BEGAN; 2],
            bound: Duration::from_secs(1),
        };
        judge(&scenario, &evidence)
            .err()
            .map(|problems| problems.join("; "))
    }

    fn found(problem: Option<String>, text: &str) {
        let problem = problem.expect("it is found");
        assert!(problem.contains(text), "{problem}");
    }

    #[test]
    fn what_goes_well_is_no_problem() {
        assert_eq!(problem(Expect::GoesOn, closed()), None);
        assert_eq!(problem(Expect::BothLearn, broke()), None);
        assert_eq!(problem(Expect::Honest, broke()), None);
        assert_eq!(fate(Expect::ClientLearns, broke(), Fate::Lost), None);
    }

    #[test]
    fn a_lost_message_is_found() {
        let [client, mut server] = closed();
        server.received = 4;
        found(problem(Expect::Honest, [client, server]), "but 4 came");
    }

    #[test]
    fn a_message_that_nobody_sent_is_found() {
        let [client, mut server] = broke();
        server.received = 7;
        found(problem(Expect::Honest, [client, server]), "and 7 came");
    }

    #[test]
    fn a_truncated_conversation_that_looks_like_a_clean_end_is_found() {
        let [client, mut server] = broke();
        server.end = End::PeerClosed;
        found(problem(Expect::Honest, [client, server]), "a clean end");
    }

    #[test]
    fn a_confirmation_of_what_did_not_come_is_found() {
        let [client, mut server] = broke();
        server.received = 2;
        let books = [client, server];
        found(problem(Expect::Honest, books.clone()), "are confirmed");
        // A process that was killed took no more.
        assert_eq!(fate(Expect::ClientLearns, books, Fate::CutShort), None);
    }

    #[test]
    fn a_close_that_lies_is_found() {
        let [mut client, server] = broke();
        client.delivered = true;
        found(problem(Expect::Honest, [client, server]), "close says");
    }

    #[test]
    fn an_id_without_a_completion_is_found() {
        let [mut client, server] = broke();
        client.failed = 1;
        found(problem(Expect::Honest, [client, server]), "ids");
    }

    #[test]
    fn a_break_where_none_should_be_is_found() {
        found(problem(Expect::GoesOn, broke()), "did not go on");
    }

    #[test]
    fn a_side_that_learns_late_early_or_never_is_found() {
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
    fn a_connection_without_a_book_is_found() {
        let scenario = Scenario::new("some", &[Group::new(1, Talk::Small)]);
        let evidence = Evidence {
            clients: vec![],
            servers: vec![],
            fate: Fate::Whole,
            began: [0; 2],
            bound: Duration::ZERO,
        };
        assert!(judge(&scenario, &evidence).is_err());
    }
}
