use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

use super::{PAUSE, PORT, START_LIMIT};
use crate::{Deadline, Ended, Heard, Line, Listening, wire};

/// How long an agent waits at a time, so that it is never silent for long itself.
const TURN: Duration = Duration::from_secs(5);

/// Longer than any answer takes: an agent that is silent for so long is gone, or its host.
const SILENCE: Duration = Duration::from_secs(600);

/// How long a server may take until it listens, on an idle machine.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);

/// A host with an agent, as its conductor sees it. It runs one program at a time.
#[derive(Debug)]
pub struct Host {
    stream: TcpStream,
}

/// What came of waiting for a program's next line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers handle each of them")]
pub enum Said {
    /// A line.
    Line(Line),
    /// There are no more.
    Ended(Ended),
    /// None has come in time.
    Nothing,
}

impl Host {
    /// Connects to the agent at this address, which may still be starting.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn connect(address: IpAddr) -> Result<Self> {
        Self::connect_to(SocketAddr::new(address, PORT))
    }

    pub(super) fn connect_to(address: SocketAddr) -> Result<Self> {
        let mut deadline = Deadline::after(START_LIMIT);
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(SILENCE))?;
                    return Ok(Self { stream });
                }
                Err(error) if deadline.is_over() => {
                    return Err(error)
                        .with_context(|| format!("the agent at {address} does not answer"));
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn address(&self) -> Result<SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }

    fn ask(&mut self, request: &[&str]) -> Result<Vec<String>> {
        wire::write(&mut self.stream, request)?;
        let mut answer = wire::read(&mut self.stream)
            .with_context(|| format!("the agent does not answer {:?}", request[0]))?;
        match answer.first().map(String::as_str) {
            Some("ok") => Ok(answer.split_off(1)),
            Some("failed") if answer.len() == 2 => Err(anyhow!("{}: {}", request[0], answer[1])),
            _ => bail!("the agent answers {answer:?}"),
        }
    }

    /// Asks for something that is done, and is answered with the time of its beginning.
    fn have(&mut self, request: &[&str]) -> Result<u64> {
        let answer = self.ask(request)?;
        let begin = answer.first().context("the agent says no time")?;
        Ok(begin.parse()?)
    }

    /// Starts a program with its arguments, and nothing on stdin. What ran before is killed.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(&mut self, argv: &[String]) -> Result<()> {
        self.ask(&with("start", argv)).map(drop)
    }

    /// As [`start`](Self::start), with a stdin for [`tell`](Self::tell).
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start_told(&mut self, argv: &[String]) -> Result<()> {
        self.ask(&with("start-told", argv)).map(drop)
    }

    /// Waits until a server may be connected to. `false` when it has ended before.
    ///
    /// # Errors
    ///
    /// When it does not come to it in time.
    pub fn listens(&mut self, listening: Listening) -> Result<bool> {
        let mut deadline = Deadline::after(LISTEN_LIMIT);
        loop {
            if self.ask(&["listens", &listening.to_string()])? == ["true"] {
                return Ok(true);
            }
            if self.end_within(PAUSE)?.is_some() {
                return Ok(false);
            }
            if deadline.is_over() {
                bail!("the server is not ready: {listening}");
            }
        }
    }

    /// Waits until the program has printed this.
    ///
    /// # Errors
    ///
    /// When the agent is gone.
    pub fn hear(&mut self, text: &str, limit: impl Into<Deadline>) -> Result<Heard> {
        let mut deadline = limit.into();
        loop {
            let turn = millis(deadline.left().min(TURN));
            match self.ask(&["hear", text, &turn])?.concat().as_str() {
                "said" => return Ok(Heard::Said),
                "ended" => return Ok(Heard::Ended),
                _ if deadline.is_over() => return Ok(Heard::Late),
                _ => {}
            }
        }
    }

    /// Waits for the program's next line.
    ///
    /// # Errors
    ///
    /// When the agent is gone.
    pub fn line(&mut self, limit: impl Into<Deadline>) -> Result<Said> {
        let mut deadline = limit.into();
        loop {
            let turn = millis(deadline.left().min(TURN));
            let answer = self.ask(&["line", &turn])?;
            match answer.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["out", text] => return Ok(Said::Line(Line::Out(text.to_owned()))),
                ["err", text] => return Ok(Said::Line(Line::Err(text.to_owned()))),
                ["ended", status, output] => return Ok(Said::Ended(ended(status, output))),
                _ if deadline.is_over() => return Ok(Said::Nothing),
                _ => {}
            }
        }
    }

    /// Gives the program a line on stdin. Whether it is there to take it.
    ///
    /// # Errors
    ///
    /// When the agent is gone.
    pub fn tell(&mut self, line: &str) -> Result<bool> {
        Ok(self.ask(&["tell", line])? == ["true"])
    }

    /// Sends the program a signal, which is named without SIG. When that was, in milliseconds of
    /// the host's clock.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub fn signal(&mut self, name: &str) -> Result<u64> {
        self.have(&["signal", name])
    }

    /// Waits for the program's end, and kills it when that takes longer than `limit`.
    ///
    /// # Errors
    ///
    /// When it cannot be killed.
    pub fn finish(&mut self, limit: impl Into<Deadline>) -> Result<Ended> {
        let mut deadline = limit.into();
        while !deadline.is_over() {
            if let Some(ended) = self.end_within(deadline.left().min(TURN))? {
                return Ok(ended);
            }
        }
        let answer = self.ask(&["kill"])?;
        parse_ended(&answer).with_context(|| format!("the agent answers {answer:?}"))
    }

    fn end_within(&mut self, turn: Duration) -> Result<Option<Ended>> {
        Ok(parse_ended(&self.ask(&["end", &millis(turn)])?))
    }

    /// Runs a line of shell to its end. When it began, in milliseconds of the host's clock, and
    /// what it printed to stdout.
    ///
    /// # Errors
    ///
    /// When its status is not 0; what it printed to stderr is in the error.
    pub fn shell(&mut self, script: &str) -> Result<(u64, String)> {
        match &mut self.ask(&["shell", script])?[..] {
            [begin, printed] => Ok((begin.parse()?, std::mem::take(printed))),
            answer => bail!("the agent answers {answer:?}"),
        }
    }

    /// Has a line of shell run beside all else. When it began.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn begin(&mut self, script: &str) -> Result<u64> {
        self.have(&["begin", script])
    }

    /// Waits for whatever was begun.
    ///
    /// # Errors
    ///
    /// When the agent is gone.
    pub fn settle(&mut self) -> Result<()> {
        self.ask(&["settle"]).map(drop)
    }

    /// Restarts the host at once, and with it the agent.
    ///
    /// # Errors
    ///
    /// When it is gone already.
    pub fn die(&mut self) -> Result<()> {
        // There is no answer.
        let script = "echo b >/proc/sysrq-trigger";
        Ok(wire::write(&mut self.stream, &["shell", script])?)
    }

    /// Ends the agent.
    ///
    /// # Errors
    ///
    /// When it is gone already.
    pub fn quit(mut self) -> Result<()> {
        Ok(wire::write(&mut self.stream, &["quit"])?)
    }
}

fn with<'a>(verb: &'a str, argv: &'a [String]) -> Vec<&'a str> {
    let argv = argv.iter().map(String::as_str);
    [verb].into_iter().chain(argv).collect()
}

fn millis(turn: Duration) -> String {
    turn.as_millis().to_string()
}

fn parse_ended(answer: &[String]) -> Option<Ended> {
    match answer {
        [word, status, output] if word == "ended" => Some(ended(status, output)),
        _ => None,
    }
}

fn ended(status: &str, output: &str) -> Ended {
    Ended {
        status: status.parse().ok(),
        output: output.to_owned(),
    }
}
