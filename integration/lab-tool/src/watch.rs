//! Waits for the hosts' events, and for other events that end the run.

use std::{
    fs, io,
    os::fd::AsFd,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use hosts::wire::Frame;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigSet, Signal},
};
use thiserror::Error;

use crate::host_network::HOSTS;

/// The exit status if the lab itself fails. If the command fails, the lab returns the command's
/// status.
pub(crate) const FAILURE: u8 = 125;

/// The exit status if a guest has stopped responding.
const STOPPED: u8 = 123;

/// An event that occurs while the hosts run.
#[derive(Debug)]
pub(crate) enum HostEvent {
    Ready(usize),
    /// The command of the given host has ended with the given exit status.
    Ended(usize, u8),
    Stop(Stop),
}

/// A reason to end the run.
#[derive(Debug, Error)]
pub(crate) enum Stop {
    #[error("stopped by {0}")]
    Signal(Signal),
    /// The reader of stdout or stderr has closed the pipe.
    #[error("the reader of the output has closed the pipe")]
    OutputClosed,
    #[error("timed out: still running after {} s on host {running}", limit.as_secs())]
    TimedOut { limit: Duration, running: String },
    /// The machine of a host has ended or has not booted, or its agent has failed.
    #[error("host {}: {why}", HOSTS[*host])]
    Lost { host: usize, why: String },
    /// The machine of a host has stopped responding.
    #[error("host {}: the machine has stopped: no heartbeat, and {why}", HOSTS[*host])]
    Unresponsive {
        host: usize,
        why: &'static str,
        /// The answers of QEMU's monitor.
        monitor: String,
    },
}

impl Stop {
    /// Creates the stop for a host whose machine has ended.
    pub(crate) fn ended(host: usize) -> Self {
        let why = "the machine stopped".to_owned();
        Self::Lost { host, why }
    }

    /// Creates the stop for a host whose agent has sent a frame that it must not send.
    pub(crate) fn unexpected(host: usize, frame: &Frame) -> Self {
        let why = format!("the agent has sent the unexpected frame {frame:?}");
        Self::Lost { host, why }
    }

    /// Returns the exit status of the lab.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Signal(signal) => 128 + *signal as u8,
            Self::OutputClosed => 128 + Signal::SIGPIPE as u8,
            Self::TimedOut { .. } => 124,
            Self::Lost { .. } => FAILURE,
            Self::Unresponsive { .. } => STOPPED,
        }
    }

    /// Returns the host that was lost, if any.
    pub(crate) fn host(&self) -> Option<usize> {
        match self {
            Self::Lost { host, .. } | Self::Unresponsive { host, .. } => Some(*host),
            Self::Signal(_) | Self::OutputClosed | Self::TimedOut { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) news: Sender<HostEvent>,
    inbox: Receiver<HostEvent>,
}

impl Watch {
    /// Creates a watch. The caller must not have started any threads: this function blocks signals
    /// in the calling thread, and only threads started later inherit the signal mask.
    pub(crate) fn new() -> Result<Self> {
        let (news, inbox) = channel();
        // The closures below ignore a failed send, because sending fails only after the main thread
        // has dropped the receiver.
        let (signals, output_closed) = (news.clone(), news.clone());
        on_signal(move |signal| {
            drop(signals.send(HostEvent::Stop(Stop::Signal(signal))));
        })?;
        on_output_closed(move || drop(output_closed.send(HostEvent::Stop(Stop::OutputClosed))));
        Ok(Self { news, inbox })
    }

    /// Waits until all hosts are ready, for at most `limit`.
    pub(crate) fn ready(&self, hosts: usize, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut missing: Vec<_> = (0..hosts).collect();
        while let Some(&host) = missing.first() {
            match self.next(deadline)? {
                Some(HostEvent::Ready(host)) => missing.retain(|&other| other != host),
                Some(HostEvent::Stop(lost)) => return Err(lost.into()),
                Some(HostEvent::Ended(..)) => {}
                None => {
                    let seconds = limit.as_secs();
                    let why = "it may lack memory, or this machine is very busy";
                    let why = format!("the guest was not ready within {seconds} s; {why}");
                    return Err(Stop::Lost { host, why }.into());
                }
            }
        }
        Ok(())
    }

    /// Discards the pending events of machines that were switched off. Returns an error if one of
    /// the pending events must end the run, for instance a signal.
    pub(crate) fn forget_hosts(&self) -> Result<()> {
        while self.next(Instant::now())?.is_some() {}
        Ok(())
    }

    /// Waits until the commands of all hosts have ended, or until one has ended with the status
    /// 123, which means that a guest has stopped. Returns the first nonzero exit status, or zero if
    /// all commands succeeded. If the machine of a host in `may_die` ends, the command on this host
    /// counts as successful.
    pub(crate) fn ended(&self, hosts: usize, limit: Duration, may_die: &[String]) -> Result<u8> {
        let deadline = Instant::now() + limit;
        let mut running = HOSTS[..hosts].to_vec();
        let mut result = 0;
        while !running.is_empty() {
            let Some(news) = self.next(deadline)? else {
                let running = running.join(" and ");
                return Err(Stop::TimedOut { limit, running }.into());
            };
            let (host, status) = match news {
                HostEvent::Ended(host, status) => (host, status),
                HostEvent::Stop(Stop::Lost { host, why })
                    if may_die.iter().any(|name| *name == HOSTS[host]) =>
                {
                    eprintln!("lab: host {}: {why}, as --may-die permits", HOSTS[host]);
                    (host, 0)
                }
                HostEvent::Stop(stop) => return Err(stop.into()),
                // `ready` has already waited for all hosts.
                HostEvent::Ready(_) => continue,
            };
            running.retain(|name| *name != HOSTS[host]);
            if status != 0 && hosts > 1 {
                eprintln!(
                    "lab: host {}: the command ended with exit status {status}",
                    HOSTS[host]
                );
            }
            if status == STOPPED {
                // The command has found that a guest is unusable. The other host may wait forever.
                return Ok(status);
            }
            if result == 0 {
                result = status;
            }
        }
        Ok(result)
    }

    /// Returns the next event, or `None` at the deadline. Returns an error if the run must end for
    /// a reason that is not specific to a host, for instance a signal.
    fn next(&self, deadline: Instant) -> Result<Option<HostEvent>> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.inbox.recv_timeout(left) {
            Ok(HostEvent::Stop(stop)) if stop.host().is_none() => Err(stop.into()),
            Ok(news) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => unreachable!("`self.news` is a sender"),
        }
    }
}

