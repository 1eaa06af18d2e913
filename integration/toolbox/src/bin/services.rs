//! The services of `cm-examples/services` on two hosts, with the stock clients of their protocols
//! over plain TCP and with clients of rdmsg over RDMA.
//!
//! Host a has an agent that starts the servers; host b has the clients and the table.

use std::{
    env, fmt, fs,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use toolbox::{
    Heard, Lab, Launch, Process,
    agent::{self, Host},
    words,
};

/// How long a server may take to listen or to end, and a client for what it does.
const SERVER_LIMIT: Duration = Duration::from_secs(30);
const CLIENT_LIMIT: Duration = Duration::from_secs(120);

/// Where servers listen, for rdmsg and for plain TCP.
const PORT: u16 = 7480;
const TCP_PORT: u16 = 8080;

/// The bytes of a file that is copied.
const FILE: u64 = 50_000_000;

/// Where clients write a page.
const PAGE_FILE: &str = "/tmp/page";

/// A certificate, on either host.
const CERTIFICATE: &str = "/tmp/services.pem";

/// Services over rdmsg, with stock clients too
///
/// Runs each server of cm-examples/services on one host of the lab, and its clients on another:
/// redis-cli, redis-benchmark and curl over plain TCP, as they know nothing else, and clients of
/// rdmsg over RDMA, against the same server at the same time of its life. Prints a line for each,
/// and how each server ended that was asked to. Ends 0 if all of it worked.
///
/// Rates are those of virtual machines in which each instruction is emulated: they say that it
/// works, and nothing of hardware.
#[derive(Parser)]
#[command(
    name = "integration/services",
    bin_name = "integration/services",
    verbatim_doc_comment
)]
struct Options {
    /// Few requests each, and short pages
    #[arg(long)]
    quick: bool,
}

/// A server, and who asks it for what.
struct Service {
    server: &'static str,
    clients: Vec<Client>,
}

/// A client's command line, in which `RDMSG` and `TCP` stand for the server's addresses, `IP` for
/// that of its host, `PORT` for the port of plain TCP, `PAGE` for the bytes
/// of a page and `N` for how many requests.
struct Client {
    line: &'static str,
    shows: Shows,
}

