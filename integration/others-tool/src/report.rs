//! Prints the table, and judges it.

use std::collections::BTreeMap;

use crate::record::{Carrier, Record, Verdict};

/// Prints the table, and each test that fails. Returns whether all failures are documented, and all
/// that is documented fails.
pub(crate) fn print(records: &[Record]) -> bool {
    let row = |columns: [&str; 6]| {
        let [suite, version, tests, sockets, tcp, rdma] = columns;
        println!("{suite:<12} {version:<10} {tests:>6} {sockets:>9} {tcp:>9} {rdma:>9}");
    };
    println!();
    row(["suite", "version", "tests", "sockets", "TCP", "RDMA"]);
    let (mut documented, mut unexpected) = (BTreeMap::new(), Vec::new());
    for record in records {
        let Record {
            suite,
            version,
            tests,
            ..
        } = record;
        let [sockets, tcp, rdma] =
            [Carrier::Sockets, Carrier::Tcp, Carrier::Rdma].map(|carrier| record.passed(carrier));
        row([
            suite,
            version,
            &tests.len().to_string(),
            &sockets,
            &tcp,
            &rdma,
        ]);
        for test in tests {
            for (&carrier, outcome) in &test.outcomes {
                let name = format!("{suite} {}", test.name);
                match Verdict::new(suite, &test.name, carrier, outcome) {
                    Verdict::Passed => {}
                    Verdict::Documented(reason) => {
                        let carriers: &mut Vec<_> = documented.entry((name, reason)).or_default();
                        carriers.push(carrier.to_string());
                    }
                    Verdict::Unexpected(found) => {
                        unexpected.push(format!("{name} {carrier}: {found}"))
                    }
                }
            }
        }
    }
    println!("\nDocumented differences:");
    for ((name, reason), carriers) in documented {
        println!("  {name} {}: {reason}", carriers.join(" and "));
    }
    for line in &unexpected {
        println!("FAILED: {line}");
    }
    println!("\nothers: {} FAILED", unexpected.len());
    unexpected.is_empty()
}