/// Calls `notify` for each signal that requests the end of this process. The caller must not have
/// started any threads: this function blocks these signals in the calling thread, and only threads
/// started later inherit the signal mask.
fn on_signal(notify: impl Fn(Signal) + Send + 'static) -> nix::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    if !hangup_is_ignored() {
        signals.add(Signal::SIGHUP);
    }
    signals.thread_block()?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            notify(signal);
        }
    });
    Ok(())
}

/// Returns true if this process ignores SIGHUP, for example because `nohup` has started this
/// process. The caller must then leave SIGHUP ignored. If the caller added SIGHUP to the signals
/// that end the run, a hangup would end the run in spite of `nohup`.
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (Signal::SIGHUP as u32 - 1) != 0)
}

/// Calls `notify` when the reader of stdout or stderr has closed the pipe, even if this process
/// writes nothing.
fn on_output_closed(notify: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        // Request no events, because `poll` always reports errors and hang-ups.
        let mut fds =
            [&stdout.as_fd(), &stderr.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::empty()));
        while let Err(nix::Error::EINTR) = poll(&mut fds, PollTimeout::NONE) {}
        notify();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a watch with the pending events `news`.
    fn watch(news: impl IntoIterator<Item = HostEvent>) -> Watch {
        let (sender, inbox) = channel();
        for news in news {
            sender.send(news).unwrap();
        }
        Watch {
            news: sender,
            inbox,
        }
    }

    fn lost(host: usize) -> HostEvent {
        HostEvent::Stop(Stop::ended(host))
    }

    #[test]
    fn permitted_death_of_host_hides_no_failure() {
        const LIMIT: Duration = Duration::from_secs(60);
        let may_die = ["b".to_owned()];
        for status in [0, 3] {
            let ended = HostEvent::Ended(0, status);
            let watch = watch([lost(1), ended]);
            assert_eq!(watch.ended(2, LIMIT, &may_die).unwrap(), status);
        }
        let error = watch([lost(0)]).ended(2, LIMIT, &may_die).unwrap_err();
        assert_eq!(error.to_string(), "host a: the machine stopped");
        let error = watch([lost(1)]).ended(2, LIMIT, &[]).unwrap_err();
        assert_eq!(error.to_string(), "host b: the machine stopped");
    }

    #[test]
    fn command_that_finds_a_stopped_guest_ends_the_run() {
        let watch = watch([HostEvent::Ended(0, STOPPED)]);
        let ended = watch.ended(2, Duration::from_secs(60), &[]);
        assert_eq!(ended.unwrap(), STOPPED);
    }

    #[test]
    fn reboot_discards_host_events_but_no_signal() {
        const LIMIT: Duration = Duration::from_secs(60);
        let boot = watch([lost(1)]);
        assert!(boot.ready(2, LIMIT).is_err());
        boot.news.send(HostEvent::Ready(0)).unwrap();
        boot.news.send(lost(0)).unwrap();
        boot.forget_hosts().unwrap();
        for host in [0, 1] {
            boot.news.send(HostEvent::Ready(host)).unwrap();
        }
        boot.ready(2, LIMIT).unwrap();
        boot.news.send(lost(0)).unwrap();
        let stop = HostEvent::Stop(Stop::Signal(Signal::SIGTERM));
        boot.news.send(stop).unwrap();
        let error = boot.forget_hosts().unwrap_err();
        assert_eq!(error.downcast::<Stop>().unwrap().status(), 143);
    }

    #[test]
    fn a_host_that_may_die_may_not_stop() {
        let stop = Stop::Unresponsive {
            host: 1,
            why: "no progress",
            monitor: String::new(),
        };
        let watch = watch([HostEvent::Stop(stop)]);
        let ended = watch.ended(2, Duration::from_secs(60), &["b".to_owned()]);
        assert_eq!(
            ended.unwrap_err().downcast::<Stop>().unwrap().status(),
            STOPPED
        );
    }

    #[test]
    fn no_host_may_die_before_it_is_ready() {
        let watch = watch([HostEvent::Ready(0), lost(1)]);
        assert!(watch.ready(2, Duration::from_secs(60)).is_err());
    }
}
