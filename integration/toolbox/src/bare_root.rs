use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

/// A file system with one program and the libraries that it is linked with, and nothing else.
#[derive(Debug)]
pub struct BareRoot {
    root: PathBuf,
    /// The libraries, as `ldd` names them.
    pub libraries: Vec<PathBuf>,
}

const PROGRAM: &str = "/program";

impl BareRoot {
    /// Copies a program and its libraries to a folder, which is emptied.
    ///
    /// # Errors
    ///
    /// When the program's libraries cannot be told, or files cannot be copied.
    pub fn new(root: &Path, program: &Path) -> Result<Self> {
        if root.exists() {
            fs::remove_dir_all(root)?;
        }
        let listed = Command::new("ldd").arg(program).output()?;
        ensure!(listed.status.success(), "ldd: {}", listed.status);
        // `libc.so.6 => /lib/libc.so.6 (0x…)`, and the loader without an arrow.
        let listed = String::from_utf8(listed.stdout)?;
        let libraries: Vec<PathBuf> = listed
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
            .map(PathBuf::from)
            .collect();
        let this = Self {
            root: root.to_owned(),
            libraries,
        };
        this.copy(program, Path::new(PROGRAM))?;
        for library in &this.libraries {
            this.copy(library, library)?;
        }
        Ok(this)
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.root.join(to.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a library in no folder")?)?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    }

    /// Returns a command that runs the program there, as root, with these variables alone in its
    /// environment.
    #[must_use]
    pub fn command(&self, environment: &[&str]) -> Command {
        let mut command = Command::new("env");
        if !geteuid().is_root() {
            command = Command::new("sudo");
            command.arg("env");
        }
        command.arg("--ignore-environment").args(environment);
        // By its path: there is no PATH any more.
        command.args(["/usr/sbin/chroot".as_ref(), self.root.as_os_str()]);
        command.arg(PROGRAM);
        command
    }
}
