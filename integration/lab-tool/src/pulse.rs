//! Detects machines that have stopped. If the heartbeats of a machine are missing, the lab queries
//! QEMU's monitor. The machine has stopped if its virtual processors make no progress, or if the
//! monitor does not answer.

use std::{
    fs,
    io::Write,
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use hosts::wire::Frame;
use serde_json::{Deserializer, Value, json};

use crate::watch::{HostEvent, Stop};

/// The time without a heartbeat after which the lab queries QEMU's monitor. It is four heartbeat
/// intervals.
const SILENCE: Duration = Duration::from_secs(20);

/// The time between two readings of the registers.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The minimum processor time that a runnable guest must get between two readings. If it gets less,
/// unchanged registers do not prove that the guest has stopped: this machine may be too busy.
const MIN_PROCESSOR_TIME: Duration = Duration::from_millis(500);

/// The time limit for an answer of QEMU's monitor, which usually answers within 1 ms.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// A reading of a machine's state from outside of the machine.
#[derive(Clone, Debug, Default)]
struct Observation {
    /// The registers of all virtual processors, or `None` if the monitor does not answer.
    registers: Option<String>,
    /// The processor time that all of QEMU's threads have used so far.
    ran: Duration,
    /// Whether a thread of QEMU is running or waiting for a processor.
    runnable: bool,
    /// The reading as text. It is printed if the machine has stopped.
    report: String,
}

/// Watches the machine of a host, and sends changes of its state to `news`. Returns when the agent
/// has closed the port, or when the machine has stopped. `reports` receives the frames of the
/// agent, and `pid` is the process id of QEMU.
pub(crate) fn watch_over(
    host: usize,
    pid: u32,
    monitor: &UnixStream,
    reports: &Receiver<Frame>,
    news: &Sender<HostEvent>,
) {
    let mut before: Option<Observation> = None;
    let mut verdict: Option<Stop> = None;
    let mut is_ready = false;
    loop {
        let time_limit = match (&verdict, &before) {
            // The machine has probably stopped. Check once more, without waiting, whether a
            // heartbeat has arrived.
            (Some(_), _) => Duration::ZERO,
            (None, Some(_)) => CHECK_INTERVAL,
            (None, None) => SILENCE,
        };
        // Ignore the error: sending fails if the main thread has already ended.
        let _ = match reports.recv_timeout(time_limit) {
            Ok(Frame::Ready) => {
                is_ready = true;
                news.send(HostEvent::Ready(host))
            }
            Ok(Frame::Beat) => Ok(()),
            Ok(Frame::Failed(why)) => news.send(HostEvent::Stop(Stop::Lost { host, why })),
            Ok(other) => news.send(HostEvent::Stop(Stop::unexpected(host, &other))),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(stop) = verdict {
                    let _ = news.send(HostEvent::Stop(stop));
                    return;
                }
                let now = observe(pid, monitor);
                verdict = before.replace(now.clone()).and_then(|before| {
                    let why = stopped(&before, &now)?;
                    let monitor = before.report + &now.report;
                    Some(Stop::Unresponsive { host, why, monitor })
                });
                continue;
            }
            // Report nothing: the thread that reads the command's frames reports that the
            // connection has ended.
            Err(RecvTimeoutError::Disconnected) if is_ready => return,
            Err(RecvTimeoutError::Disconnected) => {
                let _ = news.send(HostEvent::Stop(Stop::ended(host)));
                return;
            }
        };
        (before, verdict) = (None, None);
    }
}

fn observe(pid: u32, monitor: &UnixStream) -> Observation {
    let mut observation = Observation::default();
    for line in ["info status", "info cpus", "info registers -a"] {
        let answer = ask(monitor, line);
        let text = answer
            .as_ref()
            .map_or_else(|error| format!("{error:#}\n"), String::clone);
        observation.report += &format!("--- monitor: {line} ---\n{text}");
        observation.registers = answer.ok();
    }
    observation.report += "--- threads: name, state, processor time in ms ---\n";
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let (name, stat, times) = (read("comm"), read("stat"), read("schedstat"));
        let (state, ran) = (state(&stat), ran(&times));
        observation.runnable |= state == 'R';
        observation.ran += ran;
        observation.report += &format!("{} {state} {}\n", name.trim(), ran.as_millis());
    }
    observation
}

/// Sends `line` to QEMU as a command of the human monitor, and returns the answer.
fn ask(mut monitor: &UnixStream, line: &str) -> Result<String> {
    monitor.set_read_timeout(Some(TIME_LIMIT))?;
    monitor.set_write_timeout(Some(TIME_LIMIT))?;
    let id = format!("{:?}", Instant::now());
    // QEMU accepts this command only once, and rejects it afterwards, which does no harm.
    writeln!(monitor, "{}", json!({"execute": "qmp_capabilities"}))?;
    let command = json!({"execute": "human-monitor-command", "id": id,
        "arguments": {"command-line": line}});
    writeln!(monitor, "{command}")?;
    // Skip other messages: the greeting, events, and late answers to earlier requests.
    for message in Deserializer::from_reader(monitor).into_iter::<Value>() {
        let message = message?;
        match message["return"].as_str() {
            Some(answer) if message["id"] == id => return Ok(answer.replace('\r', "")),
            _ => {}
        }
    }
    bail!("QEMU has closed the monitor")
}

