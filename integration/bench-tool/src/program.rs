//! The programs that are measured: what they are called, and how.

use std::{env, ffi::OsStr, fmt, net::IpAddr, path::Path};

use anyhow::{Context, Result};
use toolbox::{Listening, words};

use crate::{
    manner::Manner,
    measure::Measure,
    reading::{self, Reading},
    traffic::Traffic,
};

/// A program that measures something, as a server and a client. Those with `event` sleep until
/// something comes, where they poll otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `ib_send_lat` and its like, of perftest, with the connection manager.
    Perftest { event: bool },
    /// `rstream`, of rdmacm-utils: rsockets, or plain TCP. With `event` its calls block.
    Rstream { event: bool, tcp: bool },
    /// `ucx_perftest` over reliable connections, with its tagged messages.
    Ucx { event: bool },
    /// `ucx_perftest` with active messages of UCX's lower layer, which end at 8 KiB.
    UcxActive,
    /// `fi_pingpong` with the provider `verbs`.
    Libfabric,
    /// `qperf` with the connection manager.
    Qperf,
    /// This one.
    Rdmsg(Manner),
}

/// One way to call a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) program: Program,
    pub(crate) measure: Measure,
    pub(crate) size: usize,
    pub(crate) count: u64,
}

/// What to start for a run.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(crate) server: Vec<String>,
    /// What shows that the server is there.
    pub(crate) listening: Listening,
    pub(crate) client: Vec<String>,
    /// Whether the server ends with its client.
    pub(crate) ends: bool,
}

impl Program {
    /// The command to look for, where it is not ours.
    fn command(self, measure: Measure) -> Option<&'static str> {
        Some(match (self, measure) {
            (Self::Perftest { .. }, Measure::OneWay | Measure::Pressed) => "ib_send_bw",
            (Self::Perftest { .. }, Measure::Ring) => "ib_write_lat",
            (Self::Perftest { .. }, Measure::Read) => "ib_read_lat",
            (Self::Perftest { .. }, _) => "ib_send_lat",
            (Self::Rstream { .. }, _) => "rstream",
            (Self::Ucx { .. } | Self::UcxActive, _) => "ucx_perftest",
            (Self::Libfabric, _) => "fi_pingpong",
            (Self::Qperf, _) => "qperf",
            (Self::Rdmsg(_), _) => return None,
        })
    }
}

impl Run {
    /// What to call the program in a table.
    pub(crate) fn name(&self) -> String {
        let command = self.program.command(self.measure).unwrap_or_default();
        match self.program {
            Program::Perftest { event: true } => format!("{command} -R -e"),
            Program::Perftest { event: false } => format!("{command} -R"),
            Program::Rstream { event, tcp } => {
                let tcp = if tcp { " -T s" } else { "" };
                let event = if event { " -T b" } else { "" };
                format!("{command}{tcp}{event}")
            }
            Program::Ucx { event: true } => format!("{command} -t tag -E sleep"),
            Program::Ucx { event: false } => format!("{command} -t tag"),
            Program::UcxActive => format!("{command} -t am"),
            Program::Libfabric => format!("{command} -p verbs"),
            Program::Qperf => command.to_owned(),
            Program::Rdmsg(manner) if self.measure == Measure::Ring => format!("{manner} written"),
            Program::Rdmsg(manner) => manner.to_string(),
        }
    }

    /// Whether what it takes is installed here.
    pub(crate) fn is_installed(&self) -> bool {
        self.program.command(self.measure).is_none_or(is_installed)
    }

