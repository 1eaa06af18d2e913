//! The agent of a host. It starts programs on this host at the request of a conductor. The
//! conductor is a process, on this host or on another one, that controls the agent through a
//! [`Host`](crate::Host) or a [`Link`](crate::Link).

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

use crate::{
    clock_millis, lock, retry,
    wire::{self, Frame, Job, Sender},
};

/// The TCP port on which an agent listens.
pub const PORT: u16 = 7450;

/// The time limit for a conductor and an agent to connect. It is long, because both can start
/// slowly on a busy machine. [`retry`] extends it if the machine is slow.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(300);

/// The maximum time between two requests of the conductor. This time is long, because a conductor
/// sends no requests while it waits for programs on its own host.
const SILENCE: Duration = Duration::from_secs(3600);

/// The pause before a failed operation is repeated.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// The time limit for reading the remaining output after a program has ended. If a child of the
/// program has inherited the write end of a pipe, this pipe stays open after the end of the
/// program.
const OUTPUT_GRACE: Duration = Duration::from_secs(5);

/// Serves one conductor until the conductor sends `Quit`.
///
/// # Errors
///
/// If no conductor connects within 300 s (longer on a slow machine), or if the connection to the
/// conductor breaks.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT));
    serve_on(listener.context("cannot listen for a conductor")?)
}

fn serve_on(listener: TcpListener) -> Result<()> {
    listener.set_nonblocking(true)?;
    let accepted = retry(START_LIMIT, PAUSE, || listener.accept());
    let (mut stream, _) = accepted.context("no conductor has connected within the time limit")?;
    // Close the listener, so that other conductors are refused. Refused conductors retry until the
    // next agent on this host accepts them.
    drop(listener);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let sender = Sender::new(TcpStream::try_clone(&stream)?);
    obey(&mut stream, &sender, |_| ())
}

/// Reads the requests of the conductor, starts programs, and sends reports about these programs.
/// Returns when the conductor sends `Quit`. When a program has ended, the agent calls `leave` with
/// the process id of the program. `leave` can kill processes that the program has left behind.
///
/// # Errors
///
/// If the connection to the conductor breaks.
pub fn obey(requests: &mut impl Read, sender: &Sender, leave: fn(Pid)) -> Result<()> {
    let mut programs: HashMap<u32, Program> = HashMap::new();
    loop {
        let (number, frame) =
            wire::read(requests).context("lost the connection to the conductor")?;
        let reports = sender.clone();
        // Ignore the error: sending fails only if the conductor has disconnected. In this case,
        // reading the next request also fails.
        let report = move |frame| drop(reports.send(number, &frame));
        let failed = match frame {
            Frame::Start(job) => {
                programs.retain(|_, program| !has_ended(&mut lock(&program.child)));
                let started = Program::start(&job, |_| (), leave, report);
                started.map(|program| drop(programs.insert(number, program)))
            }
            Frame::Tell(line) => {
                let stdin = programs.get_mut(&number).and_then(|it| it.stdin.as_mut());
                // Ignore the error: writing fails if the program has closed its stdin.
                let _ = stdin.map(|stdin| stdin.write_all(&line));
                Ok(())
            }
            Frame::Signal(signal) => {
                let (signal, now) = (Signal::try_from(signal)?, clock_millis());
                let program = programs.get(&number).context("the program has ended");
                let sent =
                    program.and_then(|program| program.signal(signal).map(|()| program.id()));
                sent.map(|id| report(Frame::Began(now, id.as_raw() as u32)))
            }
            Frame::Quit => return Ok(()),
            other => bail!("unexpected request of the conductor: {other:?}"),
        };
        if let Err(error) = failed {
            let _ = sender.send(number, &Frame::Failed(format!("{error:#}")));
        }
    }
}

/// A program that runs on this host. Dropping this value kills the program.
#[derive(Debug)]
pub struct Program {
    child: Arc<Mutex<Child>>,
    stdin: Option<ChildStdin>,
    pid: Pid,
}

