//! Runs a test in a process of its own, because it changes limits or the network.

use std::{env, process::Command};

/// The variable that is set in the test's process.
const APART: &str = "RDMSG_TEST_APART";

/// The resources that no other test shares.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    /// Limits and descriptors.
    Process,
    /// These, and a network with nothing but the loopback interface.
    Network,
}

/// Runs `body` in a process of its own. `name` is the name of the test that calls this.
pub(crate) fn apart(name: &str, own: Own, body: impl FnOnce()) {
    if env::var_os(APART).is_some() {
        return body();
    }
    let program = env::current_exe().unwrap();
    let mut command = match own {
        Own::Process => Command::new(program),
        Own::Network => {
            let mut command = Command::new("unshare");
            command
                .args(["--map-root-user", "--net", "sh", "-c"])
                .arg("ip link set lo up && exec \"$0\" \"$@\"")
                .arg(program);
            command
        }
    };
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
