use std::{collections::HashMap, fmt, sync::LazyLock, time::Duration};

use anyhow::{Context, Result, bail};
use rdmsg::{Config, Polling};
use serde::{Deserialize, de::DeserializeOwned};
use toolbox::{Lab, Side, sections};

/// A scenario: traffic between two hosts, one fault, and the expected result on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    groups: Vec<Group>,
    pub(crate) fault: Fault,
    pub(crate) expect: Expect,
    /// The fields of the configuration of all connections that differ from [`BASE`].
    config: &'static str,
    /// The duration of the message traffic before the fault.
    pub(crate) flow: Duration,
    /// Whether `--quick` includes the scenario.
    pub(crate) quick: bool,
}

/// A group of similar connections: their number, the messages of both sides, and how the server
/// receives. The client always receives immediately.
pub(crate) type Group = (u32, Traffic, Reading);

/// The messages that both sides send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Traffic {
    /// One message at the beginning, and some more after the order `stop`.
    Idle,
    /// Messages up to the eager size, without pauses.
    Small,
    /// Messages above the eager size, without pauses. The receiver reads them from the sender's
    /// memory.
    Large,
    /// Small and large messages.
    Mixed,
    /// Small and large messages, and one-sided operations.
    Operations,
    /// Small and large messages of up to 8 MiB, on consecutive connections. Each connection has a
    /// random configuration and a random ending, and receives in a random way: see `plan`.
    Any,
}

/// How a side receives messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Reading {
    /// Immediately, with `next_completion`.
    Prompt,
    /// Like `Prompt`, but with a pause after each message. The pauses end when the order `stop`
    /// arrives.
    Slow,
    /// Like `Prompt`, but holds all messages until the order `stop` arrives.
    Keeping,
    /// With `recv`.
    Receiving,
    /// With `Select`: one thread waits for the `completions` of several connections.
    Selecting,
    /// With `try_recv`: one thread polls several connections in turn.
    Trying,
}

/// The fault of a scenario. Host a runs the clients, and host b runs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Fault {
    Nothing,
    /// Both hosts send through `tc … netem` with the given arguments, from before the first
    /// connection until after the last one.
    Network(&'static str),
    /// All packets of both hosts are dropped, for the given number of milliseconds.
    Cut(u64),
    /// Like `Cut`, but afterwards both hosts send through `tc … netem` with the given arguments.
    CutInto(u64, &'static str),
    /// Like `Cut`, but both sides receive the order `stop` during the cut, and therefore close
    /// during the cut.
    CutWhileClosing(u64),
    /// The network of one host or of both is cut the given number of times, for up to 2.5 s each.
    /// The pauses between the cuts last 1 ms to 1 s, so that a cut can begin at any step of a
    /// resumption.
    Flaps(u32),
    /// The network is cut every 20 s while messages flow, for 6, 1 and 0.1 s in turn.
    Cuts,
    /// The server's process is killed.
    ProcessKilled,
    /// The server's process is killed, and a new process listens on the same address.
    ProcessReplaced,
    /// The client's process is killed and a new process connects, the given number of times.
    ClientsVanish(u32),
    /// The process of one side is stopped with SIGSTOP for the given number of seconds.
    ProcessStopped(Side, u64),
    /// The server's process returns from `main` immediately after sending its last message.
    ProcessLeaves,
    /// The server shuts down its engine, which ends all connections, and listens again. This
    /// happens the given number of times.
    ServerRestarts(u32),
    /// Programs on host a connect to the server with other protocols, and some of them are killed.
    Strangers,
    /// The RDMA device of host b is removed. It is created again before the next scenario runs.
    DeviceRemoved,
    /// Host b loses the address that the connections use, and gets another address.
    AddressChanged,
    /// Host b is reset, so that it sends no disconnect.
    HostKilled,
}

/// The expected result. Further rules hold for all scenarios: see `judge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Expect {
    /// All messages arrive, and every connection ends as planned.
    Completes,
    /// Like `Completes`. In addition, every connection resumes.
    Resumes,
    /// At least one connection resumes. Connections that a side has started to end may fail. All
    /// others complete, as for `Completes`.
    EndsOrResumes,
    /// The client detects that the server does not know its sessions.
    SessionsEnd,
    /// The server retains a suspended session until the server stops, or until [`MOST_SUSPENDED`]
    /// newer sessions are suspended.
    RetainsSessions,
    /// Every connection breaks. Both sides detect the break within the time limit, which starts
    /// when the fault starts.
    BothDetect,
    /// Every connection breaks. The client detects the break within the time limit.
    ClientDetects,
    /// Like `BothDetect`, but the server can detect the break only after the end of the fault.
    ServerDetectsLater,
    /// No expectation apart from the rules that hold for all scenarios.
    RulesOnly,
    /// All messages of the server arrive. Then the client sees an orderly close.
    AllOfServerArrives,
    /// Each client reconnects until it has closed a connection itself, after all messages of this
    /// connection were delivered.
    Reconnects,
}

