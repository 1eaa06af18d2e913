use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};
use serde_json::Value;

/// A test program that cargo has built.
#[derive(Debug)]
pub struct TestProgram {
    /// Whether the program belongs to the package `device`.
    pub is_of_device: bool,
    /// The name of the program in the manifest.
    pub name: String,
    /// The path of the program.
    pub program: PathBuf,
}

/// Runs cargo with `arguments`, which must request a build. Returns the test programs that cargo
/// has built.
///
/// # Errors
///
/// If the build fails.
pub fn tests_of(arguments: &[impl AsRef<OsStr>]) -> Result<Vec<TestProgram>> {
    let output = Command::new("cargo")
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "cargo: {}", output.status);
    let said = String::from_utf8(output.stdout)?;
    Ok(said.lines().filter_map(test_of).collect())
}

/// Parses a JSON message of cargo. Returns the test program that the message describes, or `None`
/// if the message describes no test program.
fn test_of(message: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["target"]["kind"][0] == "test";
    let program = message["executable"].as_str().filter(|_| is_test)?;
    Some(TestProgram {
        is_of_device: message["manifest_path"]
            .as_str()?
            .ends_with("/device/Cargo.toml"),
        name: message["target"]["name"].as_str()?.to_owned(),
        program: program.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn test_programs_are_distinct_from_helpers() {
        let message = |kind: &str, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/x/device/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"broker","test":true}},
                "profile":{{"opt_level":"0","test":true}},"features":["tokio"],
                "filenames":["/x/broker"],"executable":{program},"fresh":true}}"#
            )
        };
        let test = test_of(&message("test", "\"/x/deps/broker-1a\"")).unwrap();
        assert_eq!(test.program, Path::new("/x/deps/broker-1a"));
        assert_eq!(test.name, "broker");
        assert!(test.is_of_device);
        assert!(test_of(&message("bin", "\"/x/broker\"")).is_none());
        assert!(test_of(&message("test", "null")).is_none());
        assert!(test_of(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
