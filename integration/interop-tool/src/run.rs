use std::{fmt::Write, time::Duration};

use anyhow::{Result, bail};
use toolbox::{Deadline, Ended, Process, Side as End, agent::Host};

use crate::case::{Case, Cue, Ends, Language, Side};

/// The time for which a server with [`Ends::WhenKilled`] must continue to run after its clients
/// have ended. The test then kills the server. If the server ends earlier, the case fails.
const LINGER: Duration = Duration::from_millis(200);

/// The last line of a C program whose second thread reads the event channel after the main thread
/// has destroyed it. The program then exits with status 255, even if the main thread has succeeded.
/// `rping` of Debian 12 has this fault.
const CHANNEL_DESTROYED: &str = "rdma_get_cm_event: Bad file descriptor";

/// The maximum number of runs of a case.
const RUNS: u32 = 3;

/// A case that has run: its sides, how they have ended, and the problems that its run has found.
struct Outcome<'a> {
    sides: Vec<(End, &'a Side, Ended)>,
    problems: String,
}

/// Runs a case. If [a fault of a C program](CHANNEL_DESTROYED) hides the result, prints a line and
/// runs the case again, up to [`RUNS`] runs in total. All programs of the case have ended when this
/// function returns.
pub(crate) fn run(case: &Case, agent: &mut Host) -> Result<()> {
    let mut outcome = run_once(case, agent)?;
    for _ in 1..RUNS {
        if !outcome.sides.iter().any(has_destroyed_channel) {
            break;
        }
        println!("  a C program has read its destroyed event channel; the case runs again");
        outcome = run_once(case, agent)?;
    }
    report(outcome)
}

fn has_destroyed_channel((_, side, ended): &(End, &Side, Ended)) -> bool {
    side.language == Language::C
        && ended.status == Some(255)
        && ended.output.lines().last() == Some(CHANNEL_DESTROYED)
}

fn run_once<'a>(case: &'a Case, agent: &mut Host) -> Result<Outcome<'a>> {
    agent.start(&case.server.argv)?;
    if let Some(listening) = case.ready {
        // `false` means that the server has ended. Ignore this result, because `check` reports how
        // the server has ended.
        agent.listens(listening)?;
    }
    let mut stage = Stage {
        case,
        agent,
        limit: Duration::from_secs(case.seconds),
        server: None,
        problems: String::new(),
    };
    let at_once = if case.concurrently {
        case.clients.len()
    } else {
        1
    };
    let mut sides = Vec::new();
    for clients in case.clients.chunks(at_once) {
        let start = |client: &Side| Process::start(&client.argv);
        let processes = clients.iter().map(start).collect::<Result<Vec<_>>>()?;
        for (client, process) in clients.iter().zip(processes) {
            sides.push((End::Client, client, stage.client(client, process)?));
        }
    }
    sides.insert(0, (End::Server, &case.server, stage.server()?));
    Ok(Outcome {
        sides,
        problems: stage.problems,
    })
}

fn report(outcome: Outcome<'_>) -> Result<()> {
    let Outcome {
        sides,
        mut problems,
    } = outcome;
    for (name, side, ended) in &sides {
        if let Err(problem) = check(side, ended) {
            writeln!(problems, "  the {name} {problem}")?;
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    for (name, side, ended) in &sides {
        writeln!(problems, "  the {name}, {}, printed:", side.argv.join(" "))?;
        for line in ended.output.lines() {
            writeln!(problems, "    {line}")?;
        }
    }
    bail!(problems)
}

/// A case that is running.
struct Stage<'a> {
    case: &'a Case,
    agent: &'a mut Host,
    /// The time limit for each side. `Deadline` extends it on a slow machine.
    limit: Duration,
    /// The exit status and output of the server, if it has ended before its clients.
    server: Option<Ended>,
    problems: String,
}

impl Stage<'_> {
    /// Waits until the client has ended. If a side is killed on an event, kills this side when the
    /// event occurs. If the client has no such event but must run until it is killed, kills the
    /// client after the server has ended.
    fn client(&mut self, client: &Side, mut process: Process) -> Result<Ended> {
        if let Ends::WhenKilled(Some(cue)) = &self.case.server.ends {
            self.wait_for_cue(End::Server, cue, &mut process)?;
            self.server = Some(self.agent.finish(Duration::ZERO)?);
        }
        match &client.ends {
            Ends::Success | Ends::Failure | Ends::AnyStatus => return process.finish(self.limit),
            // The client runs until it is killed, so wait for the end of the server first.
            Ends::WhenKilled(None) => self.server = Some(self.agent.finish(self.limit)?),
            Ends::WhenKilled(Some(cue)) => self.wait_for_cue(End::Client, cue, &mut process)?,
        }
        process.finish(Duration::ZERO)
    }

    /// Waits until one of the programs prints the text of `cue`. The caller then kills the program
    /// on the side `end`.
    fn wait_for_cue(&mut self, end: End, cue: &Cue, client: &mut Process) -> Result<()> {
        let (speaker, text) = match cue {
            Cue::PrintedByThisSide(text) => (end, text),
            Cue::PrintedByOtherSide(text) => (end.other(), text),
        };
        let is_printed = match speaker {
            End::Server => self.agent.wait_for_text(text, self.limit)?,
            End::Client => client.wait_for_text(text, self.limit),
        };
        if !is_printed {
            let problem =
                format!("the {end} was to be killed, but the {speaker} did not print {text:?}");
            writeln!(self.problems, "  {problem}")?;
        }
        Ok(())
    }

    /// Waits until the server has ended. Kills the server if the case specifies
    /// [`Ends::WhenKilled`].
    fn server(&mut self) -> Result<Ended> {
        if let Some(ended) = self.server.take() {
            return Ok(ended);
        }
        let side = &self.case.server;
        let Ends::WhenKilled(_) = side.ends else {
            return self.agent.finish(self.limit);
        };
        for text in &side.says {
            // Ignore the result, because `check` reports each text that is missing.
            self.agent.wait_for_text(text, self.limit)?;
        }
        self.agent.finish(Deadline::exactly_after(LINGER))
    }
}

fn check(side: &Side, ended: &Ended) -> Result<(), String> {
    let as_it_should = match (&side.ends, ended.status) {
        (Ends::Success, status) => status == Some(0),
        (Ends::Failure, status) => {
            status.is_some_and(|status| status != 0 && status < 128 || status == 255)
        }
        (Ends::AnyStatus, status) => status.is_some(),
        (Ends::WhenKilled(_), status) => status.is_none(),
    };
    let missing = side.says.iter().find(|text| !ended.output.contains(*text));
    match (ended.status, missing) {
        (Some(status), _) if !as_it_should => Err(format!("ended with status {status}")),
        (None, _) if !as_it_should => Err("did not end".to_owned()),
        (_, Some(missing)) => Err(format!("did not print {missing:?}")),
        (_, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fault_of_c_program_repeats_case() {
        let repeats = |language, status, output: &str| {
            let side = Side {
                language,
                argv: Vec::new(),
                ends: Ends::Success,
                says: Vec::new(),
            };
            let output = output.to_owned();
            let status = Some(status);
            has_destroyed_channel(&(End::Client, &side, Ended { status, output }))
        };
        let fault = "client DISCONNECT EVENT...\nrdma_get_cm_event: Bad file descriptor\n";
        assert!(repeats(Language::C, 255, fault));
        assert!(!repeats(Language::Rust, 255, fault));
        assert!(!repeats(Language::C, 0, fault));
        assert!(!repeats(
            Language::C,
            255,
            "wait for RDMA_WRITE_ADV state 10\n"
        ));
    }
}
