use std::{error, fmt};

use rdmsg::Error;

/// The reason why a client did not get the requested service.
#[derive(Clone, Debug)]
pub(crate) enum Unserved {
    /// The connection failed.
    Failed(Error),
    /// The server refused the request, with this text.
    Refused(String),
    /// The reply does not come from `rdmsg serve`.
    OtherProgram,
}

impl From<Error> for Unserved {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Refused(words) => write!(f, "the peer refused the request: {words}"),
            Self::OtherProgram => {
                f.write_str("a program other than `rdmsg serve` listens at this address")
            }
        }
    }
}

impl error::Error for Unserved {}
