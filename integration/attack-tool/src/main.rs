//! Hostile peers of a live listener, while honest clients use it.
//!
//! The victim is a process of its own. This process holds the honest clients, which measure and
//! compare, and the attackers, which speak the protocol by hand. Over RDMA the program starts
//! itself in the lab.

mod arena;
mod attack;
mod connection;
mod honest;
mod judge;
mod mutation;
mod phases;
mod rdma;
mod session;
mod tcp;
mod victim;
mod victim_process;
// The bytes on the wire, as the tests with hostile peers write them down.
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../../device/tests/hostile/wire.rs"]
mod wire;

use std::{
    net::{IpAddr, Ipv4Addr},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use rdmsg::Transport;
use toolbox::{Lab, Launch};

use crate::attack::Kind;

/// Hostile peers of a live listener, while honest clients use it
///
/// A process with three listeners (messages, messages with shared receives, streams) echoes all
/// messages. Honest clients send messages of 64 B and of 1 MiB, connect, measure each round
/// trip and compare each byte. Attackers set connections up as the protocol says, and then send
/// frames and PDUs with changed numbers, repeated, left out, cut or longer, in one piece or byte by
/// byte; they announce messages and serve none of them, or slowly; they flood, say nothing, connect
/// again and again, and leave at any byte.
///
/// Quiet phases and attacks alternate. It ends 0 if no honest client has an error or a wrong byte,
/// the 99th percentile of each of their operations during attacks stays below 10 times the quiet
/// one, and after each attack the victim has the memory, descriptors, threads, connections and
/// budget that it had before. The victim must not panic, and may log 10 lines a second.
///
/// Attackers of all kinds together make at most 150 connects and 4000 writes a second over TCP, and
/// 8 and 200 over RDMA, so that they do not use up the processors. If it fails it prints the seed,
/// and the last actions on each connection.
#[derive(Parser)]
#[command(
    name = "integration/attack",
    bin_name = "integration/attack",
    verbatim_doc_comment
)]
struct Options {
    /// Minutes in all, fractions allowed; with both transports each takes half of them
    #[arg(long, value_name = "M", default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// The seed of all random choices [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The transports to attack: TCP on this machine, RDMA in the lab
    #[arg(long, value_enum, default_value_t = Over::Both)]
    transport: Over,
    /// The kinds of attack; may be repeated [default: all]
    #[arg(long, value_name = "KIND", value_enum)]
    only: Vec<Kind>,
    /// Kinds of attack to leave out; may be repeated
    #[arg(long, value_name = "KIND", value_enum)]
    without: Vec<Kind>,
    /// Repeat the attack on this connection alone, as a failed run with the same seed names it
    #[arg(long, value_name = "NUMBER")]
    connection: Option<u64>,
    /// The shortest 99th percentile in milliseconds that counts as a quiet one: on a busy machine
    /// a shorter one is chance
    #[arg(long, value_name = "MS", default_value_t = 2)]
    floor: u64,
    /// Be the victim
    #[arg(long, hide = true)]
    victim: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    Tcp,
    Rdma,
    Both,
}

/// The settings of a run on one transport.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) duration: Duration,
    pub(crate) transport: Transport,
    /// The address of the victim.
    pub(crate) addr: IpAddr,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) connection: Option<u64>,
    pub(crate) floor: Duration,
}

/// More than nothing and less than a month.
fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if minutes > 0.0 && minutes < 43_200.0 => Ok(minutes),
        _ => Err("a number of minutes above 0 and below 43200 is needed".into()),
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("attack: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    ensure!(
        cfg!(debug_assertions),
        "the victim needs debug assertions and overflow checks: build with the profile dev"
    );
    if options.victim {
        victim::run(options.transport == Over::Rdma)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut settings = options.settings();
    if Lab::is_here() {
        settings.addr = Lab::find()?.addr;
        settings.transport = Transport::Rdma;
        judge::run(&settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let over_tcp = match options.transport {
        Over::Rdma => Ok(()),
        Over::Tcp | Over::Both => judge::run(&settings),
    };
    if options.transport != Over::Tcp {
        let status = options.in_the_lab(settings.seed)?.run_without_names()?;
        over_tcp?;
        return Ok(status);
    }
    over_tcp?;
    Ok(ExitCode::SUCCESS)
}

impl Options {
    /// Returns the minutes for each transport.
    fn minutes_each(&self) -> f64 {
        match self.transport {
            Over::Both => self.minutes / 2.0,
            Over::Tcp | Over::Rdma => self.minutes,
        }
    }

    fn settings(&self) -> Settings {
        let all = Kind::value_variants();
        let chosen = if self.only.is_empty() {
            all
        } else {
            &self.only
        };
        let kinds = chosen.iter().filter(|kind| !self.without.contains(kind));
        Settings {
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            duration: Duration::from_secs_f64(self.minutes_each() * 60.0),
            transport: Transport::Tcp,
            addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
            kinds: kinds.copied().collect(),
            connection: self.connection,
            floor: Duration::from_millis(self.floor),
        }
    }

    /// This program on a host of the lab.
    fn in_the_lab(&self, seed: u64) -> Result<Launch> {
        // After each attack the victim has a while to settle.
        let minutes = self.minutes_each();
        let limit = Duration::from_secs_f64(minutes * 60.0) + Duration::from_secs(900);
        let mut launch = Launch::new(1, limit)
            .option("--cpus", "2")
            .option("--memory", "2G")
            .argument(format!("--seed={seed}"))
            .argument(format!("--minutes={minutes}"))
            .argument(format!("--floor={}", self.floor))
            .argument("--transport=rdma")
            .native_where_possible()?;
        if let Some(connection) = self.connection {
            launch = launch.argument(format!("--connection={connection}"));
        }
        for kind in &self.only {
            launch = launch.argument(format!("--only={}", kind.name()));
        }
        for kind in &self.without {
            launch = launch.argument(format!("--without={}", kind.name()));
        }
        Ok(launch)
    }
}
