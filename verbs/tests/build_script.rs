//! Checks the message that the build script prints on a host that lacks packages.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Output},
};

/// A folder that contains the compiled build script. Dropping this value removes the folder.
struct Script(PathBuf);

impl Script {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("rdmsg-build-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        let this = Self(folder);
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
        let compiled = Command::new(rustc)
            .args(["--edition", "2024", "-o"])
            .arg(this.0.join("build"))
            .arg(source)
            .output()
            .unwrap();
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        this
    }

    /// Runs the build script with the feature `linked`. `PATH` contains only `programs`. Each
    /// element of `programs` is the name of a program and its content, one line of shell code.
    fn run(&self, programs: &[(&str, &str)]) -> Output {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        assert!(manifest.contains("\nlinked = ["), "{manifest}");
        self.run_with(&["LINKED"], programs)
    }

    /// Runs the build script as `run` does, with the features `features`.
    fn run_with(&self, features: &[&str], programs: &[(&str, &str)]) -> Output {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join("path");
        fs::create_dir(&path).unwrap();
        for (name, line) in programs {
            let file = path.join(name);
            fs::write(&file, format!("#!/bin/sh\n{line}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let output = Command::new(self.0.join("build"))
            .env_clear()
            .env("PATH", &path)
            .env("TARGET", "x")
            .env("HOST", "x")
            .env("LIBCLANG_PATH", "/somewhere")
            .envs(
                features
                    .iter()
                    .map(|name| (format!("CARGO_FEATURE_{name}"), "1")),
            )
            .output()
            .unwrap();
        fs::remove_dir_all(path).unwrap();
        output
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn all_missing_build_tools_are_named_at_once() {
    let script = Script::new();
    let asks = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("apt install"));
        line.map(|line| line.trim().to_owned())
    };
    let nothing = script.run(&[]);
    assert_eq!(nothing.status.code(), Some(1));
    assert_eq!(
        asks(&nothing).unwrap(),
        "sudo apt install pkg-config libibverbs-dev librdmacm-dev"
    );
    let one = "case \"$*\" in *librdmacm*) exit 1;; esac";
    let one = script.run(&[("pkg-config", one)]);
    assert_eq!(one.status.code(), Some(1));
    assert_eq!(asks(&one).unwrap(), "sudo apt install librdmacm-dev");
    let everything = script.run(&[("pkg-config", "exit 0")]);
    assert!(everything.status.success());
    assert_eq!(asks(&everything), None);
    let unlinked = script.run_with(&[], &[]);
    assert!(unlinked.status.success());
    assert_eq!(asks(&unlinked), None);
}
