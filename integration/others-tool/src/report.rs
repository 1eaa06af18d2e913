//! Prints the table of results, and compares each result with the known differences.

use std::{collections::BTreeMap, process::ExitCode};

use crate::record::{Carrier, Record, Verdict};

/// Prints the table, and each test that fails. Returns success only if exactly the tests in
/// `differences.txt` fail.
pub(crate) fn print(records: &[Record]) -> ExitCode {
    let row = |columns: [&str; 6]| {
        let [suite, version, tests, sockets, tcp, rdma] = columns;
        println!("{suite:<12} {version:<10} {tests:>6} {sockets:>9} {tcp:>9} {rdma:>9}");
    };
    println!();
    row(["suite", "version", "tests", "sockets", "TCP", "RDMA"]);
    let (mut documented, mut unexpected) = (BTreeMap::new(), Vec::new());
    for record in records {
        let suite = &record.suite;
        let count = record.tests.len().to_string();
        let passed = |carrier| record.passed(carrier);
        let [sockets, tcp, rdma] = [Carrier::Sockets, Carrier::Tcp, Carrier::Rdma].map(passed);
        row([suite, &record.version, &count, &sockets, &tcp, &rdma]);
        for test in &record.tests {
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
    u8::from(!unexpected.is_empty()).into()
}
