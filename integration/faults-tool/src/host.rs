use std::{
    io::{BufReader, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::{
    Result,
    agent::{self, line},
    book::Book,
};

/// A host, as the conductor sees it: its agent, and what its worker has said.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: &'static str,
    answers: BufReader<TcpStream>,
    pub(crate) notes: Notes,
}

/// What a worker has said so far.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) books: Vec<Book>,
    pub(crate) problems: Vec<String>,
    pub(crate) port: Option<u16>,
    pub(crate) flowing: bool,
    pub(crate) restarted: bool,
    /// Its status, once it has ended.
    pub(crate) ended: Option<String>,
    /// What it had to say on stderr.
    pub(crate) stderr: Vec<String>,
}

/// How long an agent waits for its worker at a time, so that it is never silent for long itself.
const TURN: Duration = Duration::from_secs(30);

impl Host {
    pub(crate) fn connect(name: &'static str, address: &str) -> Result<Self> {
        Ok(Self {
            name,
            answers: BufReader::new(agent::connect(address)?),
            notes: Notes::default(),
        })
    }

    fn say(&mut self, request: &str) -> Result<()> {
        Ok(self
            .answers
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())?)
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        self.say(request)?;
        line(&mut self.answers).map_err(|error| format!("host {}: {error}", self.name).into())
    }

    /// Asks for something that is done and answered with the time of its beginning.
    fn have(&mut self, request: &str) -> Result<u64> {
        let answer = self.ask(request)?;
        match answer.strip_prefix("done ") {
            Some(begin) => Ok(begin.parse()?),
            None => Err(format!("host {}: {request}: {answer}", self.name).into()),
        }
    }

    /// Starts the worker for the next scenario.
    pub(crate) fn start(&mut self, args: &[String]) -> Result<()> {
        self.notes = Notes::default();
        self.ask(&format!("start\n{}\n", args.join("\n")))?;
        Ok(())
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
        let deadline = Instant::now() + limit;
        while !until(&self.notes) {
            if let Some(status) = &self.notes.ended {
                return Err(format!("host {}: {status} before it was {what}", self.name).into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.ask(&format!("line {}", left.min(TURN).as_millis()))?;
            if answer != "silent" {
                self.notes.add(&answer);
            } else if Instant::now() >= deadline {
                return Err(format!("host {}: not {what} after {limit:?}", self.name).into());
            }
        }
        Ok(())
    }

    /// Has a worker that is stuck say what it has, and end, one way or the other.
    pub(crate) fn quit_worker(&mut self) {
        const LIMIT: Duration = Duration::from_secs(10);
        // It may not even listen any more. What it says is for the report only.
        let _ = self.ask("tell quit");
        let _ = self.wait("ended", LIMIT, |notes| notes.ended.is_some());
        if self.notes.ended.is_none() {
            let _ = self.signal("KILL");
        }
    }

    pub(crate) fn tell(&mut self, word: &str) -> Result<()> {
        // One that has ended by now need not hear it.
        self.ask(&format!("tell {word}")).map(drop)
    }

    pub(crate) fn signal(&mut self, name: &str) -> Result<u64> {
        self.have(&format!("signal {name}"))
    }

    pub(crate) fn shell(&mut self, script: &str) -> Result<u64> {
        self.have(&format!("shell {script}"))
    }

    /// Has a line of shell run beside all else.
    pub(crate) fn begin(&mut self, script: &str) -> Result<u64> {
        self.have(&format!("begin {script}"))
    }

    /// Waits for whatever was begun.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.have("settle").map(drop)
    }

    /// Makes sure that nothing exists on the device that did not before the worker was started.
    pub(crate) fn nothing_left(&mut self) -> Result<()> {
        self.have("left").map(drop)
    }

    /// The books of a worker that was killed.
    pub(crate) fn journal(&mut self) -> Result<Vec<Book>> {
        let mut books = Vec::new();
        loop {
            match self.ask(&format!("book {}", books.len()))?.parse() {
                Ok(book) => books.push(book),
                Err(_) => return Ok(books),
            }
        }
    }

    /// Restarts the host.
    pub(crate) fn die(&mut self) -> Result<()> {
        self.say("die")
    }

    pub(crate) fn quit(&mut self) -> Result<()> {
        self.say("quit")
    }
}

impl Notes {
    fn add(&mut self, answer: &str) {
        if let Some(status) = answer.strip_prefix("ended ") {
            self.ended = Some(status.to_owned());
            return;
        }
        let line = answer.strip_prefix("line ").unwrap_or(answer);
        match line.split_once(' ') {
            Some(("book", book)) => match book.parse() {
                Ok(book) => self.books.push(book),
                Err(_) => self.problems.push(format!("no book: {book:?}")),
            },
            Some(("port", port)) => self.port = port.parse().ok(),
            Some(("problem", problem)) => self.problems.push(problem.to_owned()),
            Some(("stderr", text)) => self.stderr.push(text.to_owned()),
            None if line == "flowing" => self.flowing = true,
            None if line == "restarted" => self.restarted = true,
            None if line == "done" => {}
            _ => self.stderr.push(line.to_owned()),
        }
    }
}
