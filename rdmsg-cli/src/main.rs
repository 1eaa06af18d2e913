//! The command `rdmsg`.

#[macro_use(warn_sparsely)]
extern crate rdmsg_os;

mod arguments;
mod bench;
mod bridge;
mod doctor;
mod generate;
mod help;
mod live;
mod logger;
mod measure;
mod ping;
mod process;
mod serve;
mod service;
mod terminal;
mod top;

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};
use nix::sys::signal::Signal;

/// Tools for rdmsg: messaging and byte streams over RDMA.
#[derive(Debug, Parser)]
#[command(name = "rdmsg", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Options),
    Serve(serve::Options),
    Ping(ping::Options),
    Bench(bench::Options),
    Top(top::Options),
    Bridge(bridge::Options),
    Completions(generate::Completions),
    Man(generate::ManualPages),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::try_parse().unwrap_or_else(|error| help::exit(&error));
    logger::install();
    let ended = match command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Ping(options) => ping::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Completions(options) => generate::completions(&options),
        Command::Man(options) => generate::man(&options),
        Command::Bridge(options) => bridge::run(&options),
    };
    ended.unwrap_or_else(|error| {
        if is_closed_pipe(&error) {
            // The program that reads the output has exited. Exit with the status that a shell
            // reports for a process killed by SIGPIPE.
            return ExitCode::from(128 + Signal::SIGPIPE as u8);
        }
        eprintln!("rdmsg: {error:#}");
        ExitCode::FAILURE
    })
}

/// Returns whether a write to stdout failed because no program reads from the pipe.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
