//! What is done on this machine: the lab is started for each part, and what comes back is shown.

use std::{
    env, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use toolbox::{Lab, Launch, agent};

use crate::{
    Options, PollingOptions,
    budget::{self, Budget},
    conduct::{Conductor, Outcome, Site, Task},
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

/// How often it is read of the ways to wait.
const POLLING_ROUNDS: u32 = 7;

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
    polling: bool,
    #[arg(long)]
    rounds: u32,
    /// The folder for outcomes, if this is no lab.
    #[arg(long)]
    here: Option<PathBuf>,
}

impl Tasks {
    /// Host b conducts, with the agent on host a. A host that is alone does both.
    pub(crate) fn perform(&self) -> Result<()> {
        if let Some(results) = &self.here {
            return self.perform_here(results);
        }
        let lab = Lab::find()?;
        if self.hosts == 1 {
            agent::serve_beside();
        } else if lab.host == "a" {
            return agent::serve();
        }
        let site = Site {
            address: if self.hosts == 1 { lab.addr } else { lab.peer },
            device: Some(lab.device),
            results: lab.results,
        };
        Conductor::perform(&site, &self.tasks())
    }

    fn perform_here(&self, results: &Path) -> Result<()> {
        if self.part.contains(&Part::OneProcessor) {
            stay_on_one_processor()?;
        }
        agent::serve_beside();
        let site = Site {
            address: Ipv4Addr::LOCALHOST.into(),
            device: None,
            results: results.to_owned(),
        };
        Conductor::perform(&site, &self.tasks())
    }

    fn tasks(&self) -> Vec<Task> {
        let task = |part: &Part| Task {
            part: *part,
            hosts: self.hosts,
            quick: self.quick,
            polling: self.polling,
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
        for argument in self.arguments() {
            launch = launch.argument(argument);
        }
        self.add(&results, report, || launch.run_without_names())
    }

    /// Runs them on this machine, without a lab, and adds what they came to.
    fn run_here(mut self, report: &mut Report) -> Result<()> {
        let results = target().join("bench/here");
        fs::create_dir_all(&results)?;
        self.here = Some(results.clone());
        self.add(&results, report, || {
            let ended = Command::new(env::current_exe()?)
                .args(self.arguments())
                .status()?;
            Ok(if ended.success() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        })
    }

    /// This program's arguments for them.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["perform".to_owned()];
        arguments.extend(self.part.iter().map(|part| format!("--part={part}")));
        arguments.push(format!("--hosts={}", self.hosts));
        arguments.push(format!("--rounds={}", self.rounds));
        for (set, flag) in [(self.quick, "--quick"), (self.polling, "--polling")] {
            arguments.extend(set.then(|| flag.to_owned()));
        }
        let here = self.here.iter();
        arguments.extend(here.map(|results| format!("--here={}", results.display())));
        arguments
    }

    /// Runs them, and adds what they leave in the folder.
    fn add(
        &self,
        results: &Path,
        report: &mut Report,
        run: impl FnOnce() -> Result<ExitCode>,
    ) -> Result<()> {
        let files = self
            .tasks()
            .into_iter()
            .map(|task| results.join(task.file()));
        let files: Vec<PathBuf> = files.collect();
        for file in &files {
            // Of an earlier run.
            let _ = fs::remove_file(file);
        }
        let ended = run()?;
        for (part, file) in self.part.iter().zip(&files) {
            match fs::read_to_string(file) {
                Ok(text) => report.add(*part, serde_json::from_str::<Outcome>(&text)?),
                Err(_) => report.lacks(format!("{part}: all of it, see above")),
            }
        }
        ensure!(ended == ExitCode::SUCCESS, "it failed, see above");
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
    Ok(end(&report, options.strict, start))
}

/// Measures how the default configuration waits, beside the other ways, and shows the table.
pub(crate) fn polling(options: PollingOptions) -> Result<ExitCode> {
    let start = Instant::now();
    let rounds = options.rounds.unwrap_or(POLLING_ROUNDS);
    let mut report = Report::new();
    note_load(&mut report)?;
    let tasks = |part, rounds| Tasks {
        part: vec![part],
        hosts: 1,
        quick: true,
        polling: true,
        rounds,
        here: None,
    };
    for part in [Part::OneProcessor, Part::Loaded, Part::Clock] {
        tasks(part, rounds).run_here(&mut report)?;
    }
    if !options.no_lab {
        let counted = Launch::counted(QUICK_LIMIT).option("--memory", "2G");
        tasks(Part::Counted, 1).run(counted, &mut report)?;
        let clock = Launch::new(1, QUICK_LIMIT).option("--memory", "2G");
        tasks(Part::Clock, rounds).run(clock.native_where_possible()?, &mut report)?;
    }
    println!("\n{}", report.markdown());
    Ok(end(&report, options.strict, start))
}

fn end(report: &Report, strict: bool, start: Instant) -> ExitCode {
    println!("bench: it took {} s", start.elapsed().as_secs());
    let missed = strict && report.has(Verdict::Missed);
    if missed || report.broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Leaves this thread, and all that it starts, the last of its processors: the first one has most
/// of the interrupts.
fn stay_on_one_processor() -> Result<()> {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this)?;
    let is_ours = |cpu: &usize| all.is_set(*cpu).unwrap_or(false);
    let last = (0..CpuSet::count()).rfind(is_ours);
    let mut one = CpuSet::new();
    one.set(last.context("this process has no processor")?)?;
    Ok(sched_setaffinity(this, &one)?)
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
                polling: false,
                rounds,
                here: None,
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
        polling: false,
        rounds,
        here: None,
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
