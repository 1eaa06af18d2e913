//! What runs on both hosts: starts this host's side of a scenario, and does to the host what goes
//! wrong, at the wish of the conductor on host a.
//!
//! One TCP connection, on which each request is a line and so is each answer. `start` is followed
//! by the worker's arguments, a line each, and an empty line. `line MILLISECONDS` is answered by
//! `line …` with the worker's next line, `silent`, or `ended STATUS`. `tell …` gives it a line,
//! `signal …` a signal. `shell …` runs a line of shell and is answered by `done`, when it has
//! ended, with the time when it began; `begin …` the same without waiting, which `settle` does.
//! `left` is answered by `done` unless more exists on the device than before the worker was
//! started. `book N` is answered by the N-th book of the journal, `none` behind the last. `die`
//! restarts the host at once.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use toolbox::Lab;

use crate::{Result, clock, process::Process, worker};

pub(crate) const PORT: u16 = 7450;

/// Where a worker of this host keeps its journal.
pub(crate) const JOURNAL: &str = "/tmp/faults-journal";

/// How long the kernel may take to free what a process had.
const SETTLES: Duration = Duration::from_secs(10);

/// Serves the conductor until that says that it is done.
pub(crate) fn serve() -> Result<()> {
    let (stream, _) = TcpListener::bind(("0.0.0.0", PORT))?.accept()?;
    stream.set_nodelay(true)?;
    let mut requests = BufReader::new(stream.try_clone()?);
    let lab = Lab::get();
    let mut before = String::new();
    let mut worker = None;
    let mut background: Vec<Child> = Vec::new();
    loop {
        let request = line(&mut requests)?;
        let (verb, rest) = request.split_once(' ').unwrap_or((&request, ""));
        let answer = match (verb, &mut worker) {
            ("start", _) => {
                let mut args = Vec::new();
                loop {
                    match line(&mut requests)? {
                        end if end.is_empty() => break,
                        argument => args.push(argument),
                    }
                }
                // What is left of the one before goes first.
                drop(worker.take());
                before = lab.resources();
                worker = Some(Process::start(&args)?);
                "started".to_owned()
            }
            ("line", Some(worker)) => worker.line(Duration::from_millis(rest.parse()?))?,
            ("tell", Some(worker)) => worker.tell(rest),
            ("signal", Some(worker)) => worker.signal(rest)?,
            ("shell", _) => shell(rest)?,
            ("begin", _) => {
                let begin = clock::now();
                background.push(spawn(rest)?);
                format!("done {begin}")
            }
            ("settle", _) => {
                for mut child in background.drain(..) {
                    child.wait()?;
                }
                "done 0".to_owned()
            }
            ("left", _) => nothing_left(&lab, &before),
            ("book", _) => {
                let books = worker::journal(Path::new(JOURNAL))?;
                let book = books.get(rest.parse::<usize>()?);
                book.map_or_else(|| "none".to_owned(), ToString::to_string)
            }
            ("die", _) => {
                // The answer to the request before is out, and there is none to this one.
                fs::write("/proc/sysrq-trigger", "b")?;
                return Err("this host lives on".into());
            }
            ("quit", _) => return Ok(()),
            _ => return Err(format!("the conductor asks for {request:?}").into()),
        };
        (&stream).write_all(format!("{answer}\n").as_bytes())?;
    }
}

/// The next line, without its end.
pub(crate) fn line(input: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Err("the other end is gone".into());
    }
    Ok(line.trim_end_matches('\n').to_owned())
}

fn spawn(script: &str) -> Result<Child> {
    Ok(Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .spawn()?)
}

/// Runs a line of shell to its end.
fn shell(script: &str) -> Result<String> {
    let begin = clock::now();
    let output = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(format!("done {begin}"));
    }
    let problem = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
    Ok(format!("failed {}: {problem}", output.status))
}

/// Whether the device is as it was. The kernel may take a moment for what a process left behind.
fn nothing_left(lab: &Lab, before: &str) -> String {
    let deadline = Instant::now() + SETTLES;
    loop {
        let now = lab.resources();
        if now == before {
            return "done 0".to_owned();
        }
        if Instant::now() > deadline {
            return format!("failed: {now} instead of {before}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Serves in the background: for host a, where the conductor is.
pub(crate) fn serve_beside() {
    thread::spawn(|| {
        if let Err(error) = serve() {
            eprintln!("faults: the agent: {error}");
        }
    });
}

/// Longer than any answer takes: an agent that is silent for so long is gone, or its host.
const SILENCE: Duration = Duration::from_secs(300);

/// Connects to the agent of a host, which may still be starting.
pub(crate) fn connect(host: &str) -> Result<TcpStream> {
    const LIMIT: Duration = Duration::from_secs(60);
    let deadline = Instant::now() + LIMIT;
    loop {
        match TcpStream::connect((host, PORT)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            Err(error) if Instant::now() > deadline => {
                return Err(format!("the agent at {host} does not answer: {error}").into());
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
