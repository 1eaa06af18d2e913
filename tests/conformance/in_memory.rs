use std::{env, process::Command};

use crate::stage::TRANSPORT;

/// Runs all other tests again in a child process, in which an environment variable selects the
/// in-memory transport.
#[test]
fn all_tests_pass_in_memory() {
    if common::is_rdma() || env::var_os(TRANSPORT).is_some() {
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .env(TRANSPORT, "memory")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(!stdout.contains(" 0 passed"), "{stdout}");
}
