//! Runs the example programs and the C programs of the same names against each other, on two hosts, and says in a table which pairs work.
//!
//! Both hosts run this program. Host `b` is an agent that starts servers at the wish of host `a`, which goes through the cases, runs
//! the clients, and checks how both sides end and what they print.

mod agent;
mod case;
mod cases;
mod classic;
mod pace;
mod process;
mod remote;
mod run;

use std::{env, process::ExitCode, time::Instant};

use clap::Parser;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Run the example programs against the C programs of the same names; to be run on both hosts of the lab
#[derive(Parser)]
struct Options {
    /// Only the cases that take a moment
    #[arg(long)]
    quick: bool,
    /// Only the cases of this program
    #[arg(long, value_name = "PROGRAM")]
    only: Option<String>,
    /// Only the cases whose description has this in it
    #[arg(long, value_name = "TEXT")]
    what: Option<String>,
    /// Be a peer of rc_example instead, with a buffer of so many bytes
    #[arg(long, value_name = "BYTES")]
    classic: Option<usize>,
    /// With --classic: the server. Without it this is the server
    #[arg(requires = "classic")]
    server: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match (options.classic, env::var("LAB_HOST").as_deref()) {
        (Some(len), _) => classic::play(len, options.server.as_deref()).map(|()| true),
        (None, Ok("a")) => compare(&options),
        (None, Ok("b")) => agent::serve().map(|()| true),
        (None, _) => Err("LAB_HOST is neither a nor b: run it with integration/interop".into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("interop: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Goes through all cases and prints the table. Whether all of them passed.
fn compare(options: &Options) -> Result<bool> {
    let place = case::Place::from_env()?;
    let wanted = |case: &case::Case| {
        (!options.quick || case.quick)
            && options
                .only
                .as_deref()
                .is_none_or(|only| only == case.program)
            && options
                .what
                .as_deref()
                .is_none_or(|what| case.what.contains(what))
    };
    let cases: Vec<_> = cases::all().into_iter().filter(wanted).collect();
    if cases.is_empty() {
        return Err("there is no such case".into());
    }
    let mut agent = remote::Agent::connect(&place.server)?;
    println!(
        "interop: all takes {:.1} times as long as on an idle machine",
        pace::slowness()?
    );
    let mut rows = Vec::new();
    let mut failed = 0;
    for case in &cases {
        let start = Instant::now();
        let result = run::run(case, &place, &mut agent);
        let seconds = start.elapsed().as_secs_f64();
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!(
            "interop: {} {}: {verdict}, {seconds:.1} s",
            case.program,
            case.title()
        );
        if let Err(error) = result {
            failed += 1;
            println!("{error}");
        }
        rows.push((case, verdict, seconds));
    }
    agent.quit()?;

    println!(
        "\n{:<12} {:<7} {:<7} {:<52} {:>7}  result",
        "program", "server", "client", "what", "seconds"
    );
    for (case, verdict, seconds) in rows {
        println!(
            "{:<12} {:<7} {:<7} {:<52} {seconds:>7.1}  {verdict}",
            case.program,
            case.server.who.to_string(),
            case.client().to_string(),
            case.what,
        );
    }
    println!(
        "\ninterop: {} of {} cases passed",
        cases.len() - failed,
        cases.len()
    );
    Ok(failed == 0)
}
