use std::{env, net::IpAddr, thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use toolbox::{
    Deadline, Ended, Line,
    agent::{self, Said},
    words,
};

use crate::{
    book::Book,
    worker::{self, JOURNAL},
};

/// A host, as the conductor sees it: its agent, and what its worker has said.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: &'static str,
    agent: agent::Host,
    pub(crate) notes: Notes,
    /// What existed on the device before the worker was started.
    before: String,
}

/// What a worker has said so far.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) books: Vec<Book>,
    pub(crate) problems: Vec<String>,
    pub(crate) port: Option<u16>,
    pub(crate) flowing: bool,
    pub(crate) restarted: bool,
    /// How it ended, once it has.
    pub(crate) ended: Option<Ended>,
    /// What it had to say on stderr.
    pub(crate) stderr: Vec<String>,
}

/// How long to wait for a line at a time.
const TURN: Duration = Duration::from_secs(30);

/// How long the kernel may take to free what a process had.
const SETTLES: Duration = Duration::from_secs(10);

/// A worker, in which memory that is not in use goes back, and does not count.
const WORKER: &str = "env MALLOC_MMAP_THRESHOLD_=131072 MALLOC_ARENA_MAX=2";

impl Host {
    pub(crate) fn connect(name: &'static str, address: IpAddr) -> Result<Self> {
        Ok(Self {
            name,
            agent: agent::Host::connect(address)?,
            notes: Notes::default(),
            before: String::new(),
        })
    }

    fn context(&self) -> String {
        format!("host {}", self.name)
    }

    /// Starts the worker for the next scenario. The one before has ended.
    pub(crate) fn start(&mut self, args: &[String]) -> Result<()> {
        self.notes = Notes::default();
        self.before = self.resources()?;
        let mut argv = words(WORKER);
        argv.push(env::current_exe()?.display().to_string());
        argv.push("worker".to_owned());
        argv.extend_from_slice(args);
        let started = self.agent.start_told(&argv);
        started.with_context(|| self.context())
    }

    /// Takes what the worker says until that is noted.
    ///
    /// # Errors
    ///
    /// When it has ended before, or does not come to it in time.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        limit: Duration,
        until: impl Fn(&Notes) -> bool,
    ) -> Result<()> {
        let mut deadline = Deadline::after(limit);
        while !until(&self.notes) {
            if let Some(ended) = &self.notes.ended {
                bail!("host {}: {ended} before it was {what}", self.name);
            }
            let turn = Deadline::exactly_after(deadline.left().min(TURN));
            match self.agent.line(turn).with_context(|| self.context())? {
                Said::Line(Line::Out(line)) => self.notes.add(&line),
                Said::Line(Line::Err(line)) => self.notes.stderr.push(line),
                Said::Ended(ended) => self.notes.ended = Some(ended),
                Said::Nothing if deadline.is_over() => {
                    bail!("host {}: not {what} after {limit:?}", self.name);
                }
                Said::Nothing => {}
            }
        }
        Ok(())
    }

    /// Has a worker that is stuck say what it has, and end, one way or the other.
    pub(crate) fn quit_worker(&mut self) {
        const LIMIT: Duration = Duration::from_secs(10);
        // It may not even listen any more. What it says is for the report only.
        let _ = self.agent.tell("quit");
        let _ = self.wait("ended", LIMIT, |notes| notes.ended.is_some());
        let _ = self.agent.finish(Duration::ZERO);
    }

    pub(crate) fn tell(&mut self, word: &str) -> Result<()> {
        // One that has ended by now need not hear it.
        let told = self.agent.tell(word);
        told.map(drop).with_context(|| self.context())
    }

    pub(crate) fn signal(&mut self, name: &str) -> Result<u64> {
        let begin = self.agent.signal(name);
        begin.with_context(|| self.context())
    }

    /// Runs a line of shell. When it began.
    pub(crate) fn shell(&mut self, script: &str) -> Result<u64> {
        let ran = self.agent.shell(script);
        ran.map(|(begin, _)| begin).with_context(|| self.context())
    }

    /// Has a line of shell run beside all else.
    pub(crate) fn begin(&mut self, script: &str) -> Result<u64> {
        let begin = self.agent.begin(script);
        begin.with_context(|| self.context())
    }

    /// Waits for whatever was begun.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let settled = self.agent.settle();
        settled.with_context(|| self.context())
    }

    fn resources(&mut self) -> Result<String> {
        let shown = self.agent.shell("rdma resource show $LAB_DEV");
        shown.map(|(_, text)| text).with_context(|| self.context())
    }

    /// Makes sure that nothing exists on the device that did not before the worker was started. The
    /// kernel may take a moment for what a process left behind.
    pub(crate) fn nothing_left(&mut self) -> Result<()> {
        let mut deadline = Deadline::after(SETTLES);
        loop {
            let now = self.resources()?;
            if now == self.before {
                return Ok(());
            }
            let before = &self.before;
            let (left, was) = (now.trim(), before.trim());
            ensure!(
                !deadline.is_over(),
                "host {}: {left} instead of {was}",
                self.name
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The books of a worker that was killed.
    pub(crate) fn journal(&mut self) -> Result<Vec<Book>> {
        let read = self.agent.shell(&format!("cat {JOURNAL}"));
        let (_, journal) = read.with_context(|| self.context())?;
        Ok(worker::journal(&journal))
    }

    /// Restarts the host.
    pub(crate) fn die(&mut self) -> Result<()> {
        self.agent.die()
    }

    pub(crate) fn quit(self) -> Result<()> {
        self.agent.quit()
    }
}

impl Notes {
    fn add(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("book", book)) => match book.parse() {
                Ok(book) => self.books.push(book),
                Err(_) => self.problems.push(format!("no book: {book:?}")),
            },
            Some(("port", port)) => self.port = port.parse().ok(),
            Some(("problem", problem)) => self.problems.push(problem.to_owned()),
            None if line == "flowing" => self.flowing = true,
            None if line == "restarted" => self.restarted = true,
            None if line == "done" => {}
            _ => self.stderr.push(line.to_owned()),
        }
    }
}
