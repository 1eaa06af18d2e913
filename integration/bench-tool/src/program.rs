//! The measured programs: their names, command lines and output.

use std::{
    env, fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use anyhow::{Context, Error, Result};
use serde::Serialize;
use toolbox::{Listening, words};

use crate::{
    manner::Manner,
    measure::Measure,
    traffic::{Reading, Traffic},
};

/// A measured program. It consists of a server and a client. The stock programs sleep while they
/// wait for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `ib_send_lat -e` and similar programs of perftest, which use the connection manager to
    /// connect.
    Perftest,
    /// `rstream -T b` of rdmacm-utils, over rsockets or plain TCP.
    Rstream { tcp: bool },
    /// `ucmatose` of rdmacm-utils, which opens and closes connections.
    Ucmatose,
    /// This program, with rdmsg or another library.
    Rdmsg(Manner),
}

/// Parses the name of a program in `rows.txt`.
impl FromStr for Program {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "perftest" => Self::Perftest,
            "rstream" => Self::Rstream { tcp: false },
            "rstream tcp" => Self::Rstream { tcp: true },
            "ucmatose" => Self::Ucmatose,
            manner => Self::Rdmsg(manner.parse()?),
        })
    }
}

/// One run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) program: Program,
    pub(crate) measure: Measure,
    pub(crate) size: usize,
    /// The number of messages, or of connections that are opened and closed.
    pub(crate) count: u64,
}

/// The command lines of a run. The server must be started first.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(crate) server: Vec<String>,
    /// The port that the conductor checks to find out whether the server listens yet.
    pub(crate) listening: Listening,
    pub(crate) client: Vec<String>,
}

impl Run {
    /// Returns the program's name for a table.
    pub(crate) fn name(&self) -> String {
        match self.program {
            Program::Perftest => format!("{} -R -e", self.perftest()),
            Program::Rstream { tcp: true } => "rstream -T s -T b".to_owned(),
            Program::Rstream { tcp: false } => "rstream -T b".to_owned(),
            Program::Ucmatose => "ucmatose".to_owned(),
            Program::Rdmsg(manner) => manner.to_string(),
        }
    }

    fn perftest(&self) -> &'static str {
        match self.measure {
            // perftest can only busy-poll for the completion of a WRITE, so our WRITE is compared
            // with a SEND of perftest.
            Measure::OneWay | Measure::Write => "ib_send_bw",
            Measure::Read => "ib_read_lat",
            _ => "ib_send_lat",
        }
    }

    /// Returns the command lines of the server and the client. The server listens on `address` and
    /// `port`.
    pub(crate) fn commands(&self, address: IpAddr, device: &str, port: u16) -> Result<Commands> {
        let Self { size, count, .. } = *self;
        let listening = |is_over_tcp| match is_over_tcp {
            true => Listening::Tcp(port),
            false => Listening::Cm(port),
        };
        let (line, is_over_tcp, to_server) = match self.program {
            // -F disables perftest's check for a varying processor frequency.
            Program::Perftest => (
                format!(
                    "{} -R -F -e -d {device} -s {size} -n {count} -p {port}",
                    self.perftest()
                ),
                false,
                "",
            ),
            Program::Rstream { tcp } => {
                // The inline sizes are those that rstream uses in its built-in tests: 64 for
                // latency and 0 for bandwidth.
                let (inline, iterations, transfers) = match self.measure {
                    Measure::OneWay => (0, 1, count),
                    _ => (64, count, 1),
                };
                let over_tcp = if tcp { "-T s" } else { "" };
                let line = format!(
                    "rstream {over_tcp} -T b -i {inline} -S {size} -I {iterations} -C {transfers} \
                     -p {port}"
                );
                (line, tcp, "-s ")
            }
            // Each connection transfers one message, because ucmatose does not close a connection
            // that has transferred none.
            Program::Ucmatose => (
                format!("ucmatose -C 1 -S 64 -c {count} -p {port}"),
                false,
                "-s ",
            ),
            Program::Rdmsg(manner) => {
                // If the run only opens connections, `count` is their number. Any other run begins
                // with unmeasured messages: a tenth of `count`, but at least one per connection.
                let (connections, warm_up, count) = match self.measure.is_of_connections() {
                    true => (u32::try_from(count)?, 0, 0),
                    false => {
                        let connections = manner.connections;
                        (connections, (count / 10).max(connections.into()), count)
                    }
                };
                let traffic = [Traffic {
                    server: SocketAddr::new(address, port),
                    measure: self.measure,
                    size,
                    warm_up,
                    count,
                    manner: Manner {
                        connections,
                        ..manner
                    },
                }];
                return Ok(Commands {
                    server: argv("serve", &traffic)?,
                    listening: listening(manner.is_over_tcp()),
                    client: argv("measure", &traffic)?,
                });
            }
        };
        Ok(Commands {
            server: words(&line),
            listening: listening(is_over_tcp),
            client: words(&format!("{line} {to_server}{address}")),
        })
    }

    /// Parses the figures in the client's output. Only the client of a sweep prints more than one
    /// reading.
    pub(crate) fn read(&self, output: &str) -> Result<Vec<Reading>> {
        let readings = match self.program {
            Program::Perftest => perftest(self.measure, self.size, output).map(|it| vec![it]),
            Program::Rstream { .. } => rstream(self.measure, output).map(|it| vec![it]),
            // ucmatose prints no figure. So the conductor measures the processor time of the whole
            // host.
            Program::Ucmatose => None,
            // The figures are in the last line that contains JSON.
            Program::Rdmsg(_) => {
                let mut lines = output.lines().rev();
                lines.find_map(|line| serde_json::from_str(line).ok())
            }
        };
        readings
            .with_context(|| format!("cannot find the figures in the output of {}", self.name()))
    }
}

