//! The cost of opening and closing a connection.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use toolbox::Listening;

use crate::{
    conduct::{Conductor, OURS, THEIRS},
    manner::{Manner, Way},
    measure::Measure,
    program::{Commands, Program, Run},
    row::{Side, Target},
};

/// The number of connections.
const CONNECTIONS: u32 = 200;

/// Compares the work of this host for many connections with that for one. Opening and closing wait
/// for timers of the kernel, so their duration is larger than their work.
pub(crate) fn open_and_close(conductor: &mut Conductor) {
    conductor.say("connections that are opened and closed");
    let small = Manner::DEFAULT.with(Way::Event).with(Way::Small);
    let run = |connections| Run {
        program: Program::Rdmsg(Manner {
            connections,
            ..small
        }),
        measure: Measure::Connect,
        size: 0,
        count: 0,
    };
    let name = run(CONNECTIONS).name();
    let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
    for _ in 0..conductor.task.rounds {
        ours.extend(conductor.attempt(&name, OURS, |conductor| {
            each(conductor, |conductor, connections| {
                conductor.commands(&run(connections))
            })
        }));
        theirs.extend(conductor.attempt("ucmatose", THEIRS, |conductor| {
            each(conductor, |conductor, connections| {
                Ok(ucmatose(conductor, connections))
            })
        }));
    }
    if ours.len() == theirs.len() && !ours.is_empty() {
        let side = |name: &str, figures| Side {
            name: name.to_owned(),
            figures,
        };
        let (ours, theirs) = (side(&name, ours), side("ucmatose", theirs));
        conductor.add_row(Measure::Connect, 0, ours, Some(theirs), Target::AtMost(0.8));
    }
}

/// Returns the work of this host for each connection in microseconds.
fn each(
    conductor: &mut Conductor,
    commands: impl Fn(&mut Conductor, u32) -> Result<Commands>,
) -> Result<f64> {
    let mut work_of = |connections| {
        let commands = commands(conductor, connections)?;
        let before = work()?;
        conductor.client_of("connect and close", &commands, conductor.limit)?;
        anyhow::Ok(work()?.saturating_sub(before))
    };
    let (one, more) = (work_of(1)?, work_of(CONNECTIONS + 1)?);
    Ok(more.saturating_sub(one).as_secs_f64() * 1e6 / f64::from(CONNECTIONS))
}

/// Each connection carries one message, because ucmatose does not close it otherwise.
fn ucmatose(conductor: &mut Conductor, connections: u32) -> Commands {
    let port = conductor.port();
    let line = format!("ucmatose -C 1 -S 64 -c {connections} -p {port}");
    let more = format!("-s {}", conductor.address);
    Commands::new(&line, Listening::Cm(port), &more)
}

/// Returns the time since the start of this host in which it did not idle.
fn work() -> Result<Duration> {
    let timers = fs::read_to_string("/proc/timer_list")?;
    let now = nanos(&timers, "now at ")?;
    let idle = nanos(&timers, ".idle_sleeptime :")?;
    Ok(Duration::from_nanos(now.saturating_sub(idle)))
}

/// Returns the number behind a word, on a host with one processor.
fn nanos(timers: &str, word: &str) -> Result<u64> {
    let rest = timers.split_once(word).map(|(_, rest)| rest);
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("the kernel does not tell {word:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tells_nanoseconds() {
        let timers = "Timer List Version: v0.9\nnow at 2739730090 nsecs\n\n\
                      cpu: 0\n  .nohz_mode      : 2\n  .idle_sleeptime : 197603205 nsecs\n";
        assert_eq!(nanos(timers, "now at ").unwrap(), 2_739_730_090);
        assert_eq!(nanos(timers, ".idle_sleeptime :").unwrap(), 197_603_205);
        assert!(nanos(timers, "idle_calls").is_err());
    }
}
