//! The contract of log lines: the target is one of the documented targets, and a line about a
//! connection begins with the connection's name.

use std::sync::Mutex;

use log::Record;
use rdmsg_os::foreign::Target;

/// Lines that break the contract.
static FAULTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether a line begins with the name of a connection: `conn`, its number, and a colon or a space.
fn has_name(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("conn ") else {
        return false;
    };
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    name.len() < rest.len() && name.starts_with([':', ' '])
}

/// Records a line of the library that breaks the contract. The library stops panics of a logger, so
/// an assertion here would have no effect.
pub(crate) fn examine(record: &Record<'_>) {
    let (target, text) = (record.target(), record.args().to_string());
    // Other crates log with the paths of their modules.
    if !target.starts_with("rdm") {
        return;
    }
    let is_known = Target::ALL.iter().any(|known| known.name() == target);
    let of_connections = [Target::Connection, Target::Cm].map(Target::name);
    let is_of_connection = of_connections.contains(&target);
    if !is_known || is_of_connection != has_name(&text) {
        FAULTS.lock().unwrap().push(format!("{target}: {text}"));
    }
}

/// Checks that all lines so far have kept the contract.
#[track_caller]
pub(crate) fn assert_kept() {
    let faults = FAULTS.lock().unwrap();
    assert!(faults.is_empty(), "{faults:#?}");
}
