use std::{fmt, time::Duration};

use anyhow::{Context, Result};
use rdmsg::{Config, Polling, TransportChoice};
use toolbox::{Lab, Side};

use self::{Expect::*, Fault::*, Reading::*, Traffic::*};

/// A scenario: traffic between two hosts, one fault, and the expected result on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    groups: &'static [Group],
    pub(crate) fault: Fault,
    pub(crate) expect: Expect,
    /// A function that changes the configuration of all connections.
    pub(crate) change: fn(&mut Config),
    /// The duration of the message traffic before the fault.
    pub(crate) flow: Duration,
    /// Whether `--quick` includes the scenario.
    pub(crate) quick: bool,
}

/// A group of similar connections: their number, the messages of both sides, and how the server
/// receives. The client receives as in [`Reading::Prompt`]. [`Traffic::Any`] is an exception: both
/// sides then receive in random ways.
pub(crate) type Group = (u32, Traffic, Reading);

/// The messages that both sides send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// One message at the beginning, and some more after the order `stop`.
    Idle,
    /// Messages of up to 16 KiB, the default eager size over RDMA, without pauses.
    Small,
    /// Messages of 20 KiB to 1 MiB, without pauses. The receiver reads most of them from the
    /// sender's memory.
    Large,
    /// Small and large messages.
    Mixed,
    /// Small and large messages, and one-sided operations.
    Operations,
    /// Messages of 0 B to 8 MiB, on consecutive connections. Each connection has a random
    /// configuration and a random ending, and each side receives in a random way: see `plan`.
    Any,
}

/// How a side receives messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// With `try_recv`: one thread polls several connections, one after another.
    Trying,
}

/// The fault of a scenario. Host a runs the clients, and host b runs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The network of one host or of both hosts is cut the given number of times, for up to 2.5 s
    /// each. The pauses between the cuts last 1 ms to 1 s, so that a cut can begin at any step of a
    /// resumption. A final cut of both hosts for 5 s breaks every connection.
    Flaps(u32),
    /// The network is cut every 20 s while messages flow. The first cut lasts 6 s, the second 1 s,
    /// and the third 0.1 s. Then these durations repeat.
    Cuts,
    /// The server's process is killed.
    ProcessKilled,
    /// The server's process is killed, and a new process listens on the same address.
    ProcessReplaced,
    /// The client's process is killed the given number of times. After each kill except the last, a
    /// new client process connects.
    ClientsVanish(u32),
    /// The process of one side is stopped with SIGSTOP for the given number of seconds.
    ProcessStopped(Side, u64),
    /// The server's process returns from `main` immediately after sending its last message.
    ProcessLeaves,
    /// The server shuts down its engine, which ends all connections, and listens again. This
    /// happens the given number of times.
    ServerRestarts(u32),
    /// Programs on the client's host use other protocols to connect to the server, and some of
    /// these programs are killed.
    Strangers,
    /// The RDMA device of host b is removed. It is created again before the next scenario runs.
    DeviceRemoved,
    /// Host b loses the address that the connections use, and gets another address.
    AddressChanged,
    /// Host b is reset, and therefore sends no disconnect.
    HostKilled,
}

/// The expected result. Further rules hold for all scenarios: see `judge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// All messages arrive, and every connection ends as planned.
    Completes,
    /// Like `Completes`. In addition, every connection resumes.
    Resumes,
    /// At least one connection resumes. A connection may fail if a side has started to end it, or
    /// if a cut prevented the server from establishing it. All other connections complete, as for
    /// `Completes`.
    EndsOrResumes,
    /// The client detects that its sessions are lost, because the new server process has none.
    SessionsEnd,
    /// The server retains a suspended session until the server stops, or until [`MOST_SUSPENDED`]
    /// newer sessions are suspended.
    RetainsSessions,
    /// Every connection breaks. Both sides detect the break within the time limit, which starts
    /// when the fault starts. For a side that can detect the break only after the fault, the limit
    /// starts when the fault ends.
    BothDetect,
    /// Every connection breaks. The client detects the break within the time limit.
    ClientDetects,
    /// No expectation apart from the rules that hold for all scenarios.
    RulesOnly,
    /// All messages of the server arrive. Then the client detects an orderly close.
    AllOfServerArrives,
    /// Each client reconnects until it has closed a connection itself and all its messages on that
    /// connection have been delivered.
    Reconnects,
}