/// Compares two readings. If they show that the machine has stopped, returns the reason.
fn stopped(before: &Observation, now: &Observation) -> Option<&'static str> {
    let ran = now.ran.saturating_sub(before.ran);
    if now.runnable && ran < MIN_PROCESSOR_TIME {
        // This machine is too busy to run the guest, so unchanged registers prove nothing.
        return None;
    }
    match (&before.registers, &now.registers) {
        (Some(before), Some(now)) if make_no_progress(before, now) => {
            Some("its virtual processors make no progress")
        }
        (None, None) => Some("its monitor does not answer"),
        (_, _) => None,
    }
}

/// Returns true if the machine makes no progress. This is the case if all virtual processors have
/// unchanged registers, or if one of them is not halted and has unchanged registers.
fn make_no_progress(before: &str, now: &str) -> bool {
    let one_each = before.split("CPU#").zip(now.split("CPU#"));
    let is_stuck = |(before, now): (&str, &str)| before == now && now.contains("HLT=0");
    before == now || one_each.skip(1).any(is_stuck)
}

/// Returns the state of a thread from /proc/…/stat. The state follows the thread's name, which is
/// in parentheses and can contain any character.
fn state(stat: &str) -> char {
    let after = stat.rsplit_once(") ");
    after
        .and_then(|(_, rest)| rest.chars().next())
        .unwrap_or('?')
}

/// Returns the processor time that a thread has used so far, from /proc/…/schedstat.
fn ran(times: &str) -> Duration {
    let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        thread,
    };

    use super::*;

    #[test]
    fn an_answer_is_found_among_other_messages() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let mut to = theirs.try_clone().unwrap();
            writeln!(to, r#"{{"QMP": {{"version": {{}}}}}}"#).unwrap();
            for line in BufReader::new(theirs).lines().take(2) {
                let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
                writeln!(to, r#"{{"event": "STOP"}}"#).unwrap();
                writeln!(to, r#"{{"return": "late", "id": 1}}"#).unwrap();
                let answer = json!({"return": "RIP=1\r\n", "id": request["id"]});
                writeln!(to, "{answer}").unwrap();
            }
        });
        assert_eq!(ask(&ours, "info registers").unwrap(), "RIP=1\n");
        qemu.join().unwrap();
        assert!(
            ask(&ours, "info registers").is_err(),
            "a request must fail after QEMU has closed the monitor"
        );
    }

    fn observation(registers: Option<&str>, ran: u64, runnable: bool) -> Observation {
        Observation {
            registers: registers.map(str::to_owned),
            ran: Duration::from_millis(ran),
            runnable,
            report: String::new(),
        }
    }

    #[test]
    fn a_halted_processor_that_stays_so_has_stopped() {
        let [before, now] = [100, 110].map(|ran| observation(Some("RIP=1 HLT=1"), ran, false));
        let why = stopped(&before, &now).unwrap();
        assert!(why.contains("no progress"), "{why}");
    }

    #[test]
    fn a_processor_that_spins_in_one_place_has_stopped() {
        let [before, now] = [100, 9_000].map(|ran| observation(Some("RIP=1"), ran, true));
        assert!(stopped(&before, &now).is_some());
    }

    #[test]
    fn one_processor_of_two_may_be_halted_or_stop() {
        let two = |first: &str, second: &str| {
            let registers = format!("\nCPU#0\nRIP={first}\n\nCPU#1\nRIP={second}\n");
            observation(Some(&registers), 100, false)
        };
        let before = two("1 HLT=0", "7 HLT=1");
        assert!(stopped(&before, &two("2 HLT=0", "7 HLT=1")).is_none());
        let before = two("1 HLT=0", "7 HLT=0");
        assert!(stopped(&before, &two("2 HLT=0", "7 HLT=0")).is_some());
    }

    #[test]
    fn a_silent_monitor_is_noticed() {
        let [before, now] = [100, 100].map(|ran| observation(None, ran, false));
        let why = stopped(&before, &now).unwrap();
        assert!(why.contains("monitor"), "{why}");
        assert!(stopped(&before, &observation(Some("RIP=1"), 100, false)).is_none());
    }

    #[test]
    fn a_processor_that_goes_on_has_not_stopped() {
        let before = observation(Some("RIP=1"), 100, true);
        assert!(stopped(&before, &observation(Some("RIP=2"), 9_000, true)).is_none());
    }

    #[test]
    fn a_machine_without_a_chance_to_run_has_not_stopped() {
        for registers in [Some("RIP=1"), None] {
            let [before, now] = [100, 400].map(|ran| observation(registers, ran, true));
            assert!(stopped(&before, &now).is_none());
        }
    }

    #[test]
    fn the_state_of_a_thread_stands_behind_its_name() {
        assert_eq!(state("17 (CPU 0) /TCG) R 1 17"), 'R');
        assert_eq!(state(""), '?');
        assert_eq!(ran("2500000 7 3\n"), Duration::from_micros(2500));
    }
}
