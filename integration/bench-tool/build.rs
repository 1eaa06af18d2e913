//! Passes the compiler's version and options to the benchmark program, because the instruction
//! counts depend on both.

use std::{env, process::Command};

fn main() {
    let compiler = env::var_os("RUSTC").expect("cargo must set RUSTC");
    let version = Command::new(compiler)
        .arg("--version")
        .output()
        .expect("the compiler must be executable");
    let version = String::from_utf8_lossy(&version.stdout);
    let var = |name| env::var(name).unwrap_or_default();
    println!(
        "cargo::rustc-env=BUILT_BY={}, {}, opt-level {}, {}{}",
        version.trim(),
        var("PROFILE"),
        var("OPT_LEVEL"),
        var("TARGET"),
        var("CARGO_ENCODED_RUSTFLAGS").replace('\u{1f}', " ")
    );
    println!("cargo::rerun-if-changed=build.rs");
}
