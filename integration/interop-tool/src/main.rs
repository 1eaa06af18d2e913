//! Runs the example programs against the C programs of the same names on two hosts, and prints a
//! table of the results.
//!
//! On a developer's machine, this program starts itself on both hosts of the lab. Host `b` runs an
//! agent, which starts the servers when host `a` requests it. Host `a` runs the clients, and checks
//! the exit status and the output of both sides.

mod case;
mod iwarp;
mod run;

use std::{
    path::Path,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Error, Result, ensure};
use clap::Parser;
use toolbox::{
    LAB_STOPPED, Lab, LabDevice, Launch, Unkillable,
    agent::{self, Host},
    slowness,
};

use crate::case::{Case, Placeholders};

/// Runs the example programs against the C programs of the same names, on two hosts
///
/// Runs each example as server and as client against itself and against the C program of the same
/// name (Debian's rdmacm-utils and ibverbs-utils), with many options and with bad input. The hosts
/// are two virtual machines that have software RoCE or iWARP devices and are connected by a virtual
/// network. A case that needs a capability that the devices lack is skipped; the table contains the
/// reason. The cases of the program "valkey" run the clients of rdmsg-valkey against the server of
/// Valkey. integration/valkey builds this server.
///
/// Prints a table with the result of each pair. The exit status is 0 if all cases passed, and 123
/// if a program did not end after SIGKILL, because the kernel of its virtual machine has blocked
/// it.
#[derive(Parser)]
#[command(bin_name = "integration/interop", verbatim_doc_comment)]
struct Options {
    /// Run only a few cases of each program
    #[arg(long)]
    quick: bool,
    /// Run only the cases of this program
    #[arg(long, value_name = "PROGRAM")]
    only: Option<String>,
    /// Run only the cases whose description contains TEXT
    #[arg(long, value_name = "TEXT")]
    what: Option<String>,
    /// Driver of the virtual machines' RDMA devices
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t)]
    device: LabDevice,
}

fn main() -> Result<ExitCode> {
    let options = &Options::parse();
    if !Lab::is_here() {
        return Err(launch(options)?);
    }
    let lab = Lab::find()?;
    match &*lab.host {
        "b" => agent::serve().map(|()| ExitCode::SUCCESS),
        _ => compare(options, &lab),
    }
}

/// Starts this program in virtual machines. The cases need two hosts, so this is necessary even if
/// this machine has an RDMA device. Returns only if the start fails.
fn launch(options: &Options) -> Result<Error> {
    // Check the options before booting the hosts, because booting takes a long time.
    let cases = cases(options, &[])?;
    let limit = Duration::from_secs(if options.quick { 1500 } else { 7200 });
    let mut lab = format!("--hosts 2 {}", options.device.option());
    if cases.iter().any(|case| case.program == "valkey") {
        // Ignore the status: if Valkey's server was not built, the cases that need this server are
        // left out.
        Command::new("integration/valkey").status()?;
        // Reserve more memory, because each side holds several copies of the longest value.
        lab += " --memory 3G";
    }
    Ok(Launch::new(&lab, limit).exec())
}

/// Returns the selected cases.
fn cases(options: &Options, placeholders: &Placeholders) -> Result<Vec<Case>> {
    let mut cases = case::all(placeholders)?;
    cases.retain(|case| {
        (case.quick || !options.quick)
            && options
                .only
                .as_ref()
                .is_none_or(|only| *only == case.program)
            && options
                .what
                .as_ref()
                .is_none_or(|what| case.what.contains(what))
    });
    ensure!(!cases.is_empty(), "no case matches the options");
    Ok(cases)
}

/// Runs the selected cases and prints the table. Returns success if all cases passed.
fn compare(options: &Options, lab: &Lab) -> Result<ExitCode> {
    let cases = cases(options, &case::placeholders(lab)?)?;
    let mut agent = Host::connect(lab.peer)?;
    if options.device == LabDevice::Siw {
        iwarp::delay_first_sends()?;
    }
    println!(
        "interop: this machine is {:.1} times as slow as an idle one",
        slowness()
    );
    let line = |cells: [&str; 6]| {
        let [program, server, client, what, seconds, result] = cells;
        println!("{program:<12} {server:<7} {client:<7} {what:<52} {seconds:>7}  {result}");
    };
    line(["program", "server", "client", "what", "seconds", "result"]);
    let (mut count, mut failed) = (0, 0);
    for case in &cases {
        let [server, client] =
            [&case.server, &case.clients[0]].map(|side| format!("{:?}", side.language));
        let show = |seconds: &str, result: &str| {
            line([&case.program, &server, &client, &case.what, seconds, result]);
        };
        let lacks = iwarp::lacks(case).filter(|_| options.device == LabDevice::Siw);
        if let Some(capability) = lacks {
            let result = format!("does not apply: the device lacks {capability}");
            show("-", &result);
            continue;
        }
        let server = &case.server.argv[0];
        if case.program == "valkey" && server.contains('/') && !Path::new(server).exists() {
            show("-", "LEFT OUT: integration/valkey has built no server");
            continue;
        }
        let start = Instant::now();
        let result = run::run(case, &mut agent);
        let seconds = format!("{:.1}", start.elapsed().as_secs_f64());
        if let Err(error) = &result
            && error.is::<Unkillable>()
        {
            // The kernel of a guest has blocked the program for good, so the guests are unusable.
            show(&seconds, "stopped");
            println!("{error:#}");
            return Ok(ExitCode::from(LAB_STOPPED));
        }
        show(&seconds, if result.is_ok() { "ok" } else { "FAILED" });
        count += 1;
        if let Err(error) = result {
            failed += 1;
            println!("{error:#}");
        }
    }
    agent.quit()?;
    println!("\ninterop: {} of {count} cases passed", count - failed);
    Ok(u8::from(failed > 0 || count == 0).into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use toolbox::check_help;

    use super::*;

    #[test]
    fn script_prints_the_help_of_its_tool() {
        check_help(
            "interop",
            &Options::command().render_long_help().to_string(),
        );
    }
}
