//! Reads `differences.txt`: the tests that are known to fail with rdmsg.

use crate::record::Carrier;

/// If the test is known to fail with rdmsg, returns the reason, and whether the test always fails.
/// Returns `None` if the test must pass.
pub(crate) fn find(suite: &str, test: &str, carrier: Carrier) -> Option<(&'static str, bool)> {
    let carrier = match carrier {
        Carrier::Sockets => return None,
        Carrier::Tcp => "tcp",
        Carrier::Rdma => "rdma",
    };
    let mut lines = include_str!("../differences.txt").lines();
    lines.find_map(|line| {
        let (subject, reason) = line.split_once(": ")?;
        let always = !subject.ends_with('?');
        let words: Vec<_> = subject.trim_end_matches('?').split(' ').collect();
        let fits = |carrier: &&str| words == [suite, test, carrier];
        ["both", carrier]
            .iter()
            .any(fits)
            .then_some((reason, always))
    })
}
