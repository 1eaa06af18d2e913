//! Causes the faults of the scenarios.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use toolbox::{Side, TIME_LIMIT, clock_millis, network::REPAIR, random};

use super::{Conductor, Host, Notes, bound};
use crate::{
    network,
    scenario::{Expect, Fault, MOST_SUSPENDED, Scenario},
};

/// The `netem` arguments that cut the network.
const CUT: &str = "loss 100%";

/// The time from the end of one cut to the end of the next.
const PERIOD: Duration = Duration::from_secs(20);

/// The durations of cuts in milliseconds, repeated in this order. The first cut lasts longer than
/// the keepalive timeout, so the connections detect it.
const CUTS: [u64; 3] = [6_000, 1_000, 100];

/// The maximum duration of a random cut in `flap`, in milliseconds.
const LONGEST_FLAP: u64 = 2_500;

impl Conductor {
    /// Causes the scenario's fault, and waits until both workers have ended. Returns the time of
    /// the fault on each host, as in [`Evidence::began`](crate::judge::Evidence::began). `worker`
    /// is the command line of a worker that connects. A worker that listens also gets an address.
    pub(super) fn strike(
        &mut self,
        scenario: &Scenario,
        seed: u64,
        worker: &str,
    ) -> Result<[u64; 2]> {
        let server = self.b.notes.listens[0];
        let mut began = [clock_millis(); 2];
        match scenario.fault {
            Fault::Nothing | Fault::Network(_) | Fault::ProcessLeaves | Fault::Cuts => {}
            Fault::Cut(millis) | Fault::CutWhileClosing(millis) | Fault::CutInto(millis, _) => {
                began = self.impair(CUT)?;
                if matches!(scenario.fault, Fault::CutWhileClosing(_)) {
                    self.order_both("stop")?;
                }
                thread::sleep(Duration::from_millis(millis));
                let repaired = match scenario.fault {
                    Fault::CutInto(_, netem) => self.both(&toolbox::network::change(netem))?,
                    _ => self.both(REPAIR)?,
                };
                if scenario.expect == Expect::Resumes {
                    began = repaired;
                }
            }
            Fault::Flaps(count) => began = self.flap(count, seed)?,
            Fault::ProcessKilled => drop(self.b.agent.signal("KILL")?),
            Fault::ProcessReplaced => {
                self.b.kill()?;
                // The new server must listen on the same address.
                self.b.start(&format!("{worker} {server}"))?;
            }
            Fault::ClientsVanish(rounds) => began[1] = self.vanish(scenario, rounds, worker)?,
            Fault::ProcessStopped(side, seconds) => {
                let agent = match side {
                    Side::Client => &mut self.a.agent,
                    Side::Server => &mut self.b.agent,
                };
                agent.signal("STOP")?;
                thread::sleep(Duration::from_secs(seconds));
                began[side as usize] = agent.signal("CONT")?;
            }
            Fault::ServerRestarts(count) => {
                self.b
                    .wait("restarted", |notes| notes.flowing > count, 2 * TIME_LIMIT)?;
            }
            Fault::Strangers => drop(self.a.shell(&network::strangers(server))?),
            Fault::DeviceRemoved => began[1] = self.b.shell(network::REMOVE_DEVICE)?,
            Fault::AddressChanged => began[1] = self.b.shell(network::CHANGE_ADDRESS)?,
            Fault::HostKilled => self.b.agent.die()?,
        }
        self.finish(scenario)?;
        Ok(began)
    }

    /// Orders the workers to stop, unless the fault ends their connections. If the server's process
    /// exits by itself, only the server receives this order. Then waits until all workers that the
    /// fault has not killed have ended.
    fn finish(&mut self, scenario: &Scenario) -> Result<()> {
        let fault = scenario.fault;
        let leaves = fault == Fault::ProcessLeaves;
        let vanishes = matches!(fault, Fault::ClientsVanish(_));
        let breaks = matches!(fault, Fault::DeviceRemoved | Fault::AddressChanged);
        if !fault.kills() && !breaks && !vanishes {
            self.b.tell("stop")?;
            if !leaves {
                self.a.tell("stop")?;
            }
        }
        // The workers end in time, because the receive windows limit the number of messages in
        // flight, and the configuration limits every wait.
        let time_limit = 2 * TIME_LIMIT + bound(scenario, 1.0);
        self.a.end(time_limit, !vanishes)?;
        if !matches!(fault, Fault::ProcessKilled | Fault::HostKilled) {
            self.b.tell("over")?;
            self.b.end(time_limit, !leaves)?;
        }
        Ok(())
    }

