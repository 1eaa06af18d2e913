//! Shell completions and manual pages. Tests generate both from the command-line definition, and
//! compare them with the files in `contrib`, which are embedded in this program.

use std::{
    fs,
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

/// Prints the completions of this command for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  rdmsg completions bash >/etc/bash_completion.d/rdmsg
  rdmsg completions zsh >/usr/local/share/zsh/site-functions/_rdmsg
  rdmsg completions fish >~/.config/fish/completions/rdmsg.fish")]
pub(crate) struct Completions {
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    #[value(name = "powershell")]
    Pwsh,
    Zsh,
}

/// Writes the manual pages to a folder
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  rdmsg man /usr/local/share/man/man1
  man rdmsg-doctor")]
pub(crate) struct ManualPages {
    /// The folder, which must exist.
    folder: PathBuf,
}

/// Expands to an array with the file name and the text of each manual page.
macro_rules! pages {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../contrib/man/", $name)))),*]
    };
}

const PAGES: [(&str, &str); 9] = pages! {
    "rdmsg.1" "rdmsg-bench.1" "rdmsg-bridge.1" "rdmsg-completions.1" "rdmsg-doctor.1" "rdmsg-man.1"
    "rdmsg-ping.1" "rdmsg-serve.1" "rdmsg-top.1"
};

impl Shell {
    fn completions(self) -> &'static str {
        match self {
            Self::Bash => include_str!("../contrib/completions/rdmsg.bash"),
            Self::Elvish => include_str!("../contrib/completions/rdmsg.elv"),
            Self::Fish => include_str!("../contrib/completions/rdmsg.fish"),
            Self::Pwsh => include_str!("../contrib/completions/_rdmsg.ps1"),
            Self::Zsh => include_str!("../contrib/completions/_rdmsg"),
        }
    }
}

pub(crate) fn completions(options: &Completions) -> Result<ExitCode> {
    let text = options.shell.completions();
    stdout()
        .write_all(text.as_bytes())
        .context("cannot print the completions")?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(options: &ManualPages) -> Result<ExitCode> {
    for (name, text) in PAGES {
        let path = options.folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, env, path::Path};

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// Asserts that the files in `contrib/{folder}` are equal to the files that `generate` writes.
    /// If the environment variable `RDMSG_RENEW` is set, replaces the files in `contrib/{folder}`
    /// and asserts nothing.
    fn check(folder: &str, generate: impl FnOnce(&Path)) {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("contrib")
            .join(folder);
        if env::var_os("RDMSG_RENEW").is_some() {
            let _ = fs::remove_dir_all(&kept);
            fs::create_dir_all(&kept).unwrap();
            return generate(&kept);
        }
        let made = env::temp_dir().join(format!("rdmsg-{folder}-{}", std::process::id()));
        fs::create_dir(&made).unwrap();
        generate(&made);
        let read = |folder: &Path| -> BTreeMap<_, _> {
            let files = fs::read_dir(folder).unwrap().map(Result::unwrap);
            let read = files.map(|it| (it.file_name(), fs::read_to_string(it.path()).unwrap()));
            read.collect()
        };
        let (kept, generated) = (read(&kept), read(&made));
        fs::remove_dir_all(made).unwrap();
        assert_eq!(
            kept, generated,
            "the files in contrib/{folder} must match the command line; renew them with \
             `RDMSG_RENEW=1 cargo test -p rdmsg-cli files_match`"
        );
    }

    #[test]
    fn completion_files_match_the_command_line() {
        check("completions", |folder| {
            for shell in clap_complete::Shell::value_variants() {
                clap_complete::generate_to(*shell, &mut Cli::command(), "rdmsg", folder).unwrap();
            }
        });
        for shell in Shell::value_variants() {
            assert!(shell.completions().contains("bridge"), "{shell:?}");
        }
    }

    #[test]
    fn manual_files_match_the_command_line() {
        check("man", |folder| {
            clap_mangen::generate_to(Cli::command(), folder).unwrap();
        });
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/man");
        assert_eq!(fs::read_dir(folder).unwrap().count(), PAGES.len());
    }
}