/// The name of the scenario for a soak. Its connections have random configurations and endings.
pub(crate) const EVERY_END: &str = "every-end";

/// The name of the scenario for a soak with cuts. Its sessions have random configurations and
/// endings.
pub(crate) const SESSION_ENDS: &str = "session-ends";

/// The maximum number of suspended sessions that an engine retains after their clients have
/// vanished.
pub(crate) const MOST_SUSPENDED: usize = 1024;

/// The fields of every connection's configuration. The timeouts are long enough for an emulated
/// processor and for a network that loses packets.
const BASE: &str = "connect_timeout=60s rdma.resolve_timeout=10s close_timeout=60s \
                    keepalive_timeout=20s large_memory=4MiB registration_cache=1MiB";

static ALL: LazyLock<Vec<Scenario>> =
    LazyLock::new(|| read().expect("a test has read scenarios.txt"));

/// Returns all scenarios of `scenarios.txt`. The last one kills a host.
pub(crate) fn all() -> &'static [Scenario] {
    &ALL
}

fn read() -> Result<Vec<Scenario>> {
    let mut sections = sections(include_str!("../scenarios.txt")).map(|(_, lines)| lines);
    let mut known = HashMap::new();
    let expand = |text: &str, known: &HashMap<_, String>| {
        let words = text.split(' ');
        let words = words.map(|word| known.get(word).map_or(word, String::as_str));
        words.collect::<Vec<_>>().join(" ")
    };
    for line in sections.next().context("no words")? {
        let (word, text) = line.split_once(':').context(line)?;
        known.insert(word, expand(text, &known));
    }
    let lines = sections.next().context("no scenarios")?.into_iter();
    lines
        .map(|line| scenario(expand(line, &known).leak()).context(line))
        .collect()
}

fn scenario(line: &'static str) -> Result<Scenario> {
    let (line, quick) = match line.strip_suffix(" | quick") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let cells: Vec<_> = line.split('|').map(str::trim).collect();
    let [name, groups, fault, expect, config, flow] = cells[..] else {
        bail!("{} columns", cells.len());
    };
    Ok(Scenario {
        name,
        groups: groups.split(", ").map(group).collect::<Result<_>>()?,
        fault: serde_json::from_str(fault)?,
        expect: variant(expect)?,
        config,
        flow: Duration::from_secs(flow.parse()?),
        quick,
    })
}

fn group(text: &str) -> Result<Group> {
    let mut words = text.split(' ');
    let mut next = || words.next().context("a group has too few words");
    let (count, traffic) = (next()?.parse()?, variant(next()?)?);
    Ok((count, traffic, variant(next().unwrap_or("Prompt"))?))
}

/// Returns the variant of an enum with the name `name`.
fn variant<T: DeserializeOwned>(name: &str) -> Result<T> {
    Ok(serde_json::from_value(name.into())?)
}

/// Sets the fields in a list such as "receive_window=4 send_depth=4".
fn set(config: &mut Config, fields: &str) {
    for (field, value) in fields
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='))
    {
        config.set(field, value).expect("a test has set all fields");
    }
}