    /// Waits for `time` while messages flow. Cuts the network at the end of each [`PERIOD`].
    pub(super) fn flow_through_cuts(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut cuts = CUTS.map(Duration::from_millis).into_iter().cycle();
        while let Some(cut) = cuts.next().filter(|_| Instant::now() + PERIOD <= end) {
            self.flow(PERIOD - cut)?;
            self.impair(CUT)?;
            thread::sleep(cut);
            self.both(REPAIR)?;
        }
        self.flow(end.saturating_duration_since(Instant::now()))
    }

    /// Cuts the network `count` times, on one host or on both, for random durations and with random
    /// pauses. Then cuts the network of both hosts once more, for long enough to break every
    /// connection. Returns the time of the last repair on each host.
    fn flap(&mut self, count: u32, seed: u64) -> Result<[u64; 2]> {
        let mut rng = random(&[seed, u64::from(b'f')]);
        let [cut, none] = [CUT, "loss 0%"].map(toolbox::network::change);
        self.impair("loss 0%")?;
        for _ in 0..count {
            let hosts = rng.u32(..4);
            if hosts != 1 {
                self.a.shell(&cut)?;
            }
            if hosts != 0 {
                self.b.shell(&cut)?;
            }
            thread::sleep(Duration::from_millis(rng.u64(..=LONGEST_FLAP)));
            self.both(&none)?;
            // The pause is a random power of two, at most 1024 ms, so that each order of magnitude
            // is equally likely.
            thread::sleep(Duration::from_millis(1 << rng.u32(..=10)));
        }
        self.both(&cut)?;
        thread::sleep(Duration::from_millis(2 * LONGEST_FLAP));
        self.both(&none)
    }

    /// Kills the clients `rounds` times. Starts new clients after each kill except the last. Then
    /// waits until the server has ended all sessions except the newest `MOST_SUSPENDED`. Returns
    /// the time after this wait, in milliseconds since 1970 by the server's clock.
    fn vanish(&mut self, scenario: &Scenario, rounds: u32, worker: &str) -> Result<u64> {
        for round in 1..=rounds {
            self.a.kill()?;
            let killed = round * scenario.connections();
            println!("{killed} clients have been killed so far");
            if round < rounds {
                self.a.start(&format!("{worker} --first={killed}"))?;
                self.let_clients_connect()?;
            }
        }
        let all = (rounds * scenario.connections()) as usize;
        let few_are_left = |notes: &Notes| notes.records.len() + MOST_SUSPENDED >= all;
        self.b
            .wait("free of old sessions", few_are_left, 2 * TIME_LIMIT)?;
        self.b.shell("true")
    }

    /// Runs a shell command on both hosts. Returns the time at which the command started on each
    /// host.
    fn both(&mut self, script: &str) -> Result<[u64; 2]> {
        Ok([self.a.shell(script)?, self.b.shell(script)?])
    }

    /// Impairs the networks of both hosts. Returns the time from which packets in both directions
    /// are affected: first by the clock of host a, then by the clock of host b.
    pub(super) fn impair(&mut self, netem: &str) -> Result<[u64; 2]> {
        let script = toolbox::network::impair(netem);
        self.a.shell(&script)?;
        let begin_of_b = self.b.shell(&script)?;
        // Read host a's clock after both commands, because host b sends unimpaired packets until
        // its own command has run.
        Ok([clock_millis(), begin_of_b])
    }
}

impl Host {
    /// Kills the worker, and waits until the kernel has freed the worker's objects.
    fn kill(&mut self) -> Result<()> {
        self.agent.signal("KILL")?;
        self.wait_for_objects()
    }
}
