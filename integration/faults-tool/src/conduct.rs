//! Host a's conductor: plays a scenario on both hosts, and has what they saw judged.

use std::{
    net::{Ipv4Addr, SocketAddr},
    thread,
    time::Duration,
};

use anyhow::Result;
use toolbox::{Ended, Lab, clock_millis, slowness};

use crate::{
    host::Host,
    judge::{Evidence, Fate, judge},
    network,
    scenario::{Fault, Scenario},
    worker::JOURNAL,
};

/// How long a side may take to do what it is told, on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a bound allows beside what the configuration says.
const SLACK: Duration = Duration::from_secs(5);

/// The two hosts, and how slow they are.
#[derive(Debug)]
pub(crate) struct Conductor {
    a: Host,
    b: Host,
    seed: u64,
    /// By how much longer all takes than on an idle machine, at the begin or the end of the
    /// scenario: at least 1.
    slowness: f64,
}

/// What a play left behind for the judge, beside the books that the hosts have.
struct Play {
    fate: Fate,
    began: [u64; 2],
}

impl Conductor {
    pub(crate) fn new(lab: &Lab, seed: u64) -> Result<Self> {
        Ok(Self {
            a: Host::connect("a", Ipv4Addr::LOCALHOST.into())?,
            b: Host::connect("b", lab.peer)?,
            seed,
            slowness: 1.0,
        })
    }

    /// Plays a scenario. What was seen in it, or what was wrong.
    pub(crate) fn run(&mut self, lab: &Lab, scenario: &Scenario) -> Result<String, Vec<String>> {
        self.slowness = slowness();
        let played = self.play(lab, scenario);
        self.slowness = self.slowness.max(slowness());
        let play = match played {
            Ok(play) => play,
            Err(error) => {
                let mut problems = vec![format!("{error:#}")];
                self.quit_workers(scenario);
                problems.extend(self.told());
                self.clear_up(scenario, &mut problems);
                problems.extend(self.report());
                return Err(problems);
            }
        };
        let mut problems = Vec::new();
        self.clear_up(scenario, &mut problems);
        let evidence = Evidence {
            clients: self.a.notes.books.clone(),
            servers: self.b.notes.books.clone(),
            fate: play.fate,
            began: play.began,
            bound: self.bound(scenario),
        };
        let judged = judge(scenario, &evidence);
        for (host, whole) in [(&self.a, true), (&self.b, play.fate == Fate::Whole)] {
            let ended = host.notes.ended.as_ref();
            if whole && !ended.is_some_and(Ended::succeeded) {
                let how = ended.map_or_else(|| "not at all".to_owned(), Ended::to_string);
                problems.push(format!("host {}: its worker ended: {how}", host.name));
            }
        }
        problems.extend(self.told());
        match judged {
            Ok(seen) if problems.is_empty() => Ok(seen),
            Ok(_) => {
                problems.extend(self.report());
                Err(problems)
            }
            Err(found) => {
                problems.extend(found);
                problems.extend(self.report());
                Err(problems)
            }
        }
    }

    /// In which time a side must know of an end.
    fn bound(&self, scenario: &Scenario) -> Duration {
        let config = scenario.effective_config();
        let interval = config.keepalive_interval.unwrap_or_default();
        let slack = match scenario.fault {
            // Its device goes on without it, and what that still serves is a sign of life.
            Fault::ProcessStopped(_) => 2 * SLACK,
            _ => SLACK,
        };
        interval + config.keepalive_timeout + slack.mul_f64(self.slowness)
    }

    fn play(&mut self, lab: &Lab, scenario: &Scenario) -> Result<Play> {
        let mut server = lab.peer;
        match scenario.fault {
            Fault::Network(netem) => self.impair(netem)?,
            Fault::AddressChanged => {
                server = network::SECOND_ADDRESS.parse()?;
                self.a.shell(&network::add_address("10.8.1.1"))?;
                self.b
                    .shell(&network::add_address(network::SECOND_ADDRESS))?;
            }
            _ => {}
        }
        let seed = self.seed;
        let start = |host: &mut Host, more: &[String]| {
            let mut args = vec![
                format!("--scenario={}", scenario.name),
                format!("--seed={seed}"),
            ];
            args.extend_from_slice(more);
            host.start(&args)
        };
        // Both get ready at the same time, which is what takes the longest.
        start(&mut self.a, &[])?;
        let mut more = vec![format!("--listen={server}:0")];
        if scenario.fault == Fault::ProcessKilled {
            more.push(format!("--journal={JOURNAL}"));
        }
        start(&mut self.b, &more)?;
        self.b
            .wait("listening", PATIENCE, |notes| notes.port.is_some())?;
        let port = self.b.notes.port.unwrap_or_default();
        self.a.tell(&format!("connect {server}:{port}"))?;
        self.a
            .wait("flowing", 2 * PATIENCE, |notes| notes.flowing)?;
        self.b.wait("flowing", PATIENCE, |notes| notes.flowing)?;
        self.tell_both("go")?;
        thread::sleep(scenario.flow);
        self.strike(scenario, SocketAddr::new(server, port))
    }

