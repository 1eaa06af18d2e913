//! What is done on this machine: the lab is started for each part, and what comes back is shown.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;
use toolbox::{Lab, Launch, agent};

use crate::{
    Options,
    budget::{self, Budget},
    conduct::{Conductor, Outcome, Task},
    part::Part,
    program::is_installed,
    report::Report,
    row::Verdict,
};

/// Longer than anything takes that comes to an end.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
const QUICK_LIMIT: Duration = Duration::from_secs(1200);

/// How often the clock is read.
const ROUNDS: u32 = 9;
const QUICK_ROUNDS: u32 = 5;

/// How often what the budget keeps is measured, to keep what is in the middle.
const RENEWAL_ROUNDS: u32 = 3;

/// What is to be done in the lab, as on a command line.
#[derive(Args)]
pub(crate) struct Tasks {
    #[arg(long)]
    part: Vec<Part>,
    #[arg(long)]
    hosts: u8,
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    rounds: u32,
}

impl Tasks {
    /// Host b conducts, with the agent on host a. A host that is alone does both.
    pub(crate) fn perform(&self) -> Result<()> {
        let lab = Lab::find()?;
        if self.hosts == 1 {
            agent::serve_beside();
        } else if lab.host == "a" {
            return agent::serve();
        }
        Conductor::perform(&lab, &self.tasks())
    }

    fn tasks(&self) -> Vec<Task> {
        let task = |part: &Part| Task {
            part: *part,
            hosts: self.hosts,
            quick: self.quick,
            rounds: self.rounds,
        };
        self.part.iter().map(task).collect()
    }

    /// Runs them on hosts of the lab, and adds what they came to.
    fn run(&self, mut launch: Launch, report: &mut Report) -> Result<()> {
        let host = if self.hosts == 1 { "a" } else { "b" };
        let results = match env::var_os("LAB_RESULTS_BASE") {
            Some(base) => PathBuf::from(base),
            None => target().join("lab/results"),
        };
        let results = results.join(host);
        let files = self
            .tasks()
            .into_iter()
            .map(|task| results.join(task.file()));
        let files: Vec<PathBuf> = files.collect();
        for file in &files {
            // Of an earlier run.
            let _ = fs::remove_file(file);
        }
        launch = launch.argument("perform");
        for part in &self.part {
            launch = launch.argument(format!("--part={part}"));
        }
        launch = launch
            .argument(format!("--hosts={}", self.hosts))
            .argument(format!("--rounds={}", self.rounds));
        if self.quick {
            launch = launch.argument("--quick");
        }
        let ended = launch.run_without_names()?;
        for (part, file) in self.part.iter().zip(&files) {
            match fs::read_to_string(file) {
                Ok(text) => report.add(*part, serde_json::from_str::<Outcome>(&text)?),
                Err(_) => report.lacks(format!("{part}: all of it, see above")),
            }
        }
        ensure!(
            ended == ExitCode::SUCCESS,
            "it failed in the lab, see above"
        );
        Ok(())
    }
}