/// Parses the output of perftest. The line with the figures begins with the size and the count. For
/// latency, the minimum, maximum, median and mean in µs follow. For bandwidth, the peak and the
/// mean in MiB/s and the rate in million messages per second follow. Only the rate has enough
/// digits for short messages, and only the bandwidth has enough digits for long ones.
fn perftest(measure: Measure, size: usize, output: &str) -> Option<Reading> {
    let figures = output.lines().find_map(|line| {
        let figures: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        figures
            .ok()
            .filter(|figures| figures.first() == Some(&(size as f64)))
    })?;
    Some(if !measure.is_rate() {
        Reading {
            median: Some(*figures.get(4)?),
            mean: *figures.get(5)?,
        }
    } else if size < 16 << 10 {
        Reading::mean(figures.get(4)? * 1e6)
    } else {
        Reading::mean(figures.get(3)? * f64::from(1 << 20) / size as f64)
    })
}

/// Parses the output of rstream. In the last line that starts with `custom`, the last word is the
/// time per transfer in µs.
fn rstream(measure: Measure, output: &str) -> Option<Reading> {
    let line = output.lines().rfind(|line| line.starts_with("custom"))?;
    let mean: f64 = line.split_whitespace().next_back()?.parse().ok()?;
    let rate = measure.is_rate().then_some(1e6 / mean);
    Some(Reading::mean(rate.unwrap_or(mean)))
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measure, size, .. } = self;
        write!(f, "{}, {measure} of {size} bytes", self.name())
    }
}

/// Returns the command line with which this program starts itself again. `command` is one of its
/// hidden commands, whose arguments are the jobs in JSON.
pub(crate) fn argv(command: &str, jobs: &[impl Serialize]) -> Result<Vec<String>> {
    let program = env::current_exe()?.to_string_lossy().into_owned();
    let mut argv = vec![program, command.to_owned()];
    for job in jobs {
        argv.push(serde_json::to_string(job)?);
    }
    Ok(argv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measure::{HalfRoundTrip, OneWay};

    fn mean(mean: f64) -> Option<Reading> {
        Some(Reading::mean(mean))
    }

    #[test]
    fn figures_of_perftest_are_read() {
        let output = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                      99% percentile[usec]   99.9% percentile[usec] \n \
                      64      1000          12.54          23526.61      13.87    \t       829.72      \t1627.90\t\t5287.22 \t\t8031.47\n";
        let expected = Reading {
            median: Some(13.87),
            mean: 829.72,
        };
        assert_eq!(perftest(HalfRoundTrip, 64, output), Some(expected));
        let output = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                      1048576    60               147.93             103.50 \t\t   0.000104\n \
                      64         1000            3.36               1.53   \t\t   0.025137\n";
        assert_eq!(perftest(OneWay, 1 << 20, output), mean(103.5));
        assert_eq!(perftest(OneWay, 64, output), mean(25137.0));
        assert_eq!(perftest(OneWay, 128, output), None);
    }

    #[test]
    fn figures_of_rstream_are_read() {
        let output = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n\
                      custom    1m      40      1       80m         0.67s      1.00    8000.00\n";
        assert_eq!(rstream(OneWay, output), mean(125.0));
        assert_eq!(rstream(HalfRoundTrip, output), mean(8000.0));
    }

    #[test]
    fn figures_of_ours_are_read() {
        let run = Run {
            program: Program::Rdmsg(Manner::DEFAULT),
            measure: HalfRoundTrip,
            size: 64,
            count: 1,
        };
        let reading = Reading {
            mean: 14.25,
            median: Some(13.5),
        };
        let output = serde_json::to_string(&[reading]).unwrap();
        assert_eq!(run.read(&format!("{output}\n")).unwrap(), [reading]);
        assert!(run.read("bench: no connection\n").is_err());
    }

    #[test]
    fn command_line_says_what_to_do() {
        let run = Run {
            program: Program::Rdmsg(Manner::DEFAULT),
            measure: OneWay,
            size: 64,
            count: 5,
        };
        let commands = run.commands([10, 8, 0, 1].into(), "rxe0", 7471).unwrap();
        assert_eq!(commands.listening, Listening::Cm(7471));
        let traffic: Traffic = serde_json::from_str(&commands.client[2]).unwrap();
        assert_eq!((traffic.server.port(), traffic.count), (7471, 5));
        assert_eq!(traffic.manner, Manner::DEFAULT);
    }
}
