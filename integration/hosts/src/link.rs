use std::{
    collections::HashMap,
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    thread,
};

use anyhow::{Context, Result};

use crate::{
    lock,
    wire::{self, Frame, Job, Sender},
};

/// The connection to an agent.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    stream: Arc<TcpStream>,
    sender: Sender,
    /// The programs that may still report something. `None` when the agent is gone.
    programs: Arc<Mutex<Option<Programs>>>,
}

#[derive(Debug, Default)]
struct Programs {
    last: u32,
    reports: HashMap<u32, mpsc::Sender<Frame>>,
}

impl Link {
    pub(crate) fn new(mut stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let programs = Arc::new(Mutex::new(Some(Programs::default())));
        let this = Self {
            sender: Sender::new(stream.try_clone()?),
            stream: Arc::new(stream.try_clone()?),
            programs: programs.clone(),
        };
        thread::spawn(move || {
            while let Ok((number, frame)) = wire::read(&mut stream) {
                if let Some(programs) = &mut *lock(&programs) {
                    // A process that was dropped takes nothing.
                    let report = programs.reports.get(&number).map(|to| to.send(frame));
                    if !matches!(report, Some(Ok(()))) {
                        programs.reports.remove(&number);
                    }
                }
            }
            *lock(&programs) = None;
        });
        Ok(this)
    }

    /// Asks for the start of a program. Returns its number, and its reports.
    pub(crate) fn start(&self, job: Job) -> Result<(u32, Receiver<Frame>)> {
        let (report, frames) = mpsc::channel();
        let number = {
            let mut programs = lock(&self.programs);
            let programs = programs.as_mut().context("the agent is gone")?;
            programs.last += 1;
            programs.reports.insert(programs.last, report);
            programs.last
        };
        self.send(number, &Frame::Start(job))?;
        Ok((number, frames))
    }

    pub(crate) fn send(&self, program: u32, frame: &Frame) -> Result<()> {
        let sent = self.sender.send(program, frame);
        sent.context("the agent cannot be reached")
    }

    /// Sends nothing more. The thread that reads ends when the agent does.
    pub(crate) fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}
