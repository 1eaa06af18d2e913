//! The tests that are documented to fail with rdmsg, each with the reason.

use crate::record::Carrier;

/// A test that fails, and why.
#[derive(Debug)]
struct Difference {
    suite: &'static str,
    test: &'static str,
    carriers: &'static [Carrier],
    reason: &'static str,
}

/// Over TCP and over RDMA.
const RDMSG: &[Carrier] = &[Carrier::Tcp, Carrier::Rdma];

const DIFFERENCES: &[Difference] = &[Difference {
    suite: "std",
    test: "tcp::debug",
    carriers: RDMSG,
    reason: "`Debug` names the connection, and no one descriptor stands for both directions",
}];

/// Returns the reason why this test fails.
pub(crate) fn find(suite: &str, test: &str, carrier: Carrier) -> Option<&'static str> {
    let mut differences = DIFFERENCES.iter();
    let fits = |difference: &&Difference| {
        difference.suite == suite
            && difference.test == test
            && difference.carriers.contains(&carrier)
    };
    differences.find(fits).map(|difference| difference.reason)
}
