//! QEMU's monitor, over its machine protocol (QMP).

use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long an answer may take. QEMU gives it in a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
    /// The beginning of a line that is not complete.
    line: Vec<u8>,
    /// How many requests were sent.
    requests: u64,
}

impl Monitor {
    pub(crate) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
            line: Vec::new(),
            requests: 0,
        })
    }

    /// Returns the answer to a line that a person would type.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        if self.requests == 0 {
            self.execute(json!({"execute": "qmp_capabilities"}))?;
        }
        let answer = self.execute(json!({
            "execute": "human-monitor-command",
            "arguments": {"command-line": line},
        }))?;
        let answer = answer["return"].as_str();
        Ok(answer.context("no answer but an error")?.replace('\r', ""))
    }

    fn execute(&mut self, mut request: Value) -> Result<Value> {
        self.requests += 1;
        request["id"] = self.requests.into();
        writeln!(self.stream.get_mut(), "{request}")?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.stream.read_until(b'\n', &mut self.line) {
                Ok(0) => bail!("closed"),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            let message: Value = serde_json::from_slice(&self.line)?;
            self.line.clear();
            // Others are a greeting, an event, or a late answer.
            if message["id"] == request["id"] {
                return Ok(message);
            }
        }
        bail!("no answer within {} s", PATIENCE.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_answer_is_found_among_other_messages() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let mut to = theirs.try_clone().unwrap();
            writeln!(to, r#"{{"QMP": {{"version": {{}}}}}}"#).unwrap();
            for line in BufReader::new(theirs).lines().take(2) {
                let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
                writeln!(to, r#"{{"event": "STOP"}}"#).unwrap();
                let answer = json!({"return": "RIP=1\r\n", "id": request["id"]});
                writeln!(to, "{answer}").unwrap();
            }
        });
        let mut monitor = Monitor::new(ours).unwrap();
        assert_eq!(monitor.ask("info registers").unwrap(), "RIP=1\n");
        qemu.join().unwrap();
        assert!(monitor.ask("info registers").is_err(), "it is gone");
    }
}
