//! Waiting for hosts, with everything that may put an end to it.

use std::{
    error, fmt,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::{output, place::HOSTS, process};

/// What may happen while hosts run.
#[derive(Debug)]
pub(crate) enum News {
    Ready {
        host: usize,
    },
    /// The command of a host ended with this status.
    Ended {
        host: usize,
        status: u8,
    },
    /// A host is not there any more, or never was.
    Lost {
        host: usize,
        why: String,
    },
    Signal(Signal),
    /// Nobody listens to us any more.
    Unheard,
}

/// A reason to stop that has an exit status of its own.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) status: u8,
    why: String,
}

/// A host that is lost, for which there is more to say.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) host: usize,
    why: String,
}

#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) news: Sender<News>,
    inbox: Receiver<News>,
}

impl Watch {
    /// To be called before any thread is started.
    pub(crate) fn new() -> Result<Self> {
        let (news, inbox) = channel();
        // The receiver lives as long as the main thread, so sending fails only at the very end.
        let (signals, unheard) = (news.clone(), news.clone());
        process::on_signal(move |signal| drop(signals.send(News::Signal(signal))))?;
        output::on_unheard(move || drop(unheard.send(News::Unheard)));
        Ok(Self { news, inbox })
    }

    /// Waits until all hosts are ready.
    pub(crate) fn ready(&self, hosts: usize, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut missing: Vec<_> = (0..hosts).collect();
        while let Some(&host) = missing.first() {
            match self.next(deadline)? {
                Some(News::Ready { host }) => missing.retain(|&other| other != host),
                Some(_) => {}
                None => {
                    let why = format!(
                        "not up within {} s; it may lack memory, or this machine be very busy",
                        limit.as_secs()
                    );
                    return Err(Lost { host, why }.into());
                }
            }
        }
        Ok(())
    }

    /// Waits until the commands of all hosts have ended, and returns the first status that is a
    /// failure, or zero.
    pub(crate) fn ended(&self, hosts: usize, limit: Duration) -> Result<u8> {
        let deadline = Instant::now() + limit;
        let mut running = HOSTS[..hosts].to_vec();
        let mut result = 0;
        while !running.is_empty() {
            let Some(news) = self.next(deadline)? else {
                let why = format!(
                    "timed out: after {} s still running on {}",
                    limit.as_secs(),
                    running.join(" and ")
                );
                return Err(Stop { status: 124, why }.into());
            };
            if let News::Ended { host, status } = news {
                running.retain(|name| *name != HOSTS[host]);
                if status != 0 && hosts > 1 {
                    eprintln!("lab: {}: exit status {status}", HOSTS[host]);
                }
                if result == 0 {
                    result = status;
                }
            }
        }
        Ok(result)
    }

    /// News that are no reason to stop, or `None` at the deadline.
    fn next(&self, deadline: Instant) -> Result<Option<News>> {
        match self
            .inbox
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(News::Signal(signal)) => Err(Stop {
                status: 128 + signal as u8,
                why: format!("stopped by {signal}"),
            }
            .into()),
            Ok(News::Unheard) => Err(Stop {
                status: 128 + Signal::SIGPIPE as u8,
                why: "nobody reads the output".into(),
            }
            .into()),
            Ok(News::Lost { host, why }) => Err(Lost { host, why }.into()),
            Ok(news @ (News::Ready { .. } | News::Ended { .. })) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl error::Error for Stop {}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}: {}", HOSTS[self.host], self.why)
    }
}

impl error::Error for Lost {}
