//! What runs on a host that another one controls: it starts programs and runs lines of shell at the
//! wish of a conductor, which has a [`Host`] for it.
//!
//! One TCP connection, on which each request is a list of texts and so is each answer: `ok` and
//! what was asked for, or `failed` and why. No request takes long but `shell` and `settle`: who
//! waits for something asks again and again, and so decides alone how long to wait.

mod host;

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    str::FromStr,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::Signal;

pub use self::host::{Host, Said};
use crate::{Deadline, Ended, Heard, Line, Listening, Process, clock_millis, wire};

pub(crate) const PORT: u16 = 7450;

/// How long the conductor may take to start: it does so at the same time, on a machine that may
/// have much else to do.
const START_LIMIT: Duration = Duration::from_secs(300);

/// How long a conductor is silent at the most, while it waits for programs of its own.
const SILENCE: Duration = Duration::from_secs(3600);

/// Between two looks at something that nothing tells of.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves one conductor until that says that it is done.
///
/// # Errors
///
/// When no conductor comes, or it goes away without a word.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT));
    serve_on(listener.context("cannot listen for a conductor")?)
}

fn serve_on(listener: TcpListener) -> Result<()> {
    listener.set_nonblocking(true)?;
    let mut deadline = Deadline::after(START_LIMIT);
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if deadline.is_over() => return Err(error).context("no conductor comes"),
            Err(_) => thread::sleep(PAUSE),
        }
    };
    // Whoever comes from now on is for the next agent, and tries again.
    drop(listener);
    Agent::new(stream)?.run()
}

/// Serves in the background, for the host on which the conductor is.
pub fn serve_beside() {
    thread::spawn(|| {
        if let Err(error) = serve() {
            eprintln!("the agent: {error:#}");
        }
    });
}

/// This host's side.
struct Agent {
    stream: TcpStream,
    process: Option<Process>,
    /// Lines of shell that run beside all else.
    background: Vec<Child>,
}

impl Agent {
    fn new(stream: TcpStream) -> Result<Self> {
        // Of a listener that does not block; its streams may be the same.
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Self {
            stream,
            process: None,
            background: Vec::new(),
        })
    }

    fn run(&mut self) -> Result<()> {
        loop {
            let request = wire::read(&mut self.stream).context("the conductor is gone")?;
            let texts: Vec<&str> = request.iter().map(String::as_str).collect();
            if texts == ["quit"] {
                return Ok(());
            }
            let answer = match self.obey(&texts) {
                Ok(mut answer) => {
                    answer.insert(0, "ok".to_owned());
                    answer
                }
                Err(error) => vec!["failed".to_owned(), format!("{error:#}")],
            };
            wire::write(&mut self.stream, &answer)?;
        }
    }

    fn obey(&mut self, request: &[&str]) -> Result<Vec<String>> {
        let answer = match request {
            ["start", argv @ ..] => {
                self.process = None;
                self.process = Some(Process::start(argv)?);
                vec![]
            }
            ["start-told", argv @ ..] => {
                self.process = None;
                self.process = Some(Process::start_told(argv)?);
                vec![]
            }
            ["listens", listening] => {
                let is_there = Listening::from_str(listening)?.is_there()?;
                vec![is_there.to_string()]
            }
            ["hear", text, turn] => vec![self.hear(text, turn)?.as_str().to_owned()],
            ["line", turn] => self.line(turn)?,
            ["tell", line] => vec![self.process()?.tell(line).to_string()],
            ["signal", name] => self.signal(name)?,
            ["end", turn] => {
                let ended = self.process()?.end(millis(turn)?)?;
                ended.map_or_else(Vec::new, texts_of)
            }
            ["kill"] => texts_of(self.process()?.kill()?),
            ["shell", script] => shell(script)?,
            ["begin", script] => {
                let begin = clock_millis();
                self.background.push(command(script).spawn()?);
                vec![begin.to_string()]
            }
            ["settle"] => {
                for mut child in self.background.drain(..) {
                    child.wait()?;
                }
                vec![]
            }
            _ => bail!("the conductor asks for {request:?}"),
        };
        Ok(answer)
    }

    fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("no program was started")
    }

    fn hear(&mut self, text: &str, turn: &str) -> Result<Heard> {
        let turn = millis(turn)?;
        Ok(self.process()?.hear(text, turn))
    }

    /// The program's next line; when there is no more, how it ended.
    fn line(&mut self, turn: &str) -> Result<Vec<String>> {
        let process = self.process()?;
        if let Some(line) = process.line(millis(turn)?) {
            return Ok(texts_of_line(line));
        }
        let Some(ended) = process.end(Duration::ZERO)? else {
            return Ok(vec![]);
        };
        // What it printed last may have come only now.
        let last = process.line(Duration::ZERO);
        Ok(last.map_or_else(|| texts_of(ended), texts_of_line))
    }

    /// Sends a signal, and waits for the end if that is what it means.
    fn signal(&mut self, name: &str) -> Result<Vec<String>> {
        let begin = clock_millis();
        let signal = Signal::from_str(&format!("SIG{name}"))?;
        let process = self.process()?;
        process.signal(signal)?;
        if signal == Signal::SIGKILL {
            process.kill()?;
        }
        Ok(vec![begin.to_string()])
    }
}