    /// What to run for a server at `address`.
    pub(crate) fn commands(&self, address: IpAddr, device: &str, port: u16) -> Result<Commands> {
        let Self { size, count, .. } = *self;
        let one_way = self.measure.is_one_way();
        let command = self.program.command(self.measure).unwrap_or_default();
        let both = |line: String, listening, to_server: &str| {
            let server = words(&line);
            let mut client = server.clone();
            client.extend(words(&format!("{to_server} {address}")));
            Commands {
                server,
                listening,
                client,
                ends: true,
            }
        };
        let mut commands = match self.program {
            Program::Perftest { event } => {
                let event = if event { "-e" } else { "" };
                // -F: not to refuse a processor whose frequency may change.
                let line =
                    format!("{command} -R -F {event} -d {device} -s {size} -n {count} -p {port}");
                both(line, Listening::Cm(port), "")
            }
            Program::Rstream { event, tcp } => {
                // As its own tests: inline data for latency, none for bandwidth.
                let (inline, iterations, transfers) = if one_way {
                    (0, 1, count)
                } else {
                    (64, count, 1)
                };
                let event = if event { "-T b" } else { "" };
                let (tcp, listening) = if tcp {
                    ("-T s", Listening::Tcp(port))
                } else {
                    ("", Listening::Cm(port))
                };
                let line = format!(
                    "{command} {tcp} {event} -i {inline} -S {size} -I {iterations} -C {transfers} \
                     -p {port}"
                );
                both(line, listening, "-s")
            }
            Program::Ucx { event } => {
                let env = format!("env UCX_TLS=rc_verbs,ud_verbs UCX_NET_DEVICES={device}:1");
                let test = if one_way { "tag_bw" } else { "tag_lat" };
                let event = if event { "-E sleep" } else { "" };
                let warm_up = (count / 10).max(1);
                let line = format!(
                    "{env} {command} -t {test} -s {size} -n {count} -w {warm_up} -f {event} -p {port}"
                );
                both(line, Listening::Tcp(port), "")
            }
            Program::UcxActive => {
                let test = if one_way { "am_bw" } else { "am_lat" };
                let warm_up = (count / 10).max(1);
                let line = format!(
                    "{command} -t {test} -d {device}:1 -x rc_verbs -D bcopy -s {size} -n {count} \
                     -w {warm_up} -f -p {port}"
                );
                both(line, Listening::Tcp(port), "")
            }
            Program::Libfabric => {
                let line = format!("{command} -p verbs -e msg -I {count} -S {size}");
                Commands {
                    server: words(&format!("{line} -B {port}")),
                    listening: Listening::Tcp(port),
                    client: words(&format!("{line} -P {port} {address}")),
                    ends: true,
                }
            }
            Program::Qperf => {
                let server = words(&format!("{command} -lp {port}"));
                let test = if one_way { "rc_bw" } else { "rc_lat" };
                let client =
                    format!("{command} -lp {port} -cm 1 -cp 1 -t 1 -m {size} {address} {test}");
                Commands {
                    server,
                    listening: Listening::Tcp(port),
                    client: words(&client),
                    ends: false,
                }
            }
            Program::Rdmsg(manner) => {
                let traffic = Traffic {
                    address,
                    port,
                    measure: self.measure,
                    size,
                    count,
                    manner,
                };
                let listening = if manner.tcp {
                    Listening::Tcp(port)
                } else {
                    Listening::Cm(port)
                };
                Commands {
                    server: ourselves("server", traffic.arguments())?,
                    listening,
                    client: ourselves("client", traffic.arguments())?,
                    ends: true,
                }
            }
        };
        if self.measure == Measure::Pressed {
            commands.server.splice(..0, words("nice -n 19"));
        }
        Ok(commands)
    }

    /// Finds the figures in what the client printed.
    pub(crate) fn read(&self, output: &str) -> Result<Reading> {
        let reading = match self.program {
            Program::Perftest { .. } => reading::perftest(self.measure, self.size, output),
            Program::Rstream { .. } => reading::rstream(self.measure, output),
            Program::Ucx { .. } | Program::UcxActive => reading::ucx(self.measure, output),
            Program::Libfabric => reading::libfabric(output),
            Program::Qperf => reading::qperf(self.measure, self.size, output),
            Program::Rdmsg(_) => reading::ours(self.measure, output),
        };
        reading.with_context(|| format!("{} printed no figures that are understood", self.name()))
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} of {} bytes",
            self.name(),
            self.measure,
            self.size
        )
    }
}

/// This program's own command line.
pub(crate) fn ourselves(command: &str, arguments: Vec<String>) -> Result<Vec<String>> {
    let program = env::current_exe()?;
    let mut argv = vec![program.to_string_lossy().into_owned(), command.to_owned()];
    argv.extend(arguments);
    Ok(argv)
}

/// Whether there is such a command.
pub(crate) fn is_installed(command: impl AsRef<OsStr>) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    let command = Path::new(command.as_ref());
    env::split_paths(&folders).any(|folder| folder.join(command).is_file())
}