/// Measures these parts, and shows the table.
pub(crate) fn compare(parts: &[Part], options: Options) -> Result<ExitCode> {
    let start = Instant::now();
    let report = measure(parts, options)?;
    println!("\n{}", report.markdown());
    for file in report.write(&target().join("bench"))? {
        println!("bench: {}", file.display());
    }
    println!("bench: it took {} s", start.elapsed().as_secs());
    let missed = options.strict && report.has(Verdict::Missed);
    let bad = missed || report.broken;
    Ok(if bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Measures what the budget has, and compares, or keeps it.
pub(crate) fn budget(renew: bool) -> Result<ExitCode> {
    let start = Instant::now();
    let file = Path::new(budget::FILE);
    let measure = |rounds| {
        let mut report = Report::new();
        measure_counted(
            vec![Part::Counted, Part::Instructions],
            true,
            rounds,
            &mut report,
        )?;
        for what in report.missing() {
            println!("budget: not measured: {what}");
        }
        anyhow::Ok(Budget::of(&report))
    };
    install(&[Part::Instructions], true, &mut Report::new());
    if renew {
        measure(RENEWAL_ROUNDS)?.write(file)?;
        println!("budget: {} is renewed", file.display());
        return Ok(ExitCode::SUCCESS);
    }
    let kept = Budget::read(file)?;
    let mut over = measure(1)?.judge(&kept);
    if !over.is_empty() {
        println!("budget: measured once more, as now and then one differs by chance");
        let again = measure(1)?.judge(&kept);
        over.retain(|path| again.contains(path));
    }
    println!("budget: it took {} s", start.elapsed().as_secs());
    if over.is_empty() {
        println!("budget: kept");
        return Ok(ExitCode::SUCCESS);
    }
    for path in over {
        println!("budget: NOT KEPT: {path}");
    }
    println!(
        "budget: where it is to cost that, integration/bench budget --renew keeps the figures"
    );
    Ok(ExitCode::FAILURE)
}

fn measure(parts: &[Part], options: Options) -> Result<Report> {
    let mut report = Report::new();
    note_load(&mut report)?;
    install(parts, options.quick, &mut report);
    // These two in one guest, which takes some time to start.
    let counted = parts.iter().copied().filter(|part| *part != Part::Clock);
    let counted: Vec<Part> = counted.collect();
    if !counted.is_empty() {
        measure_counted(counted, options.quick, 1, &mut report)?;
    }
    if parts.contains(&Part::Clock) {
        let rounds = if options.quick { QUICK_ROUNDS } else { ROUNDS };
        let rounds = options.rounds.unwrap_or(rounds);
        let hosts = match options.hosts {
            Some(hosts) => hosts..=hosts,
            None if options.quick => 1..=1,
            None => 1..=2,
        };
        for hosts in hosts {
            let tasks = Tasks {
                part: vec![Part::Clock],
                hosts,
                quick: options.quick,
                rounds,
            };
            let memory = if hosts == 1 { "2G" } else { "1G" };
            let launch = Launch::new(hosts, limit(options.quick)).option("--memory", memory);
            tasks.run(launch.native_where_possible()?, &mut report)?;
        }
    }
    Ok(report)
}

fn measure_counted(part: Vec<Part>, quick: bool, rounds: u32, report: &mut Report) -> Result<()> {
    let tasks = Tasks {
        part,
        hosts: 1,
        quick,
        rounds,
    };
    let launch = Launch::counted(limit(quick)).option("--memory", "2G");
    tasks.run(launch, report)
}

fn limit(quick: bool) -> Duration {
    if quick { QUICK_LIMIT } else { LIMIT }
}

fn note_load(report: &mut Report) -> Result<()> {
    let (load, processors) = (
        fs::read_to_string("/proc/loadavg")?,
        available_parallelism()?,
    );
    let load = load.split(' ').next().unwrap_or_default();
    let note = format!("the load of this machine was {load} before, with {processors} processors");
    eprintln!("bench: {note}");
    report.note(note);
    Ok(())
}

/// Has the lab install what only some parts need. What is missing afterwards is found there.
fn install(parts: &[Part], quick: bool, report: &mut Report) {
    let mut wanted = Vec::new();
    if parts.contains(&Part::Instructions) {
        wanted.push(("valgrind", "valgrind"));
    }
    if !quick && (parts.contains(&Part::Clock) || parts.contains(&Part::Counted)) {
        wanted.push(("ucx_perftest", "ucx-utils"));
        wanted.push(("fi_pingpong", "libfabric-bin"));
        wanted.push(("qperf", "qperf"));
    }
    for (command, package) in wanted {
        if is_installed(command) {
            continue;
        }
        let setup = Command::new("integration/lab")
            .args(["setup", "--package", package])
            .status();
        if !setup.is_ok_and(|status| status.success()) {
            report.note(format!("{package} cannot be installed"));
        }
    }
}

/// Cargo's folder, as `integration/tool` takes it.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}
