//! Runs a test in a separate process, so that the test can change or inspect state of the whole
//! process, such as its resource limits, its network namespace or its threads.

use std::{env, process::Command};

/// The environment variable that marks a process that [`run_in_process_of`] started.
const IN_OWN_PROCESS: &str = "RDMSG_TEST_IN_OWN_PROCESS";

/// Runs `body` in a separate process of this test program. `name` is the name of the calling test,
/// with its modules.
pub fn run_in_own_process(name: &str, body: impl FnOnce()) {
    run_in_process_of(Command::new(env::current_exe().unwrap()), name, body);
}

/// Runs `body` in the process that `command` starts. The command must accept the options of a test
/// program. The process runs the test `name`, which calls this function again: this second call
/// runs `body`. Panics if the test fails in the process.
pub fn run_in_process_of(mut command: Command, name: &str, body: impl FnOnce()) {
    if env::var_os(IN_OWN_PROCESS).is_some() {
        return body();
    }
    let output = command
        .args(["--exact", name, "--nocapture"])
        .env(IN_OWN_PROCESS, "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let ran = stdout.contains("1 passed");
    assert!(output.status.success() && ran, "{stdout}\n{stderr}");
}
