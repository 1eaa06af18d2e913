//! Takes the suites' files from registries, by their ordinary clients.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::suites::{Source, Suite};

/// A folder with a suite's sources, and their version.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) folder: PathBuf,
    pub(crate) version: &'static str,
}

/// Finds the sources of a suite, and fetches them if they are not on this machine.
pub(crate) fn find(suite: &Suite, manifest: &Path) -> Result<Sources> {
    match suite.source {
        Source::Cargo(version) => of_cargo(suite.name, version, manifest),
        Source::RustSrc(versions) => {
            if let Some(sources) = of_rust(suite, versions)? {
                return Ok(sources);
            }
            println!("others: installing the package rust-src");
            let status = Command::new("integration/packages")
                .args(["--package", "rust-src"])
                .status()
                .context("cannot run integration/packages")?;
            ensure!(
                status.success(),
                "the package rust-src could not be installed (see above): is apt's registry \
                 reachable?"
            );
            of_rust(suite, versions)?.with_context(|| {
                format!("neither the toolchain nor the package rust-src has std in {versions:?}")
            })
        }
    }
}

/// Finds a package among what the generated manifest depends on.
fn of_cargo(name: &str, version: &'static str, manifest: &Path) -> Result<Sources> {
    let unreachable = "cargo could not fetch the suites (see above): is its registry reachable?";
    let host = rustc(&["--print", "host-tuple"])?;
    let output = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--filter-platform"])
        .args([host.trim(), "--manifest-path"])
        .arg(manifest)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), unreachable);
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let mut packages = packages.iter();
    let Some(package) = packages.find(|p| p["name"] == name && p["version"] == version) else {
        bail!("the manifest does not depend on {name} {version}");
    };
    let manifest = Path::new(package["manifest_path"].as_str().context("no path")?);
    let folder = manifest.parent().context("no folder")?.to_owned();
    Ok(Sources { folder, version })
}

/// Finds std's sources in the toolchain, or where the distribution's package has them.
fn of_rust(suite: &Suite, versions: &[&'static str]) -> Result<Option<Sources>> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    let toolchain = rustc(&["--version"])?;
    Ok(versions.iter().find_map(|version| {
        let of_toolchain = (toolchain.split_whitespace().nth(1) == Some(*version))
            .then(|| Path::new(sysroot.trim()).join("lib/rustlib/src/rust"));
        let of_package = PathBuf::from(format!("/usr/src/rustc-{version}"));
        let mut folders = of_toolchain.into_iter().chain([of_package]);
        let folder =
            folders.find(|folder| folder.join(suite.source.path_of(suite.files[0])).exists())?;
        Some(Sources { folder, version })
    }))
}

/// Reads a file of a suite.
pub(crate) fn read(suite: &Suite, sources: &Sources, file: &str) -> Result<String> {
    let path = sources.folder.join(suite.source.path_of(file));
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn rustc(arguments: &[&str]) -> Result<String> {
    let output = Command::new("rustc").args(arguments).output();
    let output = output.context("cannot run rustc")?;
    ensure!(
        output.status.success(),
        "rustc {arguments:?}: {}",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?)
}
