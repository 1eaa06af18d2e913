//! Generates completions for shells, and pages of the manual, from the command line.

use std::{
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Cli;

/// Prints completions for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  rdmsg completions bash >/etc/bash_completion.d/rdmsg
  rdmsg completions zsh >/usr/local/share/zsh/site-functions/_rdmsg
  rdmsg completions fish >~/.config/fish/completions/rdmsg.fish")]
pub(crate) struct Completions {
    shell: Shell,
}

/// Writes the pages of the manual to a folder
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  rdmsg man /usr/local/share/man/man1
  man rdmsg-doctor")]
pub(crate) struct ManualPages {
    /// An existing folder.
    folder: PathBuf,
}

pub(crate) fn completions(options: &Completions) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "rdmsg", &mut text);
    stdout()
        .write_all(&text)
        .context("cannot print the completions")?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(options: &ManualPages) -> Result<ExitCode> {
    let folder = &options.folder;
    let written = clap_mangen::generate_to(Cli::command(), folder);
    written.with_context(|| format!("cannot write to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
