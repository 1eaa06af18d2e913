//! Waiting for hosts, with everything that may put an end to it.

use std::{
    fs, io,
    os::fd::AsFd,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigSet, Signal},
};
use thiserror::Error;

use crate::place::HOSTS;

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
    Lost(Lost),
    Stop(Stop),
}

/// A reason to stop that has an exit status of its own.
#[derive(Debug, Error)]
#[error("{why}")]
pub(crate) struct Stop {
    pub(crate) status: u8,
    why: String,
}

/// A host that is not there any more, or never was, or whose virtual processors make no progress.
#[derive(Debug, Error)]
#[error("host {}: {why}", HOSTS[*host])]
pub(crate) struct Lost {
    pub(crate) host: usize,
    why: String,
    /// The answers of the monitor, if the processors make no progress.
    pub(crate) monitor: Option<String>,
}

impl Stop {
    pub(crate) fn unheard() -> Self {
        Self::by(Signal::SIGPIPE, "nobody reads the output".into())
    }

    fn by(signal: Signal, why: String) -> Self {
        let status = 128 + signal as u8;
        Self { status, why }
    }
}

impl Lost {
    pub(crate) fn new(host: usize, why: impl ToString) -> Self {
        Self {
            host,
            why: why.to_string(),
            monitor: None,
        }
    }
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
        on_signal(move |signal| {
            let stop = Stop::by(signal, format!("stopped by {signal}"));
            drop(signals.send(News::Stop(stop)));
        })?;
        on_unheard(move || drop(unheard.send(News::Stop(Stop::unheard()))));
        Ok(Self { news, inbox })
    }

    /// Waits until all hosts are ready.
    pub(crate) fn ready(&self, hosts: usize, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut missing: Vec<_> = (0..hosts).collect();
        while let Some(&host) = missing.first() {
            match self.next(deadline)? {
                Some(News::Ready { host }) => missing.retain(|&other| other != host),
                Some(News::Lost(lost)) => return Err(lost.into()),
                Some(News::Ended { .. } | News::Stop(_)) => {}
                None => {
                    let seconds = limit.as_secs();
                    let why = "it may lack memory, or this machine be very busy";
                    let why = format!("not up within {seconds} s; {why}");
                    return Err(Lost::new(host, why).into());
                }
            }
        }
        Ok(())
    }

    /// Drops what was heard of hosts that were switched off.
    pub(crate) fn forget_hosts(&self) -> Result<()> {
        while self.next(Instant::now())?.is_some() {}
        Ok(())
    }

    /// Waits until the commands of all hosts have ended, and returns the first status that is a
    /// failure, or zero. A host that may die takes its command with it, and that is no failure.
    pub(crate) fn ended(&self, hosts: usize, limit: Duration, may_die: &[String]) -> Result<u8> {
        let deadline = Instant::now() + limit;
        let mut running = HOSTS[..hosts].to_vec();
        let mut result = 0;
        while !running.is_empty() {
            let Some(news) = self.next(deadline)? else {
                let (limit, running) = (limit.as_secs(), running.join(" and "));
                let why = format!("timed out: after {limit} s still running on {running}");
                return Err(Stop { status: 124, why }.into());
            };
            let (host, status) = match news {
                News::Ended { host, status } => (host, status),
                News::Lost(lost) => {
                    let may_die = may_die.iter().any(|name| *name == HOSTS[lost.host]);
                    if !may_die || lost.monitor.is_some() {
                        return Err(lost.into());
                    }
                    eprintln!("lab: {lost}, as it may");
                    (lost.host, 0)
                }
                // It was ready long ago, and the others do not get here.
                News::Ready { .. } | News::Stop(_) => continue,
            };
            running.retain(|name| *name != HOSTS[host]);
            if status != 0 && hosts > 1 {
                eprintln!("lab: {}: exit status {status}", HOSTS[host]);
            }
            if result == 0 {
                result = status;
            }
        }
        Ok(result)
    }

    /// News that are no reason to stop, or `None` at the deadline.
    fn next(&self, deadline: Instant) -> Result<Option<News>> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.inbox.recv_timeout(left) {
            Ok(News::Stop(stop)) => Err(stop.into()),
            Ok(news) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
        }
    }
}