/// The name of the scenario for a soak. Its connections have random configurations and endings.
pub(crate) const EVERY_END: &str = "every-end";

/// The name of the scenario that does the same as [`EVERY_END`], but over TCP.
pub(crate) const EVERY_END_TCP: &str = "every-end-tcp";

/// The name of the scenario for a soak with cuts. Its sessions have random configurations and
/// endings.
pub(crate) const SESSION_ENDS: &str = "session-ends";

/// The maximum number of suspended sessions that an engine retains after their clients have
/// vanished.
pub(crate) const MOST_SUSPENDED: usize = 1024;

/// Returns all scenarios. The columns are: name, groups, fault, expected result, change of the
/// configuration, seconds of message traffic before the fault, and whether `--quick` includes the
/// scenario. The last scenario kills a host.
#[rustfmt::skip]
pub(crate) fn all() -> Vec<Scenario> {
    let mixture = "delay 5ms reorder 1% loss 0.5% duplicate 1% corrupt 0.2%";
    // Connections with each kind of traffic except `Any`.
    let some = &[
        (1, Idle, Prompt), (1, Operations, Prompt), (1, Small, Prompt), (1, Large, Prompt),
        (2, Mixed, Prompt),
    ];
    // An idle connection and two busy connections.
    let busy = &[(1, Idle, Prompt), (1, Small, Prompt), (1, Mixed, Prompt)];
    let wide = &[(1, Idle, Prompt), (1, Large, Prompt), (2, Mixed, Prompt)];
    let full = &[(2, Small, Prompt), (2, Large, Prompt), (2, Mixed, Prompt)];
    let flood = &[(2, Small, Keeping), (1, Mixed, Keeping), (1, Small, Prompt), (1, Idle, Prompt)];
    let slowly = &[(2, Small, Slow), (1, Mixed, Slow), (1, Large, Slow), (1, Idle, Prompt)];
    let crowd = &[(60, Mixed, Prompt), (30, Operations, Prompt), (110, Idle, Prompt)];
    // Connections with each kind of traffic that supports resumption.
    let sessions = &[
        (1, Idle, Prompt), (1, Small, Prompt), (1, Large, Prompt), (2, Mixed, Prompt),
        (1, Mixed, Slow),
    ];
    let everything = &[(8, Any, Prompt)];
    let clients = &[(20, Idle, Prompt), (4, Small, Prompt)];
    let many_sessions = &[(20, Idle, Prompt), (5, Mixed, Prompt)];
    let idle_crowd = &[(1000, Idle, Prompt)];
    let vanishing = &[(300, Idle, Prompt)];
    let stopped = |seconds| ProcessStopped(Side::Server, seconds);
    let stopped_client = ProcessStopped(Side::Client, 10);
    let row = |name, groups, fault, expect, change: fn(&mut Config), flow, quick| Scenario {
        name, groups, fault, expect, change, flow: Duration::from_secs(flow), quick,
    };
    vec![
        row("calm",                   some, Nothing, Completes, usual, 2, true),
        row(EVERY_END,                everything, Nothing, Completes, usual, 6, true),
        row(EVERY_END_TCP,            everything, Nothing, Completes, over_tcp, 6, false),
        row("loss-0.1",               some, Network("loss 0.1%"), Completes, usual, 4, false),
        row("loss-1",                 some, Network("loss 1%"), Completes, usual, 4, true),
        row("loss-5",                 some, Network("loss 5%"), Completes, usual, 4, false),
        row("delay",                  some, Network("delay 40ms"), Completes, usual, 4, false),
        row("jitter", some, Network("delay 10ms reorder 2% 25%"), Completes, usual, 4, false),
        row("duplicate",              some, Network("duplicate 5%"), Completes, usual, 4, false),
        row("corrupt",                some, Network("corrupt 1%"), Completes, usual, 4, false),
        row("everything",             some, Network(mixture), Completes, usual, 4, true),
        row("slow-wire", wide, Network("rate 1mbit"), Completes, tolerating_delay, 3, false),
        // Many concurrent connection attempts, and receivers that are slower than the senders.
        row("storm-50", &[(50, Idle, Prompt)], Nothing, Completes, with_little_memory, 0, true),
        row("storm-100", &[(100, Idle, Prompt)], Nothing, Completes, with_little_memory, 0, false),
        row("storm-200", &[(200, Idle, Prompt)], Nothing, Completes, with_little_memory, 0, false),
        row("restarting-server", clients, ServerRestarts(3), Reconnects, with_little_memory, 2,
            false),
        row("flood",                  flood, Nothing, Completes, usual, 2, true),
        row("slow-receiver",          slowly, Nothing, Completes, usual, 2, false),
        row("strangers",              some, Strangers, Completes, usual, 2, false),
        row("crowd",                  crowd, Nothing, Completes, sharing, 3, false),
        // Connections must survive a short cut. Both sides must detect a long cut in time.
        row("cut-1s",                 busy, Cut(1_000), Completes, surviving_cuts, 2, false),
        row("cut-3s",                 busy, Cut(3_000), Completes, surviving_cuts, 2, false),
        row("cut-10s",                busy, Cut(10_000), Completes, surviving_cuts, 2, false),
        row("cut-while-closing", busy, CutWhileClosing(3_000), Completes, surviving_cuts, 2, false),
        row("long-cut",               busy, Cut(18_000), BothDetect, watchful, 2, true),
        row("long-cut-30s",           busy, Cut(30_000), BothDetect, watchful, 2, false),
        row("long-cut-while-closing", busy, CutWhileClosing(15_000), RulesOnly, watchful, 2, false),
        row("killed-process",         some, ProcessKilled, ClientDetects, watchful, 2, true),
        row("stopped-process",        some, stopped(3), Completes, lasting, 2, false),
        row("long-stopped-process",   some, stopped(20), BothDetect, watchful, 2, true),
        row("leaving-process",        full, ProcessLeaves, AllOfServerArrives, lasting, 2, false),
        // Connections with `Config::resume`. They resume over the same device and transport.
        row("session-cut-0.1s",       sessions, Cut(100), Completes, resuming, 2, false),
        row("session-cut-1s",         sessions, Cut(1_000), Completes, resuming, 2, false),
        row("session-cut-6s",         sessions, Cut(6_000), Resumes, resuming, 2, true),
        row("session-cut-20s",        sessions, Cut(20_000), Resumes, resuming, 2, false),
        row("session-cut-at-close", sessions, CutWhileClosing(6_000), Resumes, resuming, 2, false),
        row("session-loss", many_sessions, CutInto(6_000, "loss 1%"), Resumes, resuming, 2, false),
        row("session-flaps",          sessions, Flaps(15), Resumes, detecting_cuts, 1, false),
        row("session-stopped-server", sessions, stopped(10), Completes, resuming, 2, false),
        row("session-stopped-client", sessions, stopped_client, Completes, resuming, 2, false),
        row("session-new-server", sessions, ProcessReplaced, SessionsEnd, resuming, 2, true),
        row("session-crowd",          idle_crowd, Cut(20_000), Resumes, resuming_crowd, 2, false),
        row("session-abandoned", vanishing, ClientsVanish(5), RetainsSessions, abandoned, 0, false),
        row(SESSION_ENDS,             everything, Cuts, EndsOrResumes, resuming, 60, false),
        row("address-change",         busy, AddressChanged, BothDetect, watchful, 2, false),
        row("device-removal",         busy, DeviceRemoved, BothDetect, watchful, 2, false),
        row("after-device-removal",   some, Nothing, Completes, usual, 2, false),
        row("killed-host",            busy, HostKilled, ClientDetects, watchful, 2, true),
    ]
}

