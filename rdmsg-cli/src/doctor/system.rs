use std::{path::Path, process::Command};

/// The folders that contain commands of the system. They are used instead of `PATH`, because the
/// doctor may run as root, and the `PATH` of root may contain folders of other users or lack some
/// of these folders.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Returns a command of the system by its absolute path, or `None` if it is not installed.
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
