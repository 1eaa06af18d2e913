use std::{path::Path, process::Command};

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
