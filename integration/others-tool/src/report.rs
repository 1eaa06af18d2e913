//! Prints the table, and judges it.

use std::iter;

use crate::{
    differences,
    record::{Carrier, Outcome, Record, Test},
};

const CARRIERS: [Carrier; 3] = [Carrier::Sockets, Carrier::Tcp, Carrier::Rdma];

/// Prints the table, and each test that fails. Returns whether exactly those fail that are
/// documented to.
pub(crate) fn print(records: &[Record]) -> bool {
    println!(
        "\n{:<12} {:<10} {:>6} {:>9} {:>9} {:>9}",
        "suite", "version", "tests", "sockets", "TCP", "RDMA"
    );
    for record in records {
        let [sockets, tcp, rdma] = CARRIERS.map(|carrier| passed(record, carrier));
        println!(
            "{:<12} {:<10} {:>6} {sockets:>9} {tcp:>9} {rdma:>9}",
            record.suite,
            record.version,
            record.tests.len()
        );
    }
    let mut unexpected = Vec::new();
    println!("\ndocumented differences:");
    for (record, test) in tests(records) {
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for (&carrier, outcome) in &test.outcomes {
            let documented = differences::find(&record.suite, &test.name, carrier);
            let found = match (outcome, documented) {
                (Outcome::Passed, None) => continue,
                (Outcome::Failed(_), Some(reason)) => {
                    match reasons.iter_mut().find(|(other, _)| *other == reason) {
                        Some((_, carriers)) => carriers.push(carrier.to_string()),
                        None => reasons.push((reason, vec![carrier.to_string()])),
                    }
                    continue;
                }
                (Outcome::Passed, Some(_)) => "passes, but is documented to fail",
                (Outcome::Failed(error), None) => error,
            };
            unexpected.push(format!("{} {} {carrier}: {found}", record.suite, test.name));
        }
        for (reason, carriers) in reasons {
            println!(
                "  {} {} {}: {reason}",
                record.suite,
                test.name,
                carriers.join(" and ")
            );
        }
    }
    if unexpected.is_empty() {
        println!("\nothers: all other tests passed");
        return true;
    }
    println!("\nFAILED:");
    for line in &unexpected {
        println!("  {line}");
    }
    println!("\nothers: {} FAILED", unexpected.len());
    false
}

fn tests<'a>(records: &'a [Record]) -> impl Iterator<Item = (&'a Record, &'a Test)> {
    let of = |record: &'a Record| iter::repeat(record).zip(&record.tests);
    records.iter().flat_map(of)
}

/// Returns the number of tests that passed, or a dash if none ran.
fn passed(record: &Record, carrier: Carrier) -> String {
    let outcomes = record
        .tests
        .iter()
        .filter_map(|test| test.outcomes.get(&carrier));
    let outcomes: Vec<_> = outcomes.collect();
    let passed = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Passed));
    match outcomes.len() {
        0 => "-".to_owned(),
        _ => passed.count().to_string(),
    }
}
