//! The contract of log lines: the target is one of the documented targets. A line whose target is
//! for events of one connection begins with the connection's name, and other lines do not.

use std::sync::Mutex;

use log::Record;
use rdmsg_os::foreign::Target;

/// The lines that violate the contract.
static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns whether a line begins with the name of a connection: `conn`, a space, and the
/// connection's number. A colon or a space must follow the name.
fn has_name(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("conn ") else {
        return false;
    };
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    name.len() < rest.len() && name.starts_with([':', ' '])
}

/// Records a line of the library if the line violates the contract. Does not panic for such a line,
/// because the library catches panics of a logger.
pub fn record_violation(record: &Record<'_>) {
    let (target, text) = (record.target(), record.args().to_string());
    // Ignore other crates, whose targets are their module paths.
    if !target.starts_with("rdm") {
        return;
    }
    let is_known = Target::ALL.iter().any(|known| known.name() == target);
    let of_connections = [Target::Connection, Target::Cm].map(Target::name);
    let is_of_connection = of_connections.contains(&target);
    if !is_known || is_of_connection != has_name(&text) {
        VIOLATIONS.lock().unwrap().push(format!("{target}: {text}"));
    }
}

/// Asserts that no line so far has violated the contract.
#[track_caller]
pub fn assert_no_violation() {
    let violations = VIOLATIONS.lock().unwrap();
    assert!(violations.is_empty(), "{violations:#?}");
}