fn millis(text: &str) -> Result<Deadline> {
    Ok(Deadline::exactly_after(Duration::from_millis(
        text.parse()?,
    )))
}

fn texts_of_line(line: Line) -> Vec<String> {
    match line {
        Line::Out(text) => vec!["out".to_owned(), text],
        Line::Err(text) => vec!["err".to_owned(), text],
    }
}

fn texts_of(ended: Ended) -> Vec<String> {
    let status = ended
        .status
        .map_or_else(|| "killed".to_owned(), |status| status.to_string());
    vec!["ended".to_owned(), status, ended.output]
}

fn command(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null());
    command
}

/// Runs a line of shell to its end: when it began, and what it printed.
fn shell(script: &str) -> Result<Vec<String>> {
    let begin = clock_millis();
    let output = command(script).output()?;
    ensure!(
        output.status.success(),
        anyhow!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )
    );
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(vec![begin.to_string(), printed])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A host whose agent is a thread of this program.
    fn host() -> (Host, thread::JoinHandle<Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent = thread::spawn(move || serve_on(listener));
        (Host::connect_to(address).unwrap(), agent)
    }

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_program_is_told_heard_and_ended() {
        let (mut host, agent) = host();
        // The second line after a second sign: the two outputs are read side by side.
        let script = "read word; echo got $word; read word; echo more >&2; sleep 1000";
        host.start_told(&sh(script)).unwrap();
        assert_eq!(
            host.hear("got", Duration::from_millis(1)).unwrap(),
            Heard::Late
        );
        assert!(host.tell("it").unwrap());
        let line = host.line(LIMIT).unwrap();
        assert_eq!(line, Said::Line(Line::Out("got it".into())));
        assert!(host.tell("go on").unwrap());
        let line = host.line(LIMIT).unwrap();
        assert_eq!(line, Said::Line(Line::Err("more".into())));
        assert_eq!(host.line(Duration::from_millis(1)).unwrap(), Said::Nothing);
        let ended = host.finish(Duration::from_millis(1)).unwrap();
        assert_eq!(ended.status, None);
        host.quit().unwrap();
        agent.join().unwrap().unwrap();
    }

    #[test]
    fn who_comes_for_the_next_agent_is_not_taken_by_this_one() {
        let (mut host, agent) = host();
        host.shell("true").unwrap();
        let address = host.address().unwrap();
        assert!(TcpStream::connect(address).is_err());
        host.quit().unwrap();
        agent.join().unwrap().unwrap();
    }

    #[test]
    fn an_end_comes_after_the_last_line_and_with_its_status() {
        let (mut host, agent) = host();
        host.start(&sh("echo last; exit 3")).unwrap();
        let line = host.line(LIMIT).unwrap();
        assert_eq!(line, Said::Line(Line::Out("last".into())));
        let Said::Ended(ended) = host.line(LIMIT).unwrap() else {
            panic!("no end")
        };
        assert_eq!((ended.status, &*ended.output), (Some(3), "last\n"));
        assert_eq!(host.finish(LIMIT).unwrap(), ended);
        assert!(!host.listens(Listening::Tcp(1)).unwrap(), "it has ended");
        host.quit().unwrap();
        agent.join().unwrap().unwrap();
    }

    #[test]
    fn what_fails_is_said_and_the_agent_goes_on() {
        let (mut host, agent) = host();
        let error = host.shell("echo what is wrong >&2; exit 2").unwrap_err();
        assert!(format!("{error:#}").contains("what is wrong"), "{error:#}");
        assert!(host.start(&["/no/such/program".into()]).is_err());
        let (begin, printed) = host.shell("echo fine").unwrap();
        assert!(begin <= clock_millis());
        assert_eq!(printed, "fine\n");
        host.start(&sh("sleep 1000")).unwrap();
        host.signal("KILL").unwrap();
        assert_eq!(host.finish(LIMIT).unwrap().status, Some(137));
        drop(host);
        assert!(agent.join().unwrap().is_err(), "the conductor went away");
    }
}
