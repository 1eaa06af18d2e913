use std::{fmt, str::FromStr};

use rdmsg::CloseReason;
use toolbox::Side;

use crate::plan::{End, Plan};

/// What one side did on a connection, when that has ended: one line on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Book {
    pub(crate) connection: u64,
    pub(crate) side: Side,
    pub(crate) sent: Count,
    pub(crate) received: Count,
    /// Why it ended. `None` where this side dropped it.
    pub(crate) reason: Option<Reason>,
    /// Whether everything that was sent has arrived, as `close` says.
    pub(crate) delivered: bool,
}

/// A number of messages, with all their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// The reasons for which a connection may end where nothing goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    LocallyClosed,
    PeerClosed,
    LocallyAborted,
    PeerAborted(u32),
    /// The notice of an abort was not in time.
    PeerDisconnected,
}

impl Reason {
    /// `None` for a reason that has no place in a soak.
    pub(crate) fn new(reason: &CloseReason) -> Option<Self> {
        Some(match reason {
            CloseReason::LocallyClosed => Self::LocallyClosed,
            CloseReason::PeerClosed => Self::PeerClosed,
            CloseReason::LocallyAborted => Self::LocallyAborted,
            CloseReason::PeerAborted(code) => Self::PeerAborted(*code),
            CloseReason::PeerDisconnected => Self::PeerDisconnected,
            _ => return None,
        })
    }
}

/// Compares the two sides' books of a connection, first the client's, and says what does not fit.
pub(crate) fn compare(plan: &Plan, books: [&Book; 2]) -> Result<(), String> {
    for side in Side::BOTH {
        let (sender, receiver) = (books[side as usize], books[side.other() as usize]);
        expected_end(plan.end, sender)?;
        let (sent, received) = (sender.sent, receiver.received);
        if received.messages > sent.messages {
            return Err(format!(
                "the {side} sent {sent}, but {received} were received"
            ));
        }
        // Who drops a connection does not take everything; everybody else takes what there is.
        let takes_all = receiver.reason.is_some();
        let nothing_lost = sender.delivered || receiver.reason == Some(Reason::PeerClosed);
        if takes_all && nothing_lost && received != sent {
            return Err(format!(
                "the {side} sent {sent} and all was delivered, but {received} were received"
            ));
        }
    }
    Ok(())
}

/// Whether a side came to the end that was planned.
fn expected_end(end: End, book: &Book) -> Result<(), String> {
    let (side, reason) = (book.side, book.reason);
    let (reason_fits, delivered) = match end {
        End::Close(by) | End::CloseEarly(by) if by == side => {
            (reason == Some(Reason::LocallyClosed), true)
        }
        End::Close(_) | End::CloseEarly(_) => (reason == Some(Reason::PeerClosed), true),
        End::CloseBoth => (
            matches!(reason, Some(Reason::LocallyClosed | Reason::PeerClosed)),
            true,
        ),
        End::Drop(by, _) if by == side => (reason.is_none(), false),
        End::Drop(..) => (reason == Some(Reason::PeerClosed), true),
        End::Abort(by, _) if by == side => (reason == Some(Reason::LocallyAborted), false),
        End::Abort(_, code) => (
            reason == Some(Reason::PeerAborted(code)) || reason == Some(Reason::PeerDisconnected),
            false,
        ),
    };
    if reason_fits && book.delivered == delivered {
        Ok(())
    } else {
        Err(format!("the {side} came to another end than planned"))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages of {} bytes", self.messages, self.bytes)
    }
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, code) = match self.reason {
            None => ("dropped", 0),
            Some(Reason::LocallyClosed) => ("locally-closed", 0),
            Some(Reason::PeerClosed) => ("peer-closed", 0),
            Some(Reason::LocallyAborted) => ("locally-aborted", 0),
            Some(Reason::PeerAborted(code)) => ("peer-aborted", code),
            Some(Reason::PeerDisconnected) => ("peer-disconnected", 0),
        };
        write!(
            f,
            "{} {} {} {} {} {} {reason} {code} {}",
            self.connection,
            self.side,
            self.sent.messages,
            self.sent.bytes,
            self.received.messages,
            self.received.bytes,
            self.delivered
        )
    }
}

