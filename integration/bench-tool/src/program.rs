use std::{env, fmt, net::IpAddr};

use anyhow::{Context, Result};
use toolbox::words;

use crate::{
    manner::Manner,
    reading::Reading,
    traffic::{Test, Traffic},
};

/// A program that measures something, as a server and a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `ib_send_lat` or `ib_send_bw`, of perftest, with the connection manager.
    Perftest,
    /// `rstream`, of rdmacm-utils: rsocket.
    Rstream,
    /// This one.
    Rdmsg(Manner),
}

/// One way to call a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) program: Program,
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) count: u64,
}

/// Command lines of a server and its client.
#[derive(Debug)]
pub(crate) struct CommandLines {
    pub(crate) server: Vec<String>,
    pub(crate) client: Vec<String>,
}

impl Run {
    /// What to call the program in a table.
    pub(crate) fn name(&self) -> String {
        match (self.program, self.test) {
            (Program::Perftest, Test::Latency) => "ib_send_lat -R".to_owned(),
            (Program::Perftest, Test::Bandwidth) => "ib_send_bw -R".to_owned(),
            (Program::Rstream, _) => "rstream".to_owned(),
            (Program::Rdmsg(manner), _) => manner.to_string(),
        }
    }

    /// What to run for a server at `address`.
    pub(crate) fn command_lines(
        &self,
        address: IpAddr,
        device: &str,
        port: u16,
    ) -> Result<CommandLines> {
        Ok(match self.program {
            Program::Perftest => {
                let program = match self.test {
                    Test::Latency => "ib_send_lat",
                    Test::Bandwidth => "ib_send_bw",
                };
                // -F: not to refuse a processor whose frequency may change.
                let server = words(&format!(
                    "{program} -R -F -d {device} -s {} -n {} -p {port}",
                    self.size, self.count
                ));
                let mut client = server.clone();
                client.push(address.to_string());
                CommandLines { server, client }
            }
            Program::Rstream => {
                // As its own tests: inline data for latency, none for bandwidth.
                let server = words(&match self.test {
                    Test::Latency => format!(
                        "rstream -i 64 -S {} -I {} -C 1 -p {port}",
                        self.size, self.count
                    ),
                    Test::Bandwidth => format!(
                        "rstream -i 0 -S {} -I 1 -C {} -p {port}",
                        self.size, self.count
                    ),
                });
                let mut client = server.clone();
                client.extend(["-s".into(), address.to_string()]);
                CommandLines { server, client }
            }
            Program::Rdmsg(manner) => {
                let traffic = Traffic {
                    address,
                    port,
                    test: self.test,
                    size: self.size,
                    count: self.count,
                    manner,
                };
                CommandLines {
                    server: ourselves("server", traffic.arguments())?,
                    client: ourselves("client", traffic.arguments())?,
                }
            }
        })
    }

    /// Finds the figures in what the client printed.
    pub(crate) fn read(&self, output: &str) -> Result<Reading> {
        let reading = match self.program {
            Program::Perftest => self.read_perftest(output),
            Program::Rstream => self.read_rstream(output),
            Program::Rdmsg(_) => self.read_ours(output),
        };
        reading.with_context(|| format!("{} printed no figures that are understood", self.name()))
    }

    /// A line begins with size and count. Latency goes on with min, max, median and mean; bandwidth
    /// with peak and mean in MiB/s and with million messages a second. Each of the last two has
    /// digits enough where the other has not.
    fn read_perftest(&self, output: &str) -> Option<Reading> {
        let size = self.size.to_string();
        let line = output
            .lines()
            .find(|line| line.split_whitespace().next() == Some(&size))?;
        let figures: Vec<f64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        Some(match self.test {
            Test::Latency => Reading::Latency {
                median: Some(*figures.get(4)?),
                mean: *figures.get(5)?,
            },
            Test::Bandwidth if self.size < 16 << 10 => Reading::Rate(figures.get(4)? * 1e6),
            Test::Bandwidth => {
                Reading::Rate(figures.get(3)? * f64::from(1 << 20) / self.size as f64)
            }
        })
    }

