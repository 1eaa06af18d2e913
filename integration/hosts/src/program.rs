use std::{
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

use crate::{
    clock_millis, lock,
    wire::{Frame, Job},
};

/// The time limit for the last output of a program that has ended, if another process keeps its
/// outputs open.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A program that runs on this host. It is killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Arc<Mutex<Child>>,
    stdin: Option<ChildStdin>,
    pid: Pid,
}

impl Program {
    /// Starts a program, and reports its beginning, its output and its end to `report`, which
    /// threads of their own call. Without an environment it inherits this process's, and
    /// without a stdin no RUST_LOG, so that it prints its usual output.
    ///
    /// `prepare` may change the command. A thread calls `leave` with the id of the program when it
    /// has ended. It may kill other processes of the program.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(
        job: &Job,
        prepare: impl FnOnce(&mut Command),
        leave: impl FnOnce(Pid) + Send + 'static,
        report: impl Fn(Frame) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (program, args) = job.argv.split_first().context("no program is named")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(env) = &job.env {
            command.env_clear();
            command.envs(env.iter().map(|(name, value)| (name, value)));
        } else if !job.told {
            command.env_remove("RUST_LOG");
        }
        if let Some(dir) = &job.dir {
            command.current_dir(dir);
        }
        if job.told {
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
            // It keeps its id until the lock is held, so that no signal reaches another program.
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let status = lock(&ending).wait();
            leave(pid);
            let _ = closed.recv_timeout(LAST_WORDS);
            report(Frame::Ended(status.map_or(255, code)));
        });
        Ok(Self { child, stdin, pid })
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> Pid {
        self.pid
    }

    /// Writes this to its stdin. Returns whether it can take it.
    pub fn tell(&mut self, bytes: &[u8]) -> bool {
        let stdin = self.stdin.as_mut();
        stdin.is_some_and(|stdin| stdin.write_all(bytes).is_ok())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(!self.has_ended(), "the program has ended");
        Ok(kill(self.pid, signal)?)
    }

    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.child)
            .try_wait()
            .is_ok_and(|status| status.is_some())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails when it has ended.
        let _ = self.signal(Signal::SIGKILL);
    }
}

fn code(status: ExitStatus) -> i32 {
    let signal = || 128 + status.signal().unwrap_or(0);
    status.code().unwrap_or_else(signal)
}

/// Reports an output until its end, and drops `open` then.
fn forward(
    output: Option<impl Read + Send + 'static>,
    frame: fn(Vec<u8>) -> Frame,
    report: &Arc<impl Fn(Frame) + Send + Sync + 'static>,
    open: Sender<()>,
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
