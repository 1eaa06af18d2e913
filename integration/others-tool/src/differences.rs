//! The tests that are documented to fail with rdmsg.

use crate::record::Carrier;

/// Returns the documented reason why this test fails.
pub(crate) fn find(suite: &str, test: &str, carrier: Carrier) -> Option<&'static str> {
    let carrier = match carrier {
        Carrier::Sockets => return None,
        Carrier::Tcp => "tcp",
        Carrier::Rdma => "rdma",
    };
    let mut lines = include_str!("../differences.txt").lines();
    lines.find_map(|line| {
        let (subject, reason) = line.split_once(": ")?;
        let words: Vec<_> = subject.split(' ').collect();
        let fits = ["both", carrier]
            .iter()
            .any(|carrier| words == [suite, test, carrier]);
        fits.then_some(reason)
    })
}