impl Scenario {
    /// Returns the scenario named `name`.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let found = all().into_iter().find(|scenario| scenario.name == name);
        found.with_context(|| format!("there is no scenario {name}"))
    }

    /// Returns the number of simultaneous connections of a side.
    pub(crate) fn connections(&self) -> u32 {
        self.groups.iter().map(|(count, ..)| count).sum()
    }

    /// Returns the largest number of simultaneous connections of a side, including suspended
    /// sessions.
    pub(crate) fn most_connections(&self) -> u64 {
        let suspended = match self.fault {
            ClientsVanish(_) => MOST_SUSPENDED as u64,
            _ => 0,
        };
        suspended + u64::from(self.connections())
    }

    /// Returns true if the client opens a new connection for each connection that ends, until the
    /// order `stop` arrives.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(self.groups, [(_, Any, _)])
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
        of_each
            .nth(index as usize)
            .expect("the index must be less than the number of connections")
    }

    /// Returns the configuration of all connections except those with [`Traffic::Any`]. The
    /// timeouts are long enough for an emulated processor and for a network that loses packets.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        config.connect_timeout = Duration::from_secs(60);
        config.rdma.resolve_timeout = Duration::from_secs(10);
        config.close_timeout = Duration::from_secs(60);
        config.keepalive_timeout = Duration::from_secs(20);
        config.large_memory = 4 << 20;
        config.registration_cache = 1 << 20;
        if self.connections() > 8 {
            // Do not spin: a thread that spins for one connection takes processor time from all
            // other connections.
            config.polling = Polling::Event;
        }
        (self.change)(&mut config);
        config
    }
}

