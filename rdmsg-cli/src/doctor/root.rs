use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The directory that contains `sys`, `proc`, `dev` and `etc`: `/`, or a temporary directory in
/// tests.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn machine() -> Self {
        Self("/".into())
    }

    #[cfg(test)]
    pub(super) fn at(folder: &Path) -> Self {
        Self(folder.into())
    }

    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    pub(super) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Returns the text of a file, without white space at its start and end. Returns `None` if the
    /// file cannot be read. For example, the kernel returns an error if a program reads an empty
    /// entry of a GID table.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    pub(super) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Returns the names in a directory. Sorts shorter names first, so that numbered names are in
    /// numeric order: `mlx5_2` precedes `mlx5_10`.
    pub(super) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }

    /// Returns the last component of a symbolic link's target.
    pub(super) fn target_name(&self, link: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(link)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

/// The directories of system commands. The doctor searches only these directories. It ignores
/// `PATH`: if root runs the doctor, `PATH` can contain directories of other users, or lack some of
/// the system directories.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Returns a system command with its absolute path, or `None` if it is not installed.
pub(crate) fn command(name: &str) -> Option<Command> {
    let mut paths = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    paths.find(|path| path.exists()).map(Command::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_has_an_absolute_path() {
        let found = command("env").unwrap();
        assert!(Path::new(found.get_program()).is_absolute());
        assert!(command("rdmsg-no-such-command").is_none());
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::{
        env, fs,
        os::unix::fs::symlink,
        path::PathBuf,
        process,
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::Root;

    /// A directory with the files of a simulated host. Dropping this value removes the directory.
    pub(in super::super) struct Machine(PathBuf);

    impl Machine {
        pub(in super::super) fn new() -> Self {
            static MADE: AtomicU32 = AtomicU32::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("rdmsg-doctor-{}-{number}", process::id());
            let folder = env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        pub(in super::super) fn root(&self) -> Root {
            Root::at(&self.0)
        }

        /// Adds a file, and creates its parent directories.
        pub(in super::super) fn file(self, path: &str, text: &str) -> Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        pub(in super::super) fn link(self, path: &str, target: &str) -> Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
            self
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
