//! What is on this machine and not in a guest, which has a /tmp and a /run of its own.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

/// Where a guest has folders of its own.
const OWN: [&str; 2] = ["/tmp", "/run"];

/// Refuses a program that is here, but not in a guest. `visible` are the folders that are in a
/// guest even where they are below one of its own; the first is the one in which the command
/// starts.
pub(crate) fn refuse(command: &[impl AsRef<OsStr>], visible: &[&Path]) -> Result<()> {
    let Some(program) = program(command) else {
        return Ok(());
    };
    let path = visible[0].join(&program);
    let own = OWN.iter().find(|own| path.starts_with(own));
    let is_hidden = own.is_some() && !visible.iter().any(|folder| path.starts_with(folder));
    ensure!(
        !(is_hidden && path.exists()),
        "{} is not in the guest, which has a {} of its own; put it below {}",
        program.display(),
        own.unwrap_or(&OWN[0]),
        visible[0].display()
    );
    Ok(())
}

/// The program that is run, if that is a path: a single argument is a line for the shell.
fn program(command: &[impl AsRef<OsStr>]) -> Option<PathBuf> {
    let program = match command {
        [line] => line.as_ref().to_str()?.split_whitespace().next()?.into(),
        [program, ..] => PathBuf::from(program.as_ref()),
        [] => return None,
    };
    (program.components().count() > 1).then_some(program)
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

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
