use std::{fmt, time::Duration};

use rdmsg::{Config, Polling};
use toolbox::Lab;

/// What goes on between the two hosts, what goes wrong, and what both sides must see.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) groups: Vec<Group>,
    pub(crate) fault: Fault,
    pub(crate) expect: Expect,
    /// Changes of the configuration that all connections have.
    pub(crate) config: fn(&mut Config),
    /// How long messages flow before they are told to stop, apart from what the fault takes.
    pub(crate) flow: Duration,
    /// Whether it belongs to the quick ones.
    pub(crate) quick: bool,
}

/// Connections that are alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) count: u32,
    pub(crate) talk: Talk,
    pub(crate) server: Reading,
}

/// What both sides of a connection send, from when it is established until they are told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    /// One message at the beginning, one at the end.
    Idle,
    /// Messages up to the eager size, without a pause.
    Small,
    /// Messages that the receiver reads from the sender's memory, without a pause.
    Large,
    /// Some of these, some of those.
    Mixed,
    /// As mixed, with one-sided operations among them.
    Operations,
}

/// How the server takes messages. The client always takes them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Prompt,
    /// With a pause after each, until it is told to stop.
    Slow,
    /// It keeps all that the window has room for until it is told to stop.
    Keeping,
}

/// What goes wrong. Host a has the clients, host b the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// Both hosts treat what they send so, as `tc … netem` names it, from before the first
    /// connection until after the last.
    Network(&'static str),
    /// Everything sent by either host vanishes for a while.
    Swallowed(Duration),
    /// As `Swallowed`, and both sides are told to stop, and so to close, when that has begun.
    SwallowedWhileClosing(Duration),
    /// The server's process is killed.
    ProcessKilled,
    /// The server's process is stopped for a while.
    ProcessStopped(Duration),
    /// The server's process returns from `main` right after it has sent its last message.
    ProcessLeaves,
    /// The server shuts its engine down, with all connections, and listens anew, so often.
    ServerRestarts(u32),
    /// Programs on host a that speak another protocol connect to the server again and again, and
    /// some are killed meanwhile.
    Strangers,
    /// The RDMA device of host b is removed. It comes back before the next scenario.
    DeviceRemoved,
    /// Host b loses the address of the connections and gets another one.
    AddressChanged,
    /// Host b restarts without a word.
    HostKilled,
}

/// What the two sides must see, beside what always holds: see `judge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Everything arrives, and every connection goes on until it is closed.
    GoesOn,
    /// Every connection breaks, and both sides learn of it in time after the fault's beginning.
    BothLearn,
    /// The same, on the client's side; the server's program cannot tell.
    ClientLearns,
    /// The same, but the server learns of it only when the fault is over.
    ServerLearnsAfterwards,
    /// Clean or broken, whatever each connection comes to: only what always holds.
    Honest,
    /// Everything that the server sent arrives, and ends as by a close.
    AllOfServerArrives,
    /// Every connection ends as by a close, and each client is served in the end.
    ServedInTheEnd,
}

/// How many more messages each side sends when it is told to stop.
pub(crate) const TAIL: u64 = 5;

impl Scenario {
    /// One in which nothing goes wrong.
    pub(crate) fn new(name: &'static str, groups: &[Group]) -> Self {
        Self {
            name,
            groups: groups.to_vec(),
            fault: Fault::Nothing,
            expect: Expect::GoesOn,
            config: |_| {},
            flow: Duration::from_secs(2),
            quick: false,
        }
    }

    pub(crate) fn fault(self, fault: Fault, expect: Expect) -> Self {
        Self {
            fault,
            expect,
            ..self
        }
    }

    pub(crate) fn config(self, config: fn(&mut Config)) -> Self {
        Self { config, ..self }
    }

    pub(crate) fn flow(self, seconds: u64) -> Self {
        Self {
            flow: Duration::from_secs(seconds),
            ..self
        }
    }

    pub(crate) fn quick(self) -> Self {
        Self {
            quick: true,
            ..self
        }
    }

