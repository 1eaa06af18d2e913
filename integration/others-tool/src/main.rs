//! Runs the TCP tests of std, tokio and hyper-util with rdmsg's types.
//!
//! On a developer's machine, this program downloads the suites from registries, builds them, and
//! runs them with sockets and with rdmsg over TCP. Then it starts itself in the lab, runs the
//! suites there over RDMA, and prints a table of the results.

mod build;
mod record;
mod report;
mod suite;

use std::{env, fs, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use toolbox::{Lab, Launch};

use crate::{
    record::{Carrier, Record},
    suite::{Name, STD, Suite},
};

/// Runs tests of std, tokio and hyper-util, with rdmsg's types in place of sockets
///
/// Takes the tests of TCP sockets from pinned versions of std, tokio and hyper-util. The tests of
/// std come from the distribution's package rust-src, which is installed if necessary. The other
/// tests come from crates.io. Replaces sockets with rdmsg's streams and listeners, as listed in
/// integration/others-tool/substitutions.txt. Skips std if the list has no substitutions for the
/// installed version.
///
/// Runs each test three times: with sockets, with rdmsg over TCP on this machine, and with rdmsg
/// over RDMA. RDMA uses a local device if there is one, otherwise a virtual machine.
///
/// Each test runs in its own process, which is killed if it hangs. A test that does not compile
/// with rdmsg's types is removed by a substitution, and counts as failed.
///
/// Prints a table, and the reason for each test that fails. The exit status is 0 if exactly the
/// tests listed in integration/others-tool/differences.txt fail.
#[derive(Parser)]
#[command(bin_name = "integration/others", verbatim_doc_comment)]
struct Options {
    /// Run only the suites of std and tokio
    #[arg(long)]
    quick: bool,
    /// Run only this suite; can be repeated
    #[arg(long, value_name = "SUITE", value_enum)]
    only: Vec<Name>,
    /// Run only on this machine, without RDMA
    #[arg(long)]
    no_lab: bool,
}

fn main() -> Result<ExitCode> {
    let options = &Options::parse();
    let program = env::current_exe()?;
    let target = program
        .ancestors()
        .nth(2)
        .context("this program is not in a target folder of cargo")?;
    let folder = target.join("others");
    let records = folder.join("records.json");
    if Lab::is_here() {
        Lab::find()?;
        let mut records: Vec<Record> = serde_json::from_slice(&fs::read(records)?)?;
        for record in &mut records {
            record.run(Carrier::Rdma)?;
        }
        return Ok(report::print(&records));
    }
    let here = run_here(options, &folder)?;
    fs::write(records, serde_json::to_vec(&here)?)?;
    if options.no_lab {
        return Ok(report::print(&here));
    }
    let limit = Duration::from_secs(if options.quick { 1200 } else { 3600 });
    Launch::new("", limit)
        .native_where_possible()?
        .run_without_names()
}

/// Builds the suites, and runs them on this machine with sockets and with rdmsg over TCP.
fn run_here(options: &Options, folder: &Path) -> Result<Vec<Record>> {
    let is_wanted = |name: &&Name| {
        (options.only.is_empty() || options.only.contains(name))
            && !(options.quick && **name == Name::HyperUtil)
    };
    let names: Vec<_> = Name::value_variants().iter().filter(is_wanted).collect();
    let manifest = build::generate(folder, names.contains(&&Name::HyperUtil))?;
    let mut suites = Vec::new();
    for name in names {
        match Suite::find(*name, &manifest)? {
            Some(suite) => suites.push(suite),
            None => println!(
                "others: LEFT OUT std: the package rust-src has none of the versions {STD:?}"
            ),
        }
    }
    ensure!(!suites.is_empty(), "no suite can run");
    let mut records = build::build(folder, &suites)?;
    for record in &mut records {
        record.run(Carrier::Sockets)?;
        record.run(Carrier::Tcp)?;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use toolbox::check_help;

    use super::*;

    #[test]
    fn script_prints_the_help_of_its_tool() {
        check_help("others", &Options::command().render_long_help().to_string());
    }
}
