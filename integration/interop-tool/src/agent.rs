//! Host b: starts servers at the wish of host a.
//!
//! One TCP connection, on which each request and each answer is a line. `start` is followed by the
//! arguments, a line each, and an empty line; it is answered by `started`. `await cm PORT` and
//! `await tcp PORT` are answered by `ready`, `ended` or `late`. `hear MILLISECONDS TEXT` waits
//! until the server has printed that, and is answered by `said`, `ended` or `late`. `finish
//! MILLISECONDS` lets the server run for so long at most, kills it then, and is answered by its
//! status, or `killed`, and the length of its output, which follows.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{Result, pace, process::Process};

pub(crate) const PORT: u16 = 7450;

/// How many seconds a server may take until it listens, on an idle machine.
const START_LIMIT: u64 = 20;
/// Host a is silent no longer than its longest client runs.
const SILENCE: Duration = Duration::from_secs(3600);
/// Between two looks at something that nothing tells of.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves host a until that says that it is done.
pub(crate) fn serve() -> Result<()> {
    let (stream, _) = TcpListener::bind(("0.0.0.0", PORT))?.accept()?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut requests = BufReader::new(stream.try_clone()?);
    let mut server = None;
    loop {
        let request = line(&mut requests)?;
        let words: Vec<&str> = request.split(' ').collect();
        match (words.as_slice(), &mut server) {
            (["start"], _) => {
                let mut argv = Vec::new();
                loop {
                    match line(&mut requests)? {
                        end if end.is_empty() => break,
                        argument => argv.push(argument),
                    }
                }
                server = Some(Process::start(&argv)?);
                answer(&stream, "started")?;
            }
            (["await", kind, port], Some(server)) => {
                let port = port.parse()?;
                let listens = || match *kind {
                    "cm" => cm_listens(port),
                    "datagrams" => has_datagrams(),
                    _ => tcp_listens(port),
                };
                answer(&stream, until(server, listens)?)?;
            }
            (["hear", millis, text @ ..], Some(server)) => {
                let limit = Duration::from_millis(millis.parse()?);
                answer(&stream, server.hear(&text.join(" "), limit).as_str())?;
            }
            (["finish", millis], Some(_)) => {
                let limit = Duration::from_millis(millis.parse()?);
                let ended = server.take().ok_or("there is no server")?.finish(limit)?;
                let status = ended
                    .status
                    .map_or_else(|| "killed".to_owned(), |status| status.to_string());
                answer(&stream, &format!("{status} {}", ended.output.len()))?;
                (&stream).write_all(ended.output.as_bytes())?;
            }
            (["quit"], _) => return Ok(()),
            _ => return Err(format!("host a asks for {request:?}").into()),
        }
    }
}

/// The next line, without its end.
pub(crate) fn line(input: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Err("the other host is gone".into());
    }
    Ok(line.trim_end_matches('\n').to_owned())
}

fn answer(mut stream: &TcpStream, line: &str) -> Result<()> {
    Ok(stream.write_all(format!("{line}\n").as_bytes())?)
}

fn until(server: &mut Process, is_there: impl Fn() -> Result<bool>) -> Result<&'static str> {
    let deadline = Instant::now() + pace::bound(START_LIMIT)?;
    while Instant::now() < deadline {
        if is_there()? {
            return Ok("ready");
        }
        if server.has_ended()? {
            return Ok("ended");
        }
        thread::sleep(PAUSE);
    }
    Ok("late")
}

/// Whether an id of the connection manager listens on this port.
fn cm_listens(port: u16) -> Result<bool> {
    let ids = Command::new("rdma")
        .args(["resource", "show", "cm_id"])
        .output()?;
    let port = format!(":{port} ");
    let mut ids = std::str::from_utf8(&ids.stdout)?.lines();
    Ok(ids.any(|id| id.contains("LISTEN") && format!("{id} ").contains(&port)))
}

/// Whether somebody has a queue pair for datagrams. The kernel's own ones are of another type.
fn has_datagrams() -> Result<bool> {
    let queue_pairs = Command::new("rdma")
        .args(["resource", "show", "qp"])
        .output()?;
    let queue_pairs = std::str::from_utf8(&queue_pairs.stdout)?;
    Ok(queue_pairs.lines().any(|qp| qp.contains("type UD ")))
}

/// Whether a TCP socket listens on this port.
fn tcp_listens(port: u16) -> Result<bool> {
    let sockets = fs::read_to_string("/proc/net/tcp")? + &fs::read_to_string("/proc/net/tcp6")?;
    // The second field is the local address and port, the fourth the state; 0A is LISTEN.
    let port = format!(":{port:04X}");
    Ok(sockets.lines().any(|socket| {
        let fields: Vec<&str> = socket.split_whitespace().collect();
        fields.len() > 3 && fields[1].ends_with(&port) && fields[3] == "0A"
    }))
}