/// Calls `tell` for each signal that asks this process to end. To be called before any thread is
/// started: threads inherit that these signals are held back from them.
fn on_signal(tell: impl Fn(Signal) + Send + 'static) -> nix::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    if !hangup_is_ignored() {
        signals.add(Signal::SIGHUP);
    }
    signals.thread_block()?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            tell(signal);
        }
    });
    Ok(())
}

/// As `nohup` arranges. Waiting for a signal would override that.
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (Signal::SIGHUP as u32 - 1) != 0)
}

/// Calls `tell` when nobody reads our stdout or stderr any more, even if there is nothing to write.
fn on_unheard(tell: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        // Errors and hang-ups are reported without being asked for.
        let mut fds =
            [&stdout.as_fd(), &stderr.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::empty()));
        while let Err(nix::Error::EINTR) = poll(&mut fds, PollTimeout::NONE) {}
        tell();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch over two hosts to which this happened.
    fn watch(news: impl IntoIterator<Item = News>) -> Watch {
        let (sender, inbox) = channel();
        for news in news {
            sender.send(news).unwrap();
        }
        Watch {
            news: sender,
            inbox,
        }
    }

    fn lost(host: usize) -> News {
        News::Lost(Lost::new(host, "the machine stopped"))
    }

    #[test]
    fn a_host_that_may_die_fails_nothing_and_hides_nothing() {
        const LIMIT: Duration = Duration::from_secs(60);
        let may_die = ["b".to_owned()];
        for status in [0, 3] {
            let ended = News::Ended { host: 0, status };
            let watch = watch([lost(1), ended]);
            assert_eq!(watch.ended(2, LIMIT, &may_die).unwrap(), status);
        }
        let error = watch([lost(0)]).ended(2, LIMIT, &may_die).unwrap_err();
        assert_eq!(error.to_string(), "host a: the machine stopped");
        let error = watch([lost(1)]).ended(2, LIMIT, &[]).unwrap_err();
        assert_eq!(error.to_string(), "host b: the machine stopped");
    }

    #[test]
    fn what_was_heard_of_an_earlier_boot_is_dropped_but_a_signal_is_not() {
        const LIMIT: Duration = Duration::from_secs(60);
        let boot = watch([lost(1)]);
        assert!(boot.ready(2, LIMIT).is_err());
        boot.news.send(News::Ready { host: 0 }).unwrap();
        boot.news.send(lost(0)).unwrap();
        boot.forget_hosts().unwrap();
        for host in [0, 1] {
            boot.news.send(News::Ready { host }).unwrap();
        }
        boot.ready(2, LIMIT).unwrap();
        boot.news.send(lost(0)).unwrap();
        let stop = Stop::by(Signal::SIGTERM, "stopped by SIGTERM".into());
        boot.news.send(News::Stop(stop)).unwrap();
        assert!(boot.forget_hosts().unwrap_err().is::<Stop>());
    }

    #[test]
    fn a_host_that_may_die_may_not_stop() {
        let stopped = Lost {
            monitor: Some(String::new()),
            ..Lost::new(1, "no progress")
        };
        let watch = watch([News::Lost(stopped)]);
        let ended = watch.ended(2, Duration::from_secs(60), &["b".to_owned()]);
        assert!(ended.unwrap_err().is::<Lost>());
    }

    #[test]
    fn no_host_may_die_before_it_is_ready() {
        let watch = watch([News::Ready { host: 0 }, lost(1)]);
        assert!(watch.ready(2, Duration::from_secs(60)).is_err());
    }
}