impl Program {
    /// Starts a program. Calls `report` when the program has started. Later, other threads call
    /// `report` when the program prints output and when it ends. If `job.env` is `None`, the
    /// program inherits the environment of this process. In this case, a program without a stdin
    /// does not inherit RUST_LOG, so that it prints its default output.
    ///
    /// `prepare` can change the command before the process is started. After the program has ended,
    /// a thread calls `leave` with the program's process id. `leave` can kill processes that the
    /// program has left behind.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn start(
        job: &Job,
        prepare: impl FnOnce(&mut Command),
        leave: impl FnOnce(Pid) + Send + 'static,
        report: impl Fn(Frame) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (program, args) = job
            .argv
            .split_first()
            .context("the request names no program")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(env) = &job.env {
            command.env_clear();
            command.envs(env.iter().map(|(name, value)| (name, value)));
        } else if !job.has_stdin {
            command.env_remove("RUST_LOG");
        }
        if let Some(dir) = &job.dir {
            command.current_dir(dir);
        }
        if job.has_stdin {
            command.stdin(Stdio::piped());
        }
        prepare(&mut command);
        let began = clock_millis();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        report(Frame::Began(began, child.id()));
        let (open, closed) = channel();
        let report = Arc::new(report);
        forward(child.stdout.take(), Frame::Out, &report, open.clone());
        forward(child.stderr.take(), Frame::Err, &report, open);
        let (stdin, pid) = (child.stdin.take(), Pid::from_raw(child.id() as i32));
        let child = Arc::new(Mutex::new(child));
        let ending = child.clone();
        thread::spawn(move || {
            // `waitid` with WNOWAIT leaves the process as a zombie, so that the kernel does not
            // reuse the process id yet. `wait` then releases the id while this thread holds the
            // lock. `signal` calls `kill` under the same lock, so it signals no other process.
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let status = lock(&ending).wait();
            leave(pid);
            let _ = closed.recv_timeout(OUTPUT_GRACE);
            report(Frame::Ended(status.map_or(255, code)));
        });
        Ok(Self { child, stdin, pid })
    }

    /// Returns the process id of the program.
    pub fn id(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    ///
    /// If the program has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = lock(&self.child);
        ensure!(!has_ended(&mut child), "the program has ended");
        Ok(kill(self.pid, signal)?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Ignore the error: sending the signal fails if the program has already ended.
        let _ = self.signal(Signal::SIGKILL);
    }
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().is_ok_and(|status| status.is_some())
}

fn code(status: ExitStatus) -> i32 {
    let signal = || 128 + status.signal().unwrap_or(0);
    status.code().unwrap_or_else(signal)
}

