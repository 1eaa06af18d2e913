//! Measures the parts of a benchmark in the lab or on this machine, and prints the results.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use toolbox::Launch;

use crate::{
    budget::{self, Budget},
    conduct::{self, REPORT},
    plan::Task,
    program::argv,
    report::Report,
    row::{Part, Row},
};

/// The time limits for a long and for a quick measurement in the lab. They stop a measurement that
/// hangs.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
const QUICK_LIMIT: Duration = Duration::from_secs(1200);

/// The lab's options that start a guest whose clock counts instructions.
const COUNTED: &str = "--counted --memory 2G";

/// The number of rounds for a new budget. The budget stores the medians of these rounds.
const RENEWAL_ROUNDS: u32 = 3;

/// Performs the tasks in a guest, or on this machine if `guest` is `None`.
fn run(tasks: &[Task], guest: Option<Launch>) -> Result<Report> {
    let start = Instant::now();
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let results = if let Some(launch) = guest {
        let arguments = argv("perform", tasks)?.split_off(1);
        let status = launch.arguments(arguments).run_without_names()?;
        let succeeded = status == ExitCode::SUCCESS;
        ensure!(succeeded, "the measurement failed, see above");
        let base = env::var_os("LAB_RESULTS_BASE").map(PathBuf::from);
        base.unwrap_or_else(|| target.join("lab/results")).join("a")
    } else {
        let results = target.join("bench");
        fs::create_dir_all(&results)?;
        conduct::perform(tasks, &results, None)?;
        results
    };
    println!(
        "bench: the measurement took {} s",
        start.elapsed().as_secs()
    );
    Ok(serde_json::from_slice(&fs::read(results.join(REPORT))?)?)
}

/// Performs the tasks in the lab. Starts the lab only once for all tasks, because a guest takes a
/// long time to boot.
fn measure(tasks: &[Task]) -> Result<Report> {
    let guest = if tasks.iter().any(|task| task.part == Part::Hosts) {
        "--hosts 2 --memory 2G"
    } else {
        let packages = ["valgrind", "libzmq5", "libnng1", "strace"];
        let options = packages.iter().flat_map(|package| ["--package", package]);
        // Ignore the exit status: if a package is missing, the guest reports the missing program.
        let mut lab = Command::new("integration/lab");
        lab.arg("setup").args(options).status()?;
        COUNTED
    };
    let is_short = |task: &Task| task.quick || ["hosts", "sweep"].contains(&&*task.rows);
    let limit = match tasks.iter().all(is_short) {
        true => QUICK_LIMIT,
        false => LIMIT,
    };
    run(tasks, Some(Launch::new(guest, limit)))
}

/// Performs the tasks, and prints the table.
pub(crate) fn compare(tasks: &[Task], write: bool) -> Result<ExitCode> {
    let report = measure(tasks)?;
    for task in tasks.iter().filter(|_| write) {
        report.write_page(&task.rows, &[task.part])?;
    }
    report.print();
    Ok(u8::from(report.broken).into())
}

/// Compares the default way of waiting with the other ways, and prints the table.
pub(crate) fn polling(lab: bool, write: bool) -> Result<ExitCode> {
    let here = [
        Task::new(Part::OneProcessor, "polling one-processor"),
        Task::new(Part::Loaded, "polling loaded"),
        Task::new(Part::Free, "polling free"),
    ];
    let mut report = run(&here, None)?;
    if lab {
        let counted = Launch::new(COUNTED, QUICK_LIMIT);
        let task = Task::new(Part::Counted, "polling counted");
        report.add(run(&[task], Some(counted))?);
        let free = Launch::new("--memory 2G", QUICK_LIMIT).native_where_possible()?;
        let task = Task::new(Part::Free, "polling free rdma");
        report.add(run(&[task], Some(free))?);
    }
    if write {
        let parts = [Part::OneProcessor, Part::Loaded, Part::Free, Part::Counted];
        report.write_page("polling", &parts)?;
    }
    report.print();
    Ok(u8::from(report.broken).into())
}

/// Measures the cost of many message sizes in the lab, and prints the table.
pub(crate) fn sweep(write: bool) -> Result<ExitCode> {
    let report = measure(&[Task::new(Part::Counted, "sweep")])?;
    if write {
        report.write_sweeps()?;
    }
    report.print_sweeps();
    report.print();
    let failed = report.broken || report.rows.iter().any(Row::is_missed);
    Ok(u8::from(failed).into())
}

/// Measures the comparisons of the budget. If `renew` is set, stores the new figures. Otherwise
/// compares the new figures with the stored figures.
pub(crate) fn budget(renew: bool) -> Result<ExitCode> {
    let file = Path::new(budget::FILE);
    let budget = |rounds| {
        let task = |part, rows: &str| Task {
            quick: true,
            rounds,
            ..Task::new(part, rows)
        };
        let report = measure(&[
            task(Part::Counted, "counted"),
            task(Part::Instructions, "instructions"),
        ])?;
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
