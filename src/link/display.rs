use std::fmt;

use super::link::Link;
use crate::addresses::Shown;

/// Formats the name of a connection for log lines: its number, its label and its peer.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = Shown(self.peer_addr());
        write!(f, "conn {}{} to {peer}", self.key, self.label())
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("key", &self.key)
            .field("label", &self.label().as_str())
            .field("peer", &Shown(self.peer_addr()))
            .finish_non_exhaustive()
    }
}
