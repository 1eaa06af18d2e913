use std::{error, fmt};

use rdmsg::Error;

/// Why a service was not granted.
#[derive(Clone, Debug)]
pub(crate) enum Unserved {
    /// The connection failed.
    Failed(Error),
    /// The other side refused, with this text.
    Refused(String),
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
            Self::Refused(words) => write!(f, "the other side refuses: {words}"),
        }
    }
}

impl error::Error for Unserved {}
