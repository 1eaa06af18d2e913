//! Measures the parts of a benchmark in the lab or on this machine, and prints the results.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use toolbox::Launch;

use crate::{
    budget::{self, Budget},
    conduct::REPORTS,
    program::is_installed,
    report::Report,
    row::Part,
    sweep,
    work::{Scope, Task, Work},
};

/// The time limits for a long and for a quick measurement in the lab. They stop a measurement that
/// hangs.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
const QUICK_LIMIT: Duration = Duration::from_secs(1200);

/// The lab's options that start a guest whose clock counts instructions.
const COUNTED: &str = "--counted --memory 2G";

/// The number of rounds when [`polling`] measures by the clock.
const POLLING_ROUNDS: u32 = 7;

/// The number of rounds between two hosts.
const HOSTS_ROUNDS: u32 = 7;

/// The number of rounds for a new budget. The budget stores the medians of these rounds.
const RENEWAL_ROUNDS: u32 = 3;

/// Performs the task in a guest, or on this machine if `guest` is `None`. Adds the results to
/// `report`.
fn run(task: &Task, guest: Option<Launch>, report: &mut Report) -> Result<()> {
    let target = env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let here = guest.is_none().then(|| target.join("bench"));
    let base = env::var_os("LAB_RESULTS_BASE").map(PathBuf::from);
    let in_lab = || base.unwrap_or_else(|| target.join("lab/results")).join("a");
    let results = here.clone().unwrap_or_else(in_lab);
    fs::create_dir_all(&results)?;
    // Remove the reports of an earlier run, because the code below would read them if this run
    // wrote none.
    let file = results.join(REPORTS);
    let _ = fs::remove_file(&file);
    let mut argv = Work::Perform(task.clone(), here).argv()?;
    let succeeded = match guest {
        Some(launch) => {
            let launch = launch.arguments(argv.split_off(1));
            launch.run_without_names()? == ExitCode::SUCCESS
        }
        None => {
            if task.parts == [Part::OneProcessor] {
                // Use the last processor, because the first one handles most interrupts.
                let last = (available_parallelism()?.get() - 1).to_string();
                argv.splice(..0, ["taskset", "-c", &last].map(str::to_owned));
            }
            Command::new(&argv[0]).args(&argv[1..]).status()?.success()
        }
    };
    let reports = fs::read_to_string(file).unwrap_or_else(|_| "[]".to_owned());
    let reports: Vec<Report> = serde_json::from_str(&reports)?;
    for part in task.parts.iter().skip(reports.len()) {
        report
            .missing
            .push(format!("{part}: all measurements, see above"));
    }
    reports.into_iter().for_each(|part| report.add(part));
    ensure!(succeeded, "the measurement failed, see above");
    Ok(())
}

/// Measures the given parts, and prints the table.
pub(crate) fn compare(
    parts: &[Part],
    scope: Scope,
    only: &[String],
    write: bool,
) -> Result<ExitCode> {
    let start = Instant::now();
    let report = measure(parts, scope, 1, only)?;
    for part in parts.iter().filter(|_| write) {
        let name = match scope {
            Scope::Many => "many".to_owned(),
            _ => part.to_string(),
        };
        report.write_page(&name, &[*part])?;
    }
    report.print();
    Ok(end(start, report.broken))
}

/// Compares the default way of waiting with the other ways, and prints the table.
pub(crate) fn polling(lab: bool, write: bool) -> Result<ExitCode> {
    let start = Instant::now();
    let mut report = Report::default();
    let load = fs::read_to_string("/proc/loadavg")?;
    let note = format!(
        "before the measurement, this machine had a load average of {} and {} processors",
        load.split(' ').next().unwrap_or_default(),
        available_parallelism()?
    );
    eprintln!("bench: {note}");
    report.notes.push(note);
    let task = |part, rounds| Task {
        parts: vec![part],
        scope: Scope::Polling,
        rounds,
        only: Vec::new(),
    };
    for part in [Part::OneProcessor, Part::Loaded, Part::Free] {
        run(&task(part, POLLING_ROUNDS), None, &mut report)?;
    }
    if lab {
        let counted = Launch::new(COUNTED, QUICK_LIMIT);
        run(&task(Part::Counted, 1), Some(counted), &mut report)?;
        let free = Launch::new("--memory 2G", QUICK_LIMIT).native_where_possible()?;
        run(&task(Part::Free, POLLING_ROUNDS), Some(free), &mut report)?;
    }
    if write {
        let parts = [Part::OneProcessor, Part::Loaded, Part::Free, Part::Counted];
        report.write_page("polling", &parts)?;
    }
    report.print();
    Ok(end(start, report.broken))
}

