use std::{
    collections::HashMap,
    io::Read,
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{self, Receiver},
    },
    thread,
};

use anyhow::{Context, Result};

use crate::{
    agent::obey,
    lock,
    wire::{self, Frame, HOST, Job, Sender},
};

/// The connection from a conductor to an agent.
#[derive(Clone, Debug)]
pub struct Link {
    /// The TCP connection to another host. `None` for a link to this host or to a guest of the lab.
    stream: Option<Arc<TcpStream>>,
    sender: Sender,
    /// The programs for which reports can still arrive. `None` after the connection to the agent is
    /// lost.
    programs: Arc<Mutex<Option<Programs>>>,
}

#[derive(Debug)]
struct Programs {
    last: u32,
    reports: HashMap<u32, mpsc::Sender<Frame>>,
}

impl Link {
    /// Returns the link to this host's agent, which is a thread of this process.
    pub(crate) fn here() -> Self {
        static HERE: OnceLock<Link> = OnceLock::new();
        let connect = || -> Result<Self> {
            let (ours, mut theirs) = UnixStream::pair()?;
            let reports = Sender::new(theirs.try_clone()?);
            thread::spawn(move || obey(&mut theirs, &reports, |_| ()));
            Ok(Self::over(ours)?.0)
        };
        let this = HERE.get_or_init(|| connect().expect("this process must have free descriptors"));
        this.clone()
    }

    pub(crate) fn there(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let [reports, requests] = [stream.try_clone()?, stream.try_clone()?];
        Ok(Self::new(Sender::new(requests), reports, Some(stream.into())).0)
    }

    /// Creates a link to the agent at the other end of `stream`. Returns the link, and a receiver
    /// for reports that are about the agent's host and not about a program.
    ///
    /// # Errors
    ///
    /// If the process has no free descriptor.
    pub fn over(stream: UnixStream) -> Result<(Self, Receiver<Frame>)> {
        Ok(Self::new(Sender::new(stream.try_clone()?), stream, None))
    }

    fn new(
        sender: Sender,
        mut from: impl Read + Send + 'static,
        stream: Option<Arc<TcpStream>>,
    ) -> (Self, Receiver<Frame>) {
        let (report, of_host) = mpsc::channel();
        let programs = Programs {
            last: HOST,
            reports: HashMap::from([(HOST, report)]),
        };
        let programs = Arc::new(Mutex::new(Some(programs)));
        let this = Self {
            stream,
            sender,
            programs: programs.clone(),
        };
        thread::spawn(move || {
            while let Ok((number, frame)) = wire::read(&mut from) {
                if let Some(programs) = &mut *lock(&programs) {
                    // Sending fails if the receiver was dropped together with its `Process`. Remove
                    // the sender then, because nobody needs further reports about this program.
                    let report = programs.reports.get(&number).map(|to| to.send(frame));
                    if !matches!(report, Some(Ok(()))) {
                        programs.reports.remove(&number);
                    }
                }
            }
            *lock(&programs) = None;
        });
        (this, of_host)
    }

    pub(crate) fn is_here(&self) -> bool {
        self.stream.is_none()
    }

    /// Requests the start of a program. Returns the number that identifies the program in frames,
    /// and the receiver of reports about the program. The receiver is disconnected if the
    /// connection to the agent is lost.
    ///
    /// # Errors
    ///
    /// If the connection to the agent is already lost.
    pub fn start(&self, job: Job) -> Result<(u32, Receiver<Frame>)> {
        let (report, frames) = mpsc::channel();
        let number = {
            let mut programs = lock(&self.programs);
            let programs = programs
                .as_mut()
                .context("lost the connection to the agent")?;
            programs.last += 1;
            programs.reports.insert(programs.last, report);
            programs.last
        };
        self.send(number, &Frame::Start(job))?;
        Ok((number, frames))
    }

    /// Sends a frame about the program with number `program`.
    ///
    /// # Errors
    ///
    /// If the connection to the agent is lost.
    pub fn send(&self, program: u32, frame: &Frame) -> Result<()> {
        let sent = self.sender.send(program, frame);
        sent.context("the agent cannot be reached")
    }

    /// Shuts down the sending direction of a link to another host. The thread that reads reports
    /// ends when the agent closes its side.
    pub(crate) fn end(&self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}
