//! All scenarios, one after the other, and the table.

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};
use toolbox::{Lab, agent};

use crate::{Choice, conduct::Conductor, scenario::Scenario, scenarios};

/// How many problems of a scenario are shown: with many connections they are many, and alike.
const MOST_PROBLEMS: usize = 30;

#[derive(Debug)]
struct Row {
    scenario: Scenario,
    seen: String,
    seconds: f64,
    passed: bool,
}

/// The scenarios that are wanted.
pub(crate) fn chosen(choice: &Choice) -> Result<Vec<Scenario>> {
    let named = |scenario: &Scenario| {
        let mut only = choice.only.iter();
        choice.only.is_empty() || only.any(|only| scenario.name.starts_with(only))
    };
    let wanted = |scenario: &Scenario| (!choice.quick || scenario.quick) && named(scenario);
    let chosen: Vec<_> = scenarios::all().into_iter().filter(wanted).collect();
    ensure!(
        !chosen.is_empty(),
        "there is no such scenario; --list tells which there are"
    );
    Ok(chosen)
}

/// Prints what there is.
pub(crate) fn list(choice: &Choice) -> Result<()> {
    for scenario in chosen(choice)? {
        let quick = if scenario.quick { "quick" } else { "" };
        println!(
            "{:<24} {:<60} {:<52} {quick}",
            scenario.name,
            scenario.traffic(),
            scenario.fault.to_string()
        );
    }
    Ok(())
}

/// Plays all, from host a.
pub(crate) fn run(choice: &Choice, lab: &Lab) -> Result<ExitCode> {
    let seed = choice.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    agent::serve_beside();
    let mut conductor = Conductor::new(lab, seed)?;
    let mut rows = Vec::new();
    for scenario in chosen(choice)? {
        if let Some(capability) = scenario.lacks(lab) {
            let name = scenario.name;
            println!("faults: {name} does not apply: the device lacks {capability}");
            continue;
        }
        let start = Instant::now();
        let result = conductor.run(lab, &scenario);
        let seconds = start.elapsed().as_secs_f64();
        let passed = result.is_ok();
        let (seen, problems) = match result {
            Ok(seen) => (seen, Vec::new()),
            Err(problems) => ("see above".to_owned(), problems),
        };
        let verdict = if passed { "ok" } else { "FAILED" };
        println!(
            "faults: {}: {verdict}, {seen}, {seconds:.1} s",
            scenario.name
        );
        for problem in problems.iter().take(MOST_PROBLEMS) {
            println!("    {problem}");
        }
        if let more @ 1.. = problems.len().saturating_sub(MOST_PROBLEMS) {
            println!("    and {more} more like these");
        }
        rows.push(Row {
            scenario,
            seen,
            seconds,
            passed,
        });
    }
    conductor.quit()?;
    table(&rows);
    let failed = rows.iter().filter(|row| !row.passed).count();
    println!(
        "\nfaults: {} of {} scenarios passed, seed {seed}",
        rows.len() - failed,
        rows.len()
    );
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn table(rows: &[Row]) {
    let head = ["scenario", "traffic", "fault", "seen"].map(str::to_owned);
    let lines = rows.iter().map(|row| {
        let Row { scenario, seen, .. } = row;
        let fault = scenario.fault.to_string();
        let cells = [
            scenario.name.to_owned(),
            scenario.traffic(),
            fault,
            seen.clone(),
        ];
        let verdict = if row.passed { "ok" } else { "FAILED" };
        (cells, format!("{:.1}", row.seconds), verdict)
    });
    let lines: Vec<_> = [(head, "seconds".to_owned(), "verdict")]
        .into_iter()
        .chain(lines)
        .collect();
    let widths: Vec<_> = (0..4)
        .map(|at| {
            lines
                .iter()
                .map(|(cells, ..)| cells[at].len())
                .max()
                .unwrap_or(0)
        })
        .collect();
    println!();
    for (cells, seconds, verdict) in lines {
        for (cell, width) in cells.iter().zip(&widths) {
            print!("{cell:<width$}  ");
        }
        println!("{seconds:>7}  {verdict}");
    }
}
