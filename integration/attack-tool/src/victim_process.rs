use std::{
    env, fmt,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rdmsg::Transport;
use toolbox::{Footprint, Lab, Line, PATIENCE, Process};

use crate::Settings;

/// The memory in KiB by which the resident memory may grow in an attack: allocators keep some of
/// the memory of threads and connections that have ended.
const RESIDENT_SLACK: u64 = 32 << 10;

/// The thread that an engine starts with its first line in the log, and keeps.
const RELIEF: usize = 1;

/// The lines that the victim may log in a second.
const LINES_A_SECOND: u64 = 10;

/// The victim, seen from here.
#[derive(Debug)]
pub(crate) struct Victim {
    process: Process,
    pub(crate) services: Vec<SocketAddr>,
    started: Instant,
    /// Lines on stderr.
    log: Vec<String>,
    /// The device, over RDMA.
    lab: Option<Lab>,
}

/// The victim's resources at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    connections: u64,
    pinned: u64,
    held: u64,
    process: Footprint,
    /// Objects on the device.
    objects: String,
    pub(crate) ended: u64,
}

impl Victim {
    pub(crate) fn start(settings: &Settings) -> Result<Self> {
        let over_rdma = settings.transport == Transport::Rdma;
        let program = env::current_exe()?.display().to_string();
        let over = if over_rdma { "rdma" } else { "tcp" };
        let transport = format!("--transport={over}");
        // The allocator returns freed memory to the system, so that it does not count as resident.
        let argv = [
            "env",
            "MALLOC_ARENA_MAX=2",
            "MALLOC_MMAP_THRESHOLD_=131072",
            &program,
            "--victim",
            &transport,
        ];
        let mut victim = Self {
            process: Process::start_told(&argv)?,
            services: Vec::new(),
            started: Instant::now(),
            log: Vec::new(),
            lab: if over_rdma { Some(Lab::find()?) } else { None },
        };
        let ports = victim.hear("ports")?;
        let ports = ports.iter().map(|port| u16::try_from(*port));
        let at = |port| Ok(SocketAddr::new(settings.addr, port?));
        victim.services = ports.map(at).collect::<Result<_>>()?;
        Ok(victim)
    }

    /// The numbers of its next line on stdout, which begins with this word.
    fn hear(&mut self, word: &str) -> Result<Vec<u64>> {
        loop {
            match self.process.line(PATIENCE) {
                Some(Line::Err(line)) => self.log.push(line),
                Some(Line::Out(line)) => {
                    let numbers = line.strip_prefix(word).map(str::split_whitespace);
                    let numbers = numbers.with_context(|| format!("the victim says {line:?}"))?;
                    return Ok(numbers.map(str::parse).collect::<Result<_, _>>()?);
                }
                None => {
                    self.look()?;
                    bail!("the victim does not answer");
                }
            }
        }
    }

    pub(crate) fn state(&mut self) -> Result<State> {
        if !self.process.tell("state") {
            self.look()?;
        }
        let numbers = self.hear("state")?;
        let [connections, pinned, held, ended] = numbers[..] else {
            bail!("the victim says {numbers:?}");
        };
        Ok(State {
            connections,
            pinned,
            held,
            process: Footprint::of(&self.process.id().to_string())?,
            objects: self.lab.as_ref().map(objects).unwrap_or_default(),
            ended,
        })
    }

    /// Fails if the victim has ended, panicked, or logged too much.
    pub(crate) fn look(&mut self) -> Result<()> {
        while let Some(line) = self.process.line(Duration::ZERO) {
            match line {
                Line::Err(line) => self.log.push(line),
                Line::Out(line) => bail!("the victim says {line:?}"),
            }
        }
        let panicked = self.log.iter().any(|line| line.contains("panicked"));
        ensure!(!panicked, "the victim panicked. {}", self.last_words());
        let has_ended = self.process.has_ended()?;
        ensure!(!has_ended, "the victim has ended. {}", self.last_words());
        let allowed = LINES_A_SECOND * (self.started.elapsed().as_secs() + 2);
        let lines = self.log.len() as u64;
        ensure!(
            lines <= allowed,
            "the victim has logged {lines} lines, of which {allowed} are allowed. {}",
            self.last_words()
        );
        Ok(())
    }

    fn last_words(&self) -> String {
        let first = self.log.len().saturating_sub(20);
        let lines = self.log[first..].join("\n  ");
        format!("The victim's last lines:\n  {lines}")
    }

    pub(crate) fn lines(&self) -> usize {
        self.log.len()
    }

    /// Ends it.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.look()?;
        self.process.tell("end");
        let ended = self.process.finish(PATIENCE)?;
        ensure!(
            ended.status == Some(0),
            "the victim ended with {:?}: {}",
            ended.status,
            ended.output
        );
        Ok(())
    }
}

/// The objects of all processes on the device that come and go with connections. Registrations of
/// memory come and go with messages as well; their bytes count as pinned.
fn objects(lab: &Lab) -> String {
    let shown = lab.resources();
    let words: Vec<_> = shown.split_whitespace().collect();
    let counts = words
        .windows(2)
        .filter(|pair| ["qp", "cq", "srq", "cm_id"].contains(&pair[0]));
    let counts: Vec<_> = counts.map(|pair| pair.join(" ")).collect();
    counts.join(" ")
}

impl State {
    /// Returns whether nothing is left of an attack that began in the state `before`.
    pub(crate) fn has_settled(&self, before: &Self) -> bool {
        let (now, then) = (&self.process, &before.process);
        self.connections == before.connections
            && self.pinned <= before.pinned
            && self.held <= before.held
            && now.fds <= then.fds
            && now.threads <= then.threads + RELIEF
            && now.pinned <= then.pinned
            && now.resident <= then.resident + RESIDENT_SLACK
            && self.objects == before.objects
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Footprint {
            fds,
            threads,
            resident,
            ..
        } = self.process;
        write!(
            f,
            "{} connections, {fds} descriptors, {threads} threads, {resident} KiB resident, {} B \
             pinned, {} B held",
            self.connections, self.pinned, self.held
        )?;
        if !self.objects.is_empty() {
            write!(f, ", {}", self.objects)?;
        }
        Ok(())
    }
}