    /// Has happen what goes wrong, and waits for the end of both sides.
    fn strike(&mut self, scenario: &Scenario, server: SocketAddr) -> Result<Play> {
        let mut began = [clock_millis(); 2];
        let mut fate = Fate::Whole;
        match scenario.fault {
            Fault::Nothing | Fault::Network(_) => self.stop()?,
            Fault::Swallowed(time) => {
                began = self.impair_both("loss 100%")?;
                thread::sleep(time);
                self.repair()?;
                self.stop()?;
            }
            Fault::SwallowedWhileClosing(time) => {
                began = self.impair_both("loss 100%")?;
                self.stop()?;
                thread::sleep(time);
                self.repair()?;
            }
            Fault::ProcessKilled => {
                began[1] = self.b.signal("KILL")?;
                fate = Fate::CutShort;
                self.b.notes.books = self.b.journal()?;
            }
            Fault::ProcessStopped(time) => {
                self.b.signal("STOP")?;
                thread::sleep(time);
                began[1] = self.b.signal("CONT")?;
                self.stop()?;
            }
            Fault::ProcessLeaves => {
                self.b.tell("stop")?;
                fate = Fate::CutShort;
            }
            Fault::ServerRestarts(_) => {
                self.b
                    .wait("restarted", 2 * PATIENCE, |notes| notes.restarted)?;
                self.stop()?;
            }
            Fault::Strangers => {
                self.a.shell(&network::strangers(&server))?;
                self.stop()?;
            }
            Fault::DeviceRemoved => {
                // The kernel waits for all that use the device.
                began[1] = self.b.begin(network::REMOVE_DEVICE)?;
            }
            Fault::AddressChanged => {
                began[1] = self.b.shell(&network::change_address())?;
            }
            Fault::HostKilled => {
                self.b.die()?;
                fate = Fate::Lost;
            }
        }
        // What is under way is bounded by the windows, and every wait of the library by its
        // configuration.
        let patience = 2 * PATIENCE + self.bound(scenario);
        self.a
            .wait("done", patience, |notes| notes.ended.is_some())?;
        if matches!(scenario.fault, Fault::ServerRestarts(_)) {
            self.b.tell("over")?;
        }
        if !matches!(scenario.fault, Fault::ProcessKilled | Fault::HostKilled) {
            self.b
                .wait("done", patience, |notes| notes.ended.is_some())?;
        }
        Ok(Play { fate, began })
    }

    fn stop(&mut self) -> Result<()> {
        self.tell_both("stop")
    }

    fn tell_both(&mut self, word: &str) -> Result<()> {
        self.a.tell(word)?;
        self.b.tell(word)
    }

    fn impair(&mut self, netem: &str) -> Result<()> {
        self.impair_both(netem).map(drop)
    }

    fn impair_both(&mut self, netem: &str) -> Result<[u64; 2]> {
        let script = toolbox::network::impair(netem);
        self.a.shell(&script)?;
        let begin_of_b = self.b.shell(&script)?;
        // Until now something may have come from there.
        Ok([clock_millis(), begin_of_b])
    }

    fn repair(&mut self) -> Result<()> {
        self.a.shell(toolbox::network::REPAIR)?;
        self.b.shell(toolbox::network::REPAIR).map(drop)
    }

    fn quit_workers(&mut self, scenario: &Scenario) {
        self.a.quit_worker();
        if scenario.fault != Fault::HostKilled {
            self.b.quit_worker();
        }
    }

    /// Has both hosts as they were, and makes sure that nothing is left of the scenario.
    fn clear_up(&mut self, scenario: &Scenario, problems: &mut Vec<String>) {
        let changed = scenario.fault.changes_the_network();
        let removed = scenario.fault == Fault::DeviceRemoved;
        let clear_up = |host: &mut Host, removed: bool| -> Result<()> {
            if changed {
                host.shell(network::CLEAR)?;
            }
            if removed {
                // What exists is counted anew.
                host.shell(&network::restore_device())?;
                return host.settle();
            }
            host.nothing_left()
        };
        let mut results = vec![clear_up(&mut self.a, false)];
        if scenario.fault != Fault::HostKilled {
            results.push(clear_up(&mut self.b, removed));
        }
        problems.extend(
            results
                .into_iter()
                .filter_map(|result| Some(format!("{:#}", result.err()?))),
        );
    }

    /// Returns the problems that the workers have reported.
    fn told(&self) -> Vec<String> {
        let of = |host: &Host| {
            let name = host.name;
            let problems = host.notes.problems.iter();
            problems
                .map(|text| format!("host {name}: {text}"))
                .collect::<Vec<_>>()
        };
        [of(&self.a), of(&self.b)].concat()
    }

    /// What the workers had to say.
    fn report(&self) -> Vec<String> {
        let mut report = Vec::new();
        for host in [&self.a, &self.b] {
            let said = &host.notes.stderr;
            let from = said.len().saturating_sub(20);
            report.extend(
                said[from..]
                    .iter()
                    .map(|line| format!("{}| {line}", host.name)),
            );
        }
        report
    }

    pub(crate) fn quit(self) -> Result<()> {
        self.a.quit()?;
        // It may be gone, and then it has quit.
        let _ = self.b.quit();
        Ok(())
    }
}