impl Scenario {
    /// Returns the scenario named `name`.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let found = all().iter().find(|scenario| scenario.name == name);
        found
            .cloned()
            .with_context(|| format!("there is no scenario {name}"))
    }

    /// Returns the number of simultaneous connections of a side.
    pub(crate) fn connections(&self) -> u32 {
        self.groups.iter().map(|(count, ..)| count).sum()
    }

    /// Returns the largest number of simultaneous connections of a side, including suspended
    /// sessions.
    pub(crate) fn most_connections(&self) -> u64 {
        let suspended = match self.fault {
            Fault::ClientsVanish(_) => MOST_SUSPENDED as u64,
            _ => 0,
        };
        suspended + u64::from(self.connections())
    }

    /// Returns whether the scenario replaces each connection that ends, until the order `stop`
    /// arrives.
    pub(crate) fn is_endless(&self) -> bool {
        self.groups[0].1 == Traffic::Any
    }

    /// Returns whether the hosts' devices have enough queue pairs for the scenario.
    pub(crate) fn is_possible(&self, lab: &Lab) -> bool {
        // The user-space driver of software iWARP can map about fifty queue pairs, and a listener
        // uses some of them.
        self.connections() <= 40 || !lab.is_iwarp()
    }

    pub(crate) fn group(&self, connection: u32) -> Group {
        let all = self.groups.iter();
        let mut of_each = all.flat_map(|group| (0..group.0).map(|_| *group));
        let index = connection % self.connections();
        of_each.nth(index as usize).expect("it is one of them")
    }

    /// Returns the configuration of every connection.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        set(&mut config, BASE);
        if self.connections() > 8 {
            // Do not spin, because spinning threads would take processor time from the other
            // connections.
            config.polling = Polling::Event;
        }
        self.adjust(&mut config);
        config
    }

    /// Applies the scenario's changes to a configuration.
    pub(crate) fn adjust(&self, config: &mut Config) {
        set(config, self.config);
    }
}

impl Fault {
    /// Returns whether the fault kills the server's process, so that its records are lost.
    pub(crate) fn kills(self) -> bool {
        matches!(
            self,
            Self::ProcessKilled | Self::ProcessReplaced | Self::HostKilled
        )
    }

    /// Returns whether the fault changes the hosts' networks.
    pub(crate) fn is_of_network(self) -> bool {
        matches!(
            self,
            Self::Network(_)
                | Self::Cut(_)
                | Self::CutInto(..)
                | Self::CutWhileClosing(_)
                | Self::Flaps(_)
                | Self::Cuts
                | Self::AddressChanged
        )
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = format!("{:?}", self.fault);
        write!(f, "{:<23} {fault:<40}", self.name)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::{Fault::HostKilled, Reading::Prompt, Traffic::*, *};

    /// Returns a scenario with one connection and the expected result `expect`.
    pub(crate) fn single(expect: Expect) -> Scenario {
        Scenario {
            groups: vec![(1, Small, Prompt)],
            expect,
            ..Scenario::named("calm").unwrap()
        }
    }

    #[test]
    fn name_each_scenario_differently() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn configure_all_connections() {
        for scenario in all() {
            scenario.config().check().unwrap();
            for pair in scenario.config.split_whitespace() {
                assert!(pair.contains('='), "{}: {pair}", scenario.name);
            }
        }
        let crowd = Scenario::named("session-crowd").unwrap().config();
        assert_eq!((crowd.send_depth, crowd.resume.as_secs()), (Some(4), 300));
        assert_eq!(
            Scenario::named("storm-50").unwrap().config().polling,
            Polling::Event
        );
    }

    #[test]
    fn kill_a_host_only_in_the_last() {
        let all = all();
        let kills = |scenario: &Scenario| scenario.fault == HostKilled;
        assert_eq!(all.iter().position(kills), Some(all.len() - 1));
    }

    #[test]
    fn find_group_of_each_connection() {
        let scenario = Scenario::named("restarting-server").unwrap();
        let talks = [0, 19, 20, 23, 24].map(|connection| scenario.group(connection).1);
        assert_eq!(talks, [Idle, Idle, Small, Small, Idle]);
    }
}
