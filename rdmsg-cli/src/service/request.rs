use std::{fmt, str::FromStr};

/// The beginning of a request, with the version.
const NAME: &str = "rdmsg-cli/1";

/// The service that a client requests with its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Each message comes back.
    Echo,
    /// Messages are received and dropped.
    Sink,
    /// The host's examination of itself.
    Examine,
}

/// The beginning of the first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted,
    Refused,
}

impl Request {
    const ALL: [Self; 3] = [Self::Echo, Self::Sink, Self::Examine];

    fn word(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Sink => "sink",
            Self::Examine => "examine",
        }
    }

    /// Returns the request of a first message, if it is one.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        std::str::from_utf8(message).ok()?.parse().ok()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME} {}", self.word())
    }
}

impl FromStr for Request {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, word) = text.split_once(' ').ok_or(())?;
        let mut all = Self::ALL.into_iter();
        let request = all.find(|request| name == NAME && word == request.word());
        request.ok_or(())
    }
}

impl Answer {
    /// Returns the first byte of an answer, which precedes the text.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Granted => b'+',
            Self::Refused => b'-',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_others_are_refused() {
        for request in Request::ALL {
            assert_eq!(
                Request::parse(request.to_string().as_bytes()),
                Some(request)
            );
        }
        for text in [
            &b""[..],
            b"echo",
            b"rdmsg-cli/2 echo",
            b"rdmsg-cli/1 rm",
            b"\xff",
        ] {
            assert_eq!(Request::parse(text), None, "{text:?}");
        }
    }
}