/// A line that is no book.
#[derive(Debug)]
pub(crate) struct NoBook;

impl FromStr for Book {
    type Err = NoBook;

    fn from_str(line: &str) -> Result<Self, NoBook> {
        fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Result<T, NoBook> {
            let word = words.next().ok_or(NoBook)?;
            word.parse().map_err(|_| NoBook)
        }
        fn count<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Count, NoBook> {
            Ok(Count {
                messages: next(words)?,
                bytes: next(words)?,
            })
        }
        let words = &mut line.split(' ');
        Ok(Self {
            connection: next(words)?,
            side: match words.next() {
                Some("client") => Side::Client,
                Some("server") => Side::Server,
                _ => return Err(NoBook),
            },
            sent: count(words)?,
            received: count(words)?,
            reason: match (words.next(), next(words)?) {
                (Some("dropped"), _) => None,
                (Some("locally-closed"), _) => Some(Reason::LocallyClosed),
                (Some("peer-closed"), _) => Some(Reason::PeerClosed),
                (Some("locally-aborted"), _) => Some(Reason::LocallyAborted),
                (Some("peer-aborted"), code) => Some(Reason::PeerAborted(code)),
                (Some("peer-disconnected"), _) => Some(Reason::PeerDisconnected),
                _ => return Err(NoBook),
            },
            delivered: next(words)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(messages: u64) -> Count {
        Count {
            messages,
            bytes: messages * 10,
        }
    }

    fn plan(end: impl Fn(End) -> bool) -> Plan {
        (0..)
            .map(|id| Plan::new(1, id))
            .find(|plan| end(plan.end))
            .unwrap()
    }

    /// Both sides' books of a connection that the client closed, with 5 messages one way and 7 the
    /// other.
    fn closed() -> [Book; 2] {
        let book = Book {
            connection: 3,
            side: Side::Client,
            sent: count(5),
            received: count(7),
            reason: Some(Reason::LocallyClosed),
            delivered: true,
        };
        let other = Book {
            side: Side::Server,
            sent: count(7),
            received: count(5),
            reason: Some(Reason::PeerClosed),
            ..book
        };
        [book, other]
    }

    #[test]
    fn books_survive_the_wire() {
        let [book, other] = closed();
        let aborted = Book {
            reason: Some(Reason::PeerAborted(u32::MAX)),
            ..book
        };
        let dropped = Book {
            reason: None,
            delivered: false,
            ..book
        };
        for book in [book, other, aborted, dropped] {
            assert_eq!(book.to_string().parse::<Book>().unwrap(), book);
        }
        for line in ["", "1 client", "1 nobody 1 1 1 1 dropped 0 true"] {
            assert!(line.parse::<Book>().is_err(), "{line}");
        }
    }

    #[test]
    fn a_lost_message_is_found_after_a_close() {
        let plan = plan(|end| end == End::Close(Side::Client));
        let [client, server] = closed();
        compare(&plan, [&client, &server]).unwrap();
        for received in [4, 6] {
            let server = Book {
                received: count(received),
                ..server
            };
            assert!(compare(&plan, [&client, &server]).is_err(), "{received}");
        }
    }

    #[test]
    fn after_an_abort_messages_may_be_missing_but_none_added() {
        let plan = plan(|end| matches!(end, End::Abort(Side::Client, _)));
        let End::Abort(_, code) = plan.end else {
            unreachable!("it was looked for");
        };
        let [client, server] = closed();
        let client = Book {
            reason: Some(Reason::LocallyAborted),
            delivered: false,
            ..client
        };
        let server = |received, code| Book {
            received: count(received),
            reason: Some(Reason::PeerAborted(code)),
            delivered: false,
            ..server
        };
        compare(&plan, [&client, &server(2, code)]).unwrap();
        assert!(compare(&plan, [&client, &server(6, code)]).is_err());
        assert!(compare(&plan, [&client, &server(2, code ^ 1)]).is_err());
    }

    #[test]
    fn an_end_that_was_not_planned_is_found() {
        let plan = plan(|end| end == End::Close(Side::Server));
        let [client, server] = closed();
        assert!(compare(&plan, [&client, &server]).is_err());
    }
}
