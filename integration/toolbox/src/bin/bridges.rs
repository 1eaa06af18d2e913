//! What a pair of bridges adds to the time of a service that nobody changed.

use std::{
    env,
    net::TcpListener,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use toolbox::{BridgePair, Heard, Lab, Launch, PATIENCE, Process, words};

/// What a pair of bridges adds to the time of a redis server
///
/// Runs redis-server and redis-benchmark (GET) as they come from the distribution: over TCP, and
/// through a pair of `rdmsg bridge` with rdmsg over its own TCP, and over RDMA, between them. All
/// of it runs in one guest of the lab whose clock counts instructions: a microsecond is a thousand
/// of them, of all programs and the kernel together, on one processor.
///
/// Prints the median, which redis-benchmark rounds to 8 µs, the mean, and what the pair adds to
/// the mean, in multiples of that over TCP. The target is below 2. Ends 0 if everything ran.
#[derive(Parser)]
#[command(
    name = "integration/bridges",
    bin_name = "integration/bridges",
    verbatim_doc_comment
)]
struct Options {
    /// Requests for each line of the table.
    #[arg(long, default_value_t = 3000)]
    requests: u32,

    /// Connections at a time; may be repeated.
    #[arg(long, default_values_t = [1])]
    clients: Vec<u32>,
}

/// What the pair may add, in multiples of the time without it.
const TARGET: f64 = 2.0;

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if Lab::is_here() {
        measure(&options)
    } else {
        in_lab()
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bridges: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the lab, in which this program runs anew.
fn in_lab() -> Result<()> {
    let mut lab = Launch::counted(Duration::from_secs(900));
    for argument in env::args().skip(1) {
        lab = lab.argument(argument);
    }
    Err(lab.exec())
}

fn measure(options: &Options) -> Result<()> {
    let lab = Lab::find()?;
    let service = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let port = service.port().to_string();
    let no_files = ["--save", "", "--appendonly", "no", "--dir", "/tmp"];
    let mut argv = vec!["redis-server", "--bind", "127.0.0.1", "--port", &port];
    argv.extend(no_files);
    let mut redis = Process::start(&argv)?;
    let ready = redis.hear("Ready to accept connections", PATIENCE);
    ensure!(ready == Heard::Said, "redis-server does not start");

    let rdmsg = env::current_exe()?.with_file_name("rdmsg");
    // The clock jumps where nothing runs, so whatever has a limit gets a generous one.
    let more = words("--threads 1 --connect-timeout 600");
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let over_tcp = BridgePair::start(&rdmsg, "rdmsg+tcp://127.0.0.1:0", service, &more)?;
    let rdma = format!("rdma://{}", lab.at(0));
    let over_rdma = BridgePair::start(&rdmsg, &rdma, service, &more)?;
    let ways = [
        ("TCP", service),
        ("bridges, rdmsg+tcp", over_tcp.address()),
        ("bridges, rdma", over_rdma.address()),
    ];
    println!("clients  way                  median µs  mean µs  added to the mean");
    for clients in &options.clients {
        let mut alone = None;
        for (name, address) in ways {
            let (median, mean) = get(address.port(), *clients, options.requests)?;
            let added = alone.map_or_else(String::new, |alone| {
                let added = (mean - alone) / alone;
                let met = if added < TARGET { "ok" } else { "MISSED" };
                format!("{added:.2} x, target < {TARGET} x: {met}")
            });
            alone = alone.or(Some(mean));
            println!("{clients:>7}  {name:<19}  {median:>9.0}  {mean:>7.0}  {added}");
        }
    }
    Ok(())
}

/// Median and mean of a request's time in microseconds.
fn get(port: u16, clients: u32, requests: u32) -> Result<(f64, f64)> {
    let line = format!("-p {port} -c {clients} -n {requests} -t get --csv");
    let output = Command::new("redis-benchmark")
        .args(words(&line))
        .output()?;
    let table = String::from_utf8(output.stdout)?;
    let row = table.lines().find(|line| line.starts_with("\"GET\""));
    let row = row.with_context(|| format!("redis-benchmark {line}: {table}"))?;
    let cells: Vec<f64> = row
        .split(',')
        .skip(1)
        .map(|cell| Ok(cell.trim_matches('"').parse()?))
        .collect::<Result<_>>()?;
    // Requests a second, then the mean, the least, and percentiles from the median on, in
    // milliseconds.
    let micros = |column: usize| cells.get(column).map(|millis| millis * 1e3);
    micros(3)
        .zip(micros(1))
        .context("redis-benchmark prints other columns")
}