/// What tells that it worked.
enum Shows {
    /// It printed this.
    Text(&'static str),
    /// It wrote a page.
    Page,
    /// It printed how many of them there were in a second.
    Rate(&'static str),
}

fn services() -> Vec<Service> {
    use Shows::{Page, Rate, Text};
    let client = |line, shows| Client { line, shows };
    const REQUESTS: &str = "requests per second";
    vec![
        Service {
            server: "resp_server RDMSG --tcp TCP",
            clients: vec![
                client("redis-cli -h IP -p PORT SET name value", Text("OK")),
                client("resp_client RDMSG GET name", Text("\"value\"")),
                client("resp_client RDMSG RPUSH list a b", Text("(integer) 2")),
                client("redis-cli -h IP -p PORT LRANGE list 0 -1", Text("a\nb")),
                client(
                    "redis-benchmark -h IP -p PORT -q -c 10 -n N -t set,get,incr,ping",
                    Rate(REQUESTS),
                ),
                client("resp_client --tcp TCP -c 10 -n N", Rate(REQUESTS)),
                client("resp_client RDMSG -c 10 -n N", Rate(REQUESTS)),
                client(
                    "redis-benchmark -h IP -p PORT -q -c 10 -P 16 -n N -t set",
                    Rate(REQUESTS),
                ),
                client("resp_client RDMSG -c 10 -P 16 -n N", Rate(REQUESTS)),
            ],
        },
        Service {
            server: "http_server RDMSG --tcp TCP",
            clients: vec![
                client("curl -sS http://TCP/", Text("rdmsg")),
                client("curl -sS -o /tmp/page http://TCP/bytes/PAGE", Page),
                client("http_client RDMSG /bytes/PAGE -o /tmp/page", Page),
                client("http_client RDMSG /echo --post PAGE -o /tmp/page", Page),
                client(
                    "http_client RDMSG /echo --post PAGE -o /tmp/page --http2",
                    Page,
                ),
                client("http_client --tcp TCP / -c 10 -n N", Rate(REQUESTS)),
                client("http_client RDMSG / -c 10 -n N", Rate(REQUESTS)),
                client("http_client RDMSG / -c 10 -n N --http2", Rate(REQUESTS)),
            ],
        },
        Service {
            server: "http_server RDMSG --tcp TCP --self-signed /tmp/services.pem",
            clients: vec![
                client(
                    "curl -sS --cacert /tmp/services.pem --connect-to ::IP:PORT https://rdmsg.test",
                    Text("rdmsg"),
                ),
                client(
                    "http_client RDMSG /bytes/PAGE -o /tmp/page --trust /tmp/services.pem --http2",
                    Page,
                ),
            ],
        },
        Service {
            server: "grpc serve RDMSG --tcp TCP",
            clients: vec![
                client("grpc once RDMSG hello", Text("hello")),
                client("grpc count RDMSG 3", Text("0\n1\n2")),
                client("grpc chat RDMSG a b c", Text("a\nb\nc")),
                client("grpc once --tcp TCP hello -c 10 -n N", Rate(REQUESTS)),
                client("grpc once RDMSG hello -c 10 -n N", Rate(REQUESTS)),
            ],
        },
        Service {
            server: "broker serve RDMSG",
            clients: vec![
                client("broker pub RDMSG news -n N", Rate("messages per second")),
                client("broker ask RDMSG", Text("waiting-bytes 0")),
            ],
        },
        Service {
            server: "file_copy serve /tmp RDMSG",
            clients: vec![
                client("file_copy put /tmp/file RDMSG", Rate("MB/s")),
                client("file_copy get /tmp/back RDMSG --name file", Rate("MB/s")),
                client("sha256sum --check /tmp/sums", Text("/tmp/back: OK")),
            ],
        },
    ]
}

fn main() -> ExitCode {
    play(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("services: {error:#}");
        ExitCode::FAILURE
    })
}

fn play(options: &Options) -> Result<ExitCode> {
    if !Lab::is_here() {
        let mut launch = Launch::new(2, Duration::from_secs(1200))
            .option("--memory", "2G")
            .native_where_possible()?;
        if options.quick {
            launch = launch.argument("--quick");
        }
        return launch.run_without_names();
    }
    let lab = Lab::find()?;
    if lab.host == "a" {
        agent::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let (requests, page) = if options.quick {
        (300, 1_000_000)
    } else {
        (10_000, 10_000_000)
    };
    let mut run = Run {
        host: Host::connect(lab.peer)?,
        ip: lab.peer.to_string(),
        requests: requests.to_string(),
        page,
        failed: 0,
    };
    prepare()?;
    println!("{}", Row(["service", "over", "client", "result"]));
    for service in services() {
        run.serve(&service)?;
    }
    run.host.quit()?;
    println!("{} failed", run.failed);
    Ok(match run.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Makes the file that is copied, and what is known of its copy.
fn prepare() -> Result<()> {
    let bytes: Vec<u8> = (0..FILE).map(|at| (at ^ (at >> 9)) as u8).collect();
    fs::write("/tmp/file", bytes)?;
    let sum = finish("sha256sum /tmp/file", &words("sha256sum /tmp/file"))?;
    Ok(fs::write(
        "/tmp/sums",
        sum.replace("/tmp/file", "/tmp/back"),
    )?)
}

/// The other host, and what has come of it.
struct Run {
    host: Host,
    ip: String,
    requests: String,
    /// The bytes of a page.
    page: u64,
    failed: u32,
}

impl Run {
    fn serve(&mut self, service: &Service) -> Result<()> {
        let name = service.server.split(' ').next().unwrap_or_default();
        self.host.start(&self.argv(service.server)?)?;
        let heard = self.host.hear("listening on", SERVER_LIMIT)?;
        if heard != Heard::Said {
            let ended = self.host.finish(SERVER_LIMIT)?;
            bail!("{name} does not listen: {}", ended.output);
        }
        if service.server.contains(CERTIFICATE) {
            let (_, certificate) = self.host.shell(&format!("cat {CERTIFICATE}"))?;
            fs::write(CERTIFICATE, certificate)?;
        }
        for client in &service.clients {
            let over = if client.line.contains("RDMSG") {
                "RDMA"
            } else if client.line.contains("/tmp/sums") {
                "-"
            } else {
                "TCP"
            };
            let came = self.ask(client);
            self.tell(name, over, client.line, came);
        }
        self.host.signal("TERM")?;
        let ended = self.host.finish(SERVER_LIMIT)?;
        let came = match ended.status {
            Some(0) => Ok("it ended".to_owned()),
            status => Err(anyhow::anyhow!("status {status:?}: {}", ended.output)),
        };
        self.tell(name, "-", "SIGTERM", came);
        Ok(())
    }

    fn tell(&mut self, name: &str, over: &str, client: &str, came: Result<String>) {
        let came = came.unwrap_or_else(|error| {
            self.failed += 1;
            format!("FAILED: {error:#}")
        });
        println!("{}", Row([name, over, client, &came]));
    }

    /// The words of a line, with the program's path where it is one of ours.
    fn argv(&self, line: &str) -> Result<Vec<String>> {
        let tcp = format!("{}:{TCP_PORT}", self.ip);
        let rdmsg = format!("{}:{PORT}", self.ip);
        let line = line
            .replace("RDMSG", &rdmsg)
            .replace("TCP", &tcp)
            .replace("PAGE", &self.page.to_string())
            .replace("PORT", &TCP_PORT.to_string())
            .replace("IP", &self.ip);
        let mut argv = words(&line);
        for word in &mut argv {
            if word == "N" {
                word.clone_from(&self.requests);
            }
        }
        let ours = env::current_exe()?.with_file_name(&argv[0]);
        if ours.exists() {
            argv[0] = ours.to_string_lossy().into_owned();
        }
        Ok(argv)
    }

    /// Runs a client, and returns what there is to say of it.
    fn ask(&self, client: &Client) -> Result<String> {
        let start = Instant::now();
        let printed = finish(client.line, &self.argv(client.line)?)?;
        let took = start.elapsed().as_secs_f64();
        match client.shows {
            Shows::Text(text) => {
                ensure!(printed.contains(text), "it printed {printed:?}");
                Ok("ok".to_owned())
            }
            Shows::Page => {
                let count = self.page;
                let came = fs::metadata(PAGE_FILE)?.len();
                ensure!(came == count, "{came} bytes of {count} came");
                fs::remove_file(PAGE_FILE)?;
                Ok(format!("{:.1} MB/s", count as f64 / 1e6 / took))
            }
            Shows::Rate(unit) => {
                let mut rates = Vec::new();
                // A line may be written over by the next.
                for line in printed.split(['\n', '\r']) {
                    if let Some((before, _)) = line.split_once(&format!(" {unit}")) {
                        let what = before.split_once(':').map_or("", |(what, _)| what);
                        let rate = before.rsplit(' ').next().unwrap_or_default();
                        rates.push(format!("{what} {rate}").trim().to_owned());
                    }
                }
                ensure!(!rates.is_empty(), "it printed {printed:?}");
                Ok(format!("{} {unit}", rates.join(", ")))
            }
        }
    }
}

/// Runs a program to its end, which has to be a good one.
fn finish(line: &str, argv: &[String]) -> Result<String> {
    let process = Process::start(argv).with_context(|| format!("cannot run {line}"))?;
    let ended = process.finish(CLIENT_LIMIT)?;
    match ended.status {
        Some(0) => Ok(ended.output),
        Some(status) => bail!("status {status}: {}", ended.output.trim()),
        None => bail!("it did not end in time: {}", ended.output.trim()),
    }
}

/// A line of the table.
struct Row<'a>([&'a str; 4]);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [service, over, client, result] = self.0;
        write!(f, "{service:<12} {over:<5} {client:<66} {result}")
    }
}
