use std::{fmt, str::FromStr};

use rdmsg::CloseReason;

/// What one side saw of a connection: one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    pub(crate) connection: u32,
    /// Messages that `send` was called with.
    pub(crate) begun: u64,
    /// Messages that `send` accepted.
    pub(crate) accepted: u64,
    /// Messages and operations that were accepted with an id.
    pub(crate) ids: u64,
    /// Completions of these that said that it worked.
    pub(crate) succeeded: u64,
    /// Completions of these that said that it is not known.
    pub(crate) failed: u64,
    /// One more than the number of the last message of which a completion said that it arrived.
    pub(crate) confirmed: u64,
    /// Messages received: the first so many, in order, each with the right bytes.
    pub(crate) received: u64,
    /// When the end was learned of, in milliseconds of this host's clock.
    pub(crate) ended: u64,
    /// Whether `close` said that everything was delivered; it is asked when the connection has
    /// ended.
    pub(crate) delivered: bool,
    pub(crate) end: End,
}

/// How a connection came to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// It has not, as far as this side got to say.
    #[default]
    Open,
    /// It never began.
    NotEstablished(String),
    LocallyClosed,
    PeerClosed,
    /// All else, as its reason is called.
    Broken(String),
}

impl End {
    pub(crate) fn new(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::LocallyClosed => Self::LocallyClosed,
            CloseReason::PeerClosed => Self::PeerClosed,
            other => Self::Broken(format!("{other:?}").replace('\n', " ")),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::NotEstablished(why) => write!(f, "not-established {why}"),
            Self::LocallyClosed => f.write_str("locally-closed"),
            Self::PeerClosed => f.write_str("peer-closed"),
            Self::Broken(why) => write!(f, "broken {why}"),
        }
    }
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connection,
            begun,
            accepted,
            ids,
            succeeded,
            failed,
            confirmed,
            received,
            ended,
            delivered,
            end,
        } = self;
        write!(
            f,
            "{connection} {begun} {accepted} {ids} {succeeded} {failed} {confirmed} {received} {ended} {delivered} {end}"
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
            words.next().ok_or(NoBook)?.parse().map_err(|_| NoBook)
        }
        let words = &mut line.splitn(12, ' ');
        Ok(Self {
            connection: next(words)?,
            begun: next(words)?,
            accepted: next(words)?,
            ids: next(words)?,
            succeeded: next(words)?,
            failed: next(words)?,
            confirmed: next(words)?,
            received: next(words)?,
            ended: next(words)?,
            delivered: next(words)?,
            end: match (words.next(), words.next()) {
                (Some("open"), None) => End::Open,
                (Some("locally-closed"), None) => End::LocallyClosed,
                (Some("peer-closed"), None) => End::PeerClosed,
                (Some("not-established"), Some(why)) => End::NotEstablished(why.to_owned()),
                (Some("broken"), Some(why)) => End::Broken(why.to_owned()),
                _ => return Err(NoBook),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_survive_the_wire() {
        for end in [
            End::Open,
            End::LocallyClosed,
            End::PeerClosed,
            End::NotEstablished("the peer does not answer".into()),
            End::new(&CloseReason::PeerAborted(7)),
        ] {
            let book = Book {
                connection: 3,
                begun: 6,
                accepted: 5,
                ids: 4,
                succeeded: 3,
                failed: 1,
                confirmed: 2,
                received: u64::MAX,
                ended: 1_700_000_000_000,
                delivered: true,
                end,
            };
            assert_eq!(book.to_string().parse::<Book>().unwrap(), book);
        }
        for line in ["", "1 2 3", "1 2 3 4 5 6 7 8 9 true nowhere"] {
            assert!(line.parse::<Book>().is_err(), "{line}");
        }
    }
}
