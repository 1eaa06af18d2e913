//! Runs the tests of the module `keys` on a device with memory windows. `rdmsg` exposes each
//! message through a window. Software RoCE does not check that a READ is within its window, so a
//! preloaded C library performs this check.

use std::{
    env, fs,
    process::{self, Command},
};

use toolbox::Lab;

#[test]
fn keys_of_windows_end_with_their_messages() {
    if !Lab::get().device.starts_with("rxe") {
        // Software iWARP has no memory windows.
        return;
    }
    let library = env::temp_dir().join(format!("rdmsg-windows-{}.so", process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/shortage/calls.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-DKEEP_BOUNDS=1", "-o"])
        .args([library.as_path(), source.as_ref()])
        .args(["-ldl", "-lpthread"])
        .status()
        .unwrap();
    assert!(built.success());
    let output = Command::new(env::current_exe().unwrap())
        .args(["--test-threads=1", "keys::"])
        .env("LD_PRELOAD", &library)
        .output()
        .unwrap();
    fs::remove_file(&library).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let passed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{passed}\n{text}");
    assert!(passed.contains("test result: ok. 5 passed"), "{passed}");
    let binds = text.lines().find_map(|line| line.strip_prefix("binds: "));
    let binds: u32 = binds.expect(&text).parse().unwrap();
    // Each of the five tests exposes at least one message in each of the two roles. In addition,
    // `rdmsg` binds three windows when it tests the device.
    assert!(binds >= 13, "{text}");
}