impl Fault {
    /// Returns whether the fault kills the server's process. The server's records are then lost.
    pub(crate) fn kills(self) -> bool {
        matches!(self, ProcessKilled | ProcessReplaced | HostKilled)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = format!("{:?}", self.fault);
        write!(f, "{:<23} {fault:<40}", self.name)
    }
}

fn usual(_: &mut Config) {}

fn over_tcp(config: &mut Config) {
    config.transport = TransportChoice::Tcp;
}

/// Makes connections tolerate packets that are queued for seconds behind packets of other
/// connections. The device waits for a long time before it retransmits. Few messages are in flight,
/// so that the close completes in time. Keepalive and `read_timeout` keep their values, because no
/// connection times out while bytes arrive.
fn tolerating_delay(config: &mut Config) {
    config.rdma.ack_timeout = Some(23);
    config.receive_window = Some(4);
    config.close_timeout = Duration::from_secs(300);
}

/// Limits the memory per connection, for scenarios with many connections.
fn with_little_memory(config: &mut Config) {
    config.receive_window = Some(4);
    config.send_depth = Some(4);
    config.eager_size = Some(4096);
    config.large_memory = 1 << 20;
    config.registration_cache = 0;
}

/// Like `with_little_memory`, but all connections of a side share their receives.
fn sharing(config: &mut Config) {
    with_little_memory(config);
    config.shared_receive = Some(200 * 26);
}

/// Makes connections survive a cut of ten seconds.
fn surviving_cuts(config: &mut Config) {
    config.rdma.ack_timeout = Some(19);
    lasting(config);
}

fn lasting(config: &mut Config) {
    config.keepalive_interval = Some(Duration::from_secs(2));
    config.keepalive_timeout = Duration::from_secs(30);
}

/// Makes connections detect a cut within a few seconds.
fn watchful(config: &mut Config) {
    config.keepalive_interval = Some(Duration::from_secs(1));
    // If this machine is busy, a virtual machine may get no processor time for several seconds.
    config.keepalive_timeout = Duration::from_secs(5);
    config.close_timeout = Duration::from_secs(5);
}

/// Makes connections detect a cut within a few seconds, and try to resume for up to 60 s.
fn resuming(config: &mut Config) {
    watchful(config);
    config.keepalive_timeout = Duration::from_secs(3);
    config.close_timeout = Duration::from_secs(60);
    config.resume = Duration::from_secs(60);
    config.shared_receive = None;
}

/// Like `resuming`, but connections detect a cut within a second. `resume` is long enough for all
/// cuts, even if each attempt to connect blocks the engine for 5 s, as on software iWARP.
fn detecting_cuts(config: &mut Config) {
    resuming(config);
    config.resume = Duration::from_secs(180);
    config.keepalive_interval = Some(Duration::from_millis(300));
    config.keepalive_timeout = Duration::from_millis(700);
}

/// Like `resuming`, but with little memory per connection, and with timeouts that are long enough
/// for many connections.
fn resuming_crowd(config: &mut Config) {
    with_little_memory(config);
    resuming(config);
    config.keepalive_interval = Some(Duration::from_secs(2));
    config.connect_timeout = Duration::from_secs(300);
    config.resume = Duration::from_secs(300);
    config.close_timeout = Duration::from_secs(300);
}

/// Like `resuming_crowd`, but a suspended session can wait for its client for longer than the
/// scenario lasts.
fn abandoned(config: &mut Config) {
    resuming_crowd(config);
    config.resume = Duration::from_secs(600);
    config.close_timeout = Duration::from_secs(5);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns a scenario with one connection and the expected result `expect`.
    pub(crate) fn single(expect: Expect) -> Scenario {
        Scenario {
            groups: &[(1, Small, Prompt)],
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
