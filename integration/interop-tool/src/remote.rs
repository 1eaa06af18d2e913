//! Host a's view of the agent on host b.

use std::{
    io::{BufReader, Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Result,
    agent::{PORT, line},
    case::Ready,
    process::{Ended, Heard},
};

/// How long the agent may take to start: a program that does nothing else, and there may be much
/// else.
const START_LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct Agent {
    answers: BufReader<TcpStream>,
}

impl Agent {
    pub(crate) fn connect(host: &str) -> Result<Self> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match TcpStream::connect((host, PORT)) {
                Ok(stream) => {
                    return Ok(Self {
                        answers: BufReader::new(stream),
                    });
                }
                Err(error) if Instant::now() > deadline => {
                    return Err(format!("host b's agent does not answer: {error}").into());
                }
                // It starts at the same time as this.
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        self.answers
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())?;
        line(&mut self.answers)
    }

    /// Starts a server, and waits until a client may connect to it.
    pub(crate) fn start(&mut self, argv: &[String], ready: Ready) -> Result<()> {
        self.ask(&format!("start\n{}\n", argv.join("\n")))?;
        let (kind, port) = match ready {
            Ready::Nothing => return Ok(()),
            Ready::Cm(port) => ("cm", port),
            Ready::Tcp(port) => ("tcp", port),
            Ready::Datagrams => ("datagrams", 0),
        };
        match self.ask(&format!("await {kind} {port}"))?.as_str() {
            // One that has ended says why.
            "ready" | "ended" => Ok(()),
            _ => Err(format!("the server is not ready: {kind} {port}").into()),
        }
    }

    /// Waits until the server has printed this.
    pub(crate) fn hear(&mut self, text: &str, limit: Duration) -> Result<Heard> {
        let answer = self.ask(&format!("hear {} {text}", limit.as_millis()))?;
        Heard::from_str(&answer).ok_or_else(|| "host b's agent answers nonsense".into())
    }

    /// Waits for the server's end, and kills it when that takes longer than `limit`.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<Ended> {
        let answer = self.ask(&format!("finish {}", limit.as_millis()))?;
        let (status, len) = answer
            .split_once(' ')
            .ok_or("host b's agent answers nonsense")?;
        let mut output = vec![0; len.parse()?];
        self.answers.read_exact(&mut output)?;
        Ok(Ended {
            status: status.parse().ok(),
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }

    pub(crate) fn quit(mut self) -> Result<()> {
        Ok(self.answers.get_mut().write_all(b"quit\n")?)
    }
}