/// Starts a thread that reports all bytes of `output`, which is the stdout or stderr of a program.
/// The thread drops `open` at the end of the output.
fn forward(
    output: Option<impl Read + Send + 'static>,
    frame: fn(Vec<u8>) -> Frame,
    report: &Arc<impl Fn(Frame) + Send + Sync + 'static>,
    open: mpsc::Sender<()>,
) {
    let (Some(mut output), report) = (output, report.clone()) else {
        return;
    };
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            report(frame(buffer[..count].to_vec()));
        }
        drop(open);
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{Deadline, Host, Line, Listening};

    const LIMIT: Duration = Duration::from_secs(60);

    type Agent = thread::JoinHandle<Result<()>>;

    /// Returns a host whose agent is a thread of this process, and the join handle of this thread.
    fn there() -> (Host, Agent) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent = thread::spawn(move || serve_on(listener));
        (Host::connect_to(address).unwrap(), agent)
    }

    /// Runs a test twice: once on this host without TCP, and once with an agent that is connected
    /// over TCP.
    fn both(test: impl Fn(&mut Host)) {
        test(&mut Host::here());
        let (mut host, agent) = there();
        test(&mut host);
        host.quit().unwrap();
        agent.join().unwrap().unwrap();
    }

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn host_writes_reads_and_ends_a_program() {
        both(|host| {
            // The script waits for a second word before it prints to stderr, because the order of
            // lines from two pipes is undefined.
            let script = "read word; echo got $word; read word; echo more >&2; exec sleep 1000";
            host.start_with_stdin(&sh(script)).unwrap();
            assert!(!host.wait_for_text("got", Duration::from_millis(1)).unwrap());
            let program = host.process().unwrap();
            assert!(program.tell("it"));
            assert_eq!(program.line(LIMIT), Some(Line::Out("got it".into())));
            assert!(program.tell("go on"));
            assert_eq!(program.line(LIMIT), Some(Line::Err("more".into())));
            assert_eq!(program.line(Duration::from_millis(1)), None);
            assert_eq!(program.ended().unwrap(), None);
            let ended = host.finish(Duration::from_millis(1)).unwrap();
            assert_eq!(ended.status, None);
        });
    }

    #[test]
    fn agent_takes_one_conductor() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent = thread::spawn(move || serve_on(listener));
        let mut host = Host::connect_to(address).unwrap();
        host.shell("true").unwrap();
        // The agent has closed its listener. But a child that another test has just forked can have
        // a copy of the descriptor until the child calls exec. So connect until the attempt fails.
        let mut deadline = Deadline::after(LIMIT);
        while TcpStream::connect(address).is_ok() {
            assert!(
                !deadline.is_over(),
                "the agent must stop listening after it has accepted a conductor"
            );
        }
        host.quit().unwrap();
        agent.join().unwrap().unwrap();
    }

    #[test]
    fn end_follows_the_last_line() {
        both(|host| {
            host.start(&sh("echo last; exit 3")).unwrap();
            let program = host.process().unwrap();
            assert_eq!(program.line(LIMIT), Some(Line::Out("last".into())));
            assert_eq!(program.line(LIMIT), None);
            let ended = program.ended().unwrap().unwrap();
            assert_eq!((ended.status, &*ended.output), (Some(3), "last\n"));
            assert_eq!(host.finish(LIMIT).unwrap(), ended);
            assert!(
                !host.listens(Listening::Tcp(1)).unwrap(),
                "a program that has ended must not listen"
            );
        });
    }

    #[test]
    fn server_listens_until_it_is_killed() {
        both(|host| {
            host.start(&sh("exec sleep 1000")).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let listening = Listening::Tcp(listener.local_addr().unwrap().port());
            assert!(host.listens(listening).unwrap());
            host.signal("KILL").unwrap();
            assert_eq!(host.finish(LIMIT).unwrap().status, Some(137));
        });
    }

    #[test]
    fn state_of_process_contains_its_output() {
        both(|host| {
            assert_eq!(host.state_of_process(), "no program runs");
            host.start(&sh("echo begun; exec sleep 1000")).unwrap();
            assert!(host.wait_for_text("begun", LIMIT).unwrap());
            let state = host.state_of_process();
            assert!(state.contains(r#"printed "begun\n""#), "{state}");
        });
    }

    #[test]
    fn failure_is_reported_and_the_host_goes_on() {
        both(|host| {
            let error = host.shell("echo what is wrong >&2; exit 2").unwrap_err();
            assert!(format!("{error:#}").contains("what is wrong"), "{error:#}");
            assert!(host.start(&["/no/such/program".into()]).is_err());
            let before = clock_millis();
            let (began, printed) = host.shell("echo fine; echo not this >&2").unwrap();
            assert!((before..=clock_millis()).contains(&began));
            assert_eq!(printed, "fine\n");
        });
    }

    #[test]
    fn programs_end_with_their_conductor() {
        let (mut requests, conductor) = UnixStream::pair().unwrap();
        let (mut reports, ours) = UnixStream::pair().unwrap();
        let agent = thread::spawn(move || obey(&mut requests, &Sender::new(ours), |_| ()));
        let job = Job {
            argv: vec!["sleep".into(), "1000".into()],
            ..Job::default()
        };
        Sender::new(conductor).send(1, &Frame::Start(job)).unwrap();
        let mut next = || wire::read(&mut reports).unwrap();
        assert!(matches!(next(), (1, Frame::Began(..))));
        assert_eq!(next(), (1, Frame::Ended(128 + 9)));
        assert!(
            agent.join().unwrap().is_err(),
            "the agent must fail if its conductor disconnects"
        );
    }

    #[test]
    fn agent_ends_when_its_host_is_dropped() {
        let (mut host, agent) = there();
        host.start(&sh("exec sleep 1000")).unwrap();
        drop(host);
        assert!(
            agent.join().unwrap().is_err(),
            "the agent must fail if its conductor disconnects"
        );
    }
}
