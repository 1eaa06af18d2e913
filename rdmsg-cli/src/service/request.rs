use std::{fmt, str::FromStr};

/// The first word of a request, which contains the protocol version.
const NAME: &str = "rdmsg-cli/1";

/// The service that a client requests with its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The server sends each message back.
    Echo,
    /// The server drops each message.
    Sink,
    /// The server examines its host and sends the findings.
    Examine,
}

/// The first byte of the server's reply to a request.
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

    /// Parses the first message of a connection. Returns `None` if it is not a request.
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
    /// Returns the first byte of the reply. A text follows this byte.
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