    /// How many connections there are at a time.
    pub(crate) fn connections(&self) -> u32 {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// What it takes of the hosts' devices that they do not have.
    pub(crate) fn lacks(&self, lab: &Lab) -> Option<&'static str> {
        // The library of the driver of software iWARP maps no more, and a listener has some.
        (lab.is_iwarp() && self.connections() > 40).then_some("some fifty queue pairs in a process")
    }

    /// The group of a connection.
    pub(crate) fn group(&self, connection: u32) -> Group {
        let mut place = connection % self.connections();
        for group in &self.groups {
            match place.checked_sub(group.count) {
                Some(rest) => place = rest,
                None => return *group,
            }
        }
        unreachable!("the place is less than the sum of all groups")
    }

    /// What every connection has, the waits long enough for an emulated processor and a network
    /// that loses packets.
    pub(crate) fn effective_config(&self) -> Config {
        let mut config = Config::default();
        config.connect_timeout = Duration::from_secs(60);
        config.resolve_timeout = Duration::from_secs(10);
        config.close_timeout = Duration::from_secs(60);
        config.keepalive_timeout = Duration::from_secs(20);
        config.retry_refused = true;
        config.backlog = 1024;
        config.large_memory = 4 << 20;
        config.registration_cache = 1 << 20;
        if self.connections() > 8 {
            // Nobody finds the processor free.
            config.polling = Polling::Event;
        }
        (self.config)(&mut config);
        config
    }

    pub(crate) fn traffic(&self) -> String {
        let groups: Vec<_> = self.groups.iter().map(Group::to_string).collect();
        groups.join(", ")
    }
}

impl Fault {
    /// Whether a host's network is not as it was afterwards, or may not be when something went
    /// wrong meanwhile.
    pub(crate) fn changes_the_network(self) -> bool {
        match self {
            Self::Network(_)
            | Self::Swallowed(_)
            | Self::SwallowedWhileClosing(_)
            | Self::AddressChanged => true,
            Self::Nothing
            | Self::ProcessKilled
            | Self::ProcessStopped(_)
            | Self::ProcessLeaves
            | Self::ServerRestarts(_)
            | Self::Strangers
            | Self::DeviceRemoved
            | Self::HostKilled => false,
        }
    }
}

impl Group {
    pub(crate) const fn new(count: u32, talk: Talk) -> Self {
        Self {
            count,
            talk,
            server: Reading::Prompt,
        }
    }

    pub(crate) const fn read(self, server: Reading) -> Self {
        Self { server, ..self }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            talk,
            server,
        } = self;
        let talk = match talk {
            Talk::Idle => "idle",
            Talk::Small => "small",
            Talk::Large => "large",
            Talk::Mixed => "mixed",
            Talk::Operations => "operations",
        };
        let server = match server {
            Reading::Prompt => "",
            Reading::Slow => " read slowly",
            Reading::Keeping => " kept",
        };
        write!(f, "{count} {talk}{server}")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("none"),
            Self::Network(netem) => f.write_str(netem),
            Self::Swallowed(time) => write!(f, "wire cut for {} s", time.as_secs()),
            Self::SwallowedWhileClosing(time) => {
                write!(f, "closed, wire cut for {} s", time.as_secs())
            }
            Self::ProcessKilled => f.write_str("server killed"),
            Self::ProcessStopped(time) => write!(f, "server stopped for {} s", time.as_secs()),
            Self::ProcessLeaves => f.write_str("server returns from main"),
            Self::ServerRestarts(times) => write!(f, "server restarts {times} times"),
            Self::Strangers => f.write_str("strangers knock"),
            Self::DeviceRemoved => f.write_str("b's device removed"),
            Self::AddressChanged => f.write_str("b's address changed"),
            Self::HostKilled => f.write_str("host b killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_its_group() {
        let groups = [Group::new(2, Talk::Idle), Group::new(1, Talk::Large)];
        let scenario = Scenario::new("some", &groups);
        let talks: Vec<_> = (0..4).map(|at| scenario.group(at).talk).collect();
        assert_eq!(talks, [Talk::Idle, Talk::Idle, Talk::Large, Talk::Idle]);
    }
}
