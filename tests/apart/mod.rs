//! Runs a test in a separate process, so that the test can change or inspect state of the whole
//! process, such as its resource limits, its network namespace or its threads.

use std::{env, process::Command};

#[allow(dead_code)]
pub(crate) mod same;

/// The environment variable that marks a process that [`in_process_of`] started.
const APART: &str = "RDMSG_TEST_APART";

/// Runs `body` in a separate process of this test program. `name` is the name of the calling test,
/// with its modules.
#[allow(dead_code)]
pub(crate) fn apart(name: &str, body: impl FnOnce()) {
    in_process_of(Command::new(env::current_exe().unwrap()), name, body);
}

/// Runs `body` in the process that `command` starts. The command must accept the options of a test
/// program. The process runs the test `name`, which calls this function again: this second call
/// runs `body`. Panics if the test fails in the process.
pub(crate) fn in_process_of(mut command: Command, name: &str, body: impl FnOnce()) {
    if env::var_os(APART).is_some() {
        return body();
    }
    let output = command
        .args(["--exact", name, "--nocapture"])
        .env(APART, "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let ran = stdout.contains("1 passed");
    assert!(output.status.success() && ran, "{stdout}\n{stderr}");
}
