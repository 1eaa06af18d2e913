//! Measures requests to redis-server, in a guest whose clock counts instructions.

use std::{env, net::TcpListener, process::Command};

use anyhow::{Context, Result, ensure};
use toolbox::{BridgePair, Lab, Process, TIME_LIMIT, words};

/// The target: the pair of bridges must add less than this multiple of the mean time without
/// bridges.
const TARGET: f64 = 2.0;

/// The number of requests that are measured for each row of the table.
const REQUESTS: u32 = 3000;

/// Measures requests of one client, and prints a table.
pub(crate) fn measure() -> Result<()> {
    let lab = Lab::find()?;
    let service = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let port = service.port();
    let line = "redis-server --bind 127.0.0.1 --appendonly no --dir /tmp --port";
    let mut argv = words(&format!("{line} {port}"));
    argv.extend(["--save", ""].map(str::to_owned));
    let mut redis = Process::start(&argv)?;
    let ready = redis.wait_for_text("Ready to accept connections", TIME_LIMIT);
    ensure!(ready, "redis-server does not start");

    let rdmsg = env::current_exe()?.with_file_name("rdmsg");
    // While no program runs, the guest's clock advances with the clock of the machine that runs the
    // guest. The guest's clock then advances much faster than while the guest executes
    // instructions, so a short timeout would expire too early.
    let more = ["--threads", "1", "--connect-timeout", "600"];
    let over_tcp = BridgePair::start(&rdmsg, "rdmsg+tcp://127.0.0.1:0", service, &more)?;
    let rdma = format!("rdma://{}", lab.at(0));
    let over_rdma = BridgePair::start(&rdmsg, &rdma, service, &more)?;
    let ways = [
        ("TCP", service),
        ("bridges, rdmsg+tcp", over_tcp.near.address),
        ("bridges, rdma", over_rdma.near.address),
    ];
    println!("clients  way                  median µs  mean µs  added to the mean");
    let mut alone = None;
    for (name, address) in ways {
        let (median, mean) = get(address.port())?;
        let added = alone.map_or_else(String::new, |alone| {
            let added = (mean - alone) / alone;
            let met = if added < TARGET { "ok" } else { "MISSED" };
            format!("{added:.2} x, target < {TARGET} x: {met}")
        });
        alone = alone.or(Some(mean));
        println!("{:>7}  {name:<19}  {median:>9.0}  {mean:>7.0}  {added}", 1);
    }
    Ok(())
}

/// Runs GET requests. Returns the median and the mean of their times in microseconds.
fn get(port: u16) -> Result<(f64, f64)> {
    let line = format!("-p {port} -c 1 -n {REQUESTS} -t get --csv");
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
    // The columns after the name are: requests per second, the mean, the minimum, and the
    // percentiles from the median up. All times are in milliseconds.
    let micros = |column: usize| cells.get(column).map(|millis| millis * 1e3);
    micros(3)
        .zip(micros(1))
        .context("redis-benchmark does not print the mean and the median")
}