/// Measures the cost of many message sizes in the lab, and prints the table.
pub(crate) fn sweep(write: bool) -> Result<ExitCode> {
    let start = Instant::now();
    let report = measure(&[Part::Counted], Scope::Sweep, 1, &[])?;
    if write {
        report.write_sweeps()?;
    }
    report.print_sweeps();
    Ok(end(start, sweep::is_beyond_bound(&report.sweeps)))
}

fn end(start: Instant, has_failed: bool) -> ExitCode {
    println!(
        "bench: the measurement took {} s",
        start.elapsed().as_secs()
    );
    u8::from(has_failed).into()
}

/// Measures the comparisons of the budget. If `renew` is set, stores the new figures. Otherwise
/// compares the new figures with the stored figures.
pub(crate) fn budget(renew: bool) -> Result<ExitCode> {
    let start = Instant::now();
    let file = Path::new(budget::FILE);
    let budget = |rounds| {
        let parts = [Part::Counted, Part::Instructions];
        let report = measure(&parts, Scope::Quick, rounds, &[])?;
        for what in &report.missing {
            println!("budget: not measured: {what}");
        }
        anyhow::Ok(Budget::of(&report))
    };
    if renew {
        budget(RENEWAL_ROUNDS)?.write(file)?;
        println!("budget: {} is renewed", file.display());
        return Ok(ExitCode::SUCCESS);
    }
    let kept = Budget::read(file)?;
    let mut over = budget(1)?.judge(&kept);
    if !over.is_empty() {
        println!("budget: measuring again, because a figure sometimes differs by chance");
        let again = budget(1)?.judge(&kept);
        over.retain(|path| again.contains(path));
    }
    println!(
        "budget: the measurement took {} s",
        start.elapsed().as_secs()
    );
    if over.is_empty() {
        println!("budget: kept");
        return Ok(ExitCode::SUCCESS);
    }
    for path in over {
        println!("budget: NOT KEPT: {path}");
    }
    println!(
        "budget: if the new costs are intended, store them with integration/bench budget --renew"
    );
    Ok(ExitCode::FAILURE)
}

/// Measures the given parts. Starts the lab only once for all parts, because a guest takes a long
/// time to boot.
fn measure(parts: &[Part], scope: Scope, rounds: u32, only: &[String]) -> Result<Report> {
    let mut packages = Vec::new();
    if parts.contains(&Part::Instructions) && !is_installed("valgrind") {
        packages.push("valgrind");
    }
    if parts.contains(&Part::Counted) && scope != Scope::Sweep {
        packages.extend(["libzmq5", "libnng1", "strace"]);
    }
    if !packages.is_empty() {
        let mut setup = Command::new("integration/lab");
        setup.arg("setup");
        setup.args(packages.iter().flat_map(|package| ["--package", package]));
        // Ignore the exit status: if a package is missing, the guest reports the missing program.
        setup.status()?;
    }
    let (launch, rounds) = match scope {
        Scope::Full | Scope::Many => (Launch::new(COUNTED, LIMIT), rounds),
        Scope::Hosts => (
            Launch::new("--hosts 2 --memory 2G", QUICK_LIMIT),
            HOSTS_ROUNDS,
        ),
        Scope::Quick | Scope::Polling | Scope::Sweep => (Launch::new(COUNTED, QUICK_LIMIT), rounds),
    };
    let task = Task {
        parts: parts.to_vec(),
        scope,
        rounds,
        only: only.to_vec(),
    };
    let mut report = Report::default();
    run(&task, Some(launch), &mut report)?;
    Ok(report)
}