    /// The last word of the last line is microseconds a transfer, of both directions.
    fn read_rstream(&self, output: &str) -> Option<Reading> {
        let line = output.lines().rfind(|line| line.starts_with("custom"))?;
        let mean: f64 = line.split_whitespace().next_back()?.parse().ok()?;
        Some(match self.test {
            Test::Latency => Reading::Latency { median: None, mean },
            Test::Bandwidth => Reading::Rate(1e6 / mean),
        })
    }

    fn read_ours(&self, output: &str) -> Option<Reading> {
        let figure = |name: &str| {
            output.split_whitespace().find_map(|word| {
                let (key, value) = word.split_once('=')?;
                value.parse().ok().filter(|_: &f64| key == name)
            })
        };
        Some(match self.test {
            Test::Latency => Reading::Latency {
                median: Some(figure("p50")?),
                mean: figure("mean")?,
            },
            Test::Bandwidth => Reading::Rate(figure("rate")?),
        })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?} of {} bytes", self.name(), self.test, self.size)
    }
}

/// This program's own command line.
pub(crate) fn ourselves(command: &str, arguments: Vec<String>) -> Result<Vec<String>> {
    let program = env::current_exe()?;
    let mut argv = vec![program.to_string_lossy().into_owned(), command.to_owned()];
    argv.extend(arguments);
    Ok(argv)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: Program, test: Test, size: usize) -> Run {
        Run {
            program,
            test,
            size,
            count: 1000,
        }
    }

    #[test]
    fn figures_of_perftest() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                       99% percentile[usec]   99.9% percentile[usec] \n \
                       64      1000          12.54          23526.61      13.87    \t       829.72      \t1627.90\t\t5287.22 \t\t8031.47\n";
        assert_eq!(
            run(Program::Perftest, Test::Latency, 64)
                .read(latency)
                .unwrap(),
            Reading::Latency {
                median: Some(13.87),
                mean: 829.72
            }
        );
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         1048576    60               147.93             103.50 \t\t   0.000104\n \
                         64         1000            3.36               1.53   \t\t   0.025137\n";
        assert_eq!(
            run(Program::Perftest, Test::Bandwidth, 1 << 20)
                .read(bandwidth)
                .unwrap(),
            Reading::Rate(103.5)
        );
        assert_eq!(
            run(Program::Perftest, Test::Bandwidth, 64)
                .read(bandwidth)
                .unwrap(),
            Reading::Rate(25137.0)
        );
        assert!(
            run(Program::Perftest, Test::Bandwidth, 128)
                .read(bandwidth)
                .is_err()
        );
    }

    #[test]
    fn figures_of_rstream() {
        let output = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n\
                      custom    1m      40      1       80m         0.67s      1.00    8000.00\n";
        assert_eq!(
            run(Program::Rstream, Test::Bandwidth, 1 << 20)
                .read(output)
                .unwrap(),
            Reading::Rate(125.0)
        );
        assert_eq!(
            run(Program::Rstream, Test::Latency, 1 << 20)
                .read(output)
                .unwrap(),
            Reading::Latency {
                median: None,
                mean: 8000.0
            }
        );
    }

    #[test]
    fn figures_of_ours() {
        let ours = Program::Rdmsg(Manner::default());
        let latency = run(ours, Test::Latency, 64);
        assert_eq!(
            latency
                .read("mean=14.250 min=12.000 p50=13.500 p99=20.000\n")
                .unwrap(),
            Reading::Latency {
                median: Some(13.5),
                mean: 14.25
            }
        );
        let bandwidth = run(ours, Test::Bandwidth, 64);
        assert_eq!(
            bandwidth.read("rate=1000.5\n").unwrap(),
            Reading::Rate(1000.5)
        );
        assert!(bandwidth.read("bench: no connection\n").is_err());
    }
}
