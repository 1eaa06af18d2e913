//! What is on this machine and not in a guest, which has a /tmp and a /run of its own.

use std::{ffi::OsStr, path::Path};

use anyhow::{Result, bail};

/// Refuses a program that is here, but not in a guest. `visible` are the folders that are in a
/// guest even where they are below one of its own; the first is the one in which the command
/// starts.
pub(crate) fn refuse(command: &[impl AsRef<OsStr>], visible: &[&Path]) -> Result<()> {
    let program = command[0].as_ref().to_string_lossy();
    // A single argument is a line for the shell.
    let program = match command {
        [_] => program.split_whitespace().next().unwrap_or_default(),
        _ => &*program,
    };
    let path = visible[0].join(program);
    let own = ["/tmp", "/run"]
        .into_iter()
        .find(|own| path.starts_with(own));
    let is_visible = visible.iter().any(|folder| path.starts_with(folder));
    // A name without a folder is looked for in `PATH`.
    match own.filter(|_| program.contains('/') && !is_visible && path.exists()) {
        Some(own) => bail!(
            "{program} is not in the guest, which has a {own} of its own; put it below {}",
            visible[0].display()
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::PathBuf};

    use super::*;

    #[test]
    fn a_program_that_a_guest_does_not_have_is_refused_with_the_reason() {
        // Not `env::temp_dir`, which may be elsewhere.
        let dir = PathBuf::from(format!("/tmp/lab-hidden.{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("program"), "").unwrap();
        let program = dir.join("program").display().to_string();
        let checkout = env::current_dir().unwrap();
        let outcomes = [
            refuse(&[&*program, "1"], &[Path::new("/home")]),
            refuse(&[format!("{program} 1")], &[Path::new("/home")]),
            refuse(&[&*program, "1"], &[Path::new("/home"), &dir]),
            refuse(&["ls", &*program], &[Path::new("/home")]),
            refuse(&["/tmp/that/there/is/not", "1"], &[&*checkout]),
        ];
        fs::remove_dir_all(dir).unwrap();
        let [refused, line, visible, argument, missing] = outcomes;
        for outcome in [refused, line] {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("which has a /tmp of its own"), "{text}");
        }
        for outcome in [visible, argument, missing] {
            outcome.unwrap();
        }
    }
}
