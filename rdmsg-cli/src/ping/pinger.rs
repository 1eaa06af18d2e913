use std::{
    io::{self, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use rdmsg::{Endpoint, Error, Transport};

use super::{options::Options, outages::Outages, summary::Summary};
use crate::{
    arguments::Carrier,
    live::Live,
    measure::{Size, micros},
    process::Stop,
    service::{self, Request, connect},
};

/// The interval at which the pinger checks for a signal while it waits for a reply.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The shortest interval at which each message has its own output line. With a shorter interval,
/// the pinger overwrites one line.
const READABLE: Duration = Duration::from_millis(150);

/// Sends messages to `rdmsg serve`. Waits for the reply to a message before it sends the next one.
#[derive(Debug)]
pub(super) struct Pinger<'a> {
    options: &'a Options,
    peer: Vec<SocketAddr>,
    message: Vec<u8>,
    live: Live,
    /// The outages of the current connection.
    outages: Outages,
    /// The number of failed attempts to reconnect.
    failed_connects: u64,
    summary: Summary,
}

/// The result of sending one message.
enum Outcome {
    Back(Duration),
    Stopped,
    /// The connection ended or the time limit passed before the reply arrived.
    Lost(Error),
}

impl<'a> Pinger<'a> {
    pub(super) fn new(options: &'a Options) -> Result<Self> {
        let Size(size) = options.size;
        Ok(Self {
            options,
            peer: service::addresses(&options.peer)?,
            message: (0..size).map(|offset| offset as u8).collect(),
            live: Live::new(!options.quiet && !options.json),
            outages: Outages::new(),
            failed_connects: 0,
            summary: Summary::new(&options.peer, options.size),
        })
    }

    /// Sends messages until `--count` is reached or a signal arrives.
    pub(super) fn run(mut self, stop: &Stop) -> Result<Summary> {
        let mut endpoint = self.connect(self.options.transport)?;
        self.greet(&endpoint)?;
        while !stop.is_requested() && !self.is_complete() {
            let start = Instant::now();
            self.summary.sent += 1;
            match self.send(&endpoint, stop)? {
                Outcome::Back(time) => {
                    self.summary.times.add(time);
                    self.look(&endpoint)?;
                    self.show(time)?;
                }
                Outcome::Stopped => {
                    // A signal interrupted the wait for the reply, so this message is not counted.
                    self.summary.sent -= 1;
                    break;
                }
                Outcome::Lost(error) => {
                    self.summary.connections_lost += 1;
                    self.tell(format_args!("the connection is lost: {error}"))?;
                    endpoint.abort(0);
                    match self.connect_again(stop)? {
                        Some(again) => endpoint = again,
                        None => break,
                    }
                }
            }
            let rest = self.options.interval.saturating_sub(start.elapsed());
            if !self.is_complete() && !rest.is_zero() {
                stop.wait(rest);
            }
        }
        self.live.clear()?;
        if endpoint.info().close_reason.is_none()
            && let Err(error) = endpoint.close()
        {
            self.tell(format_args!("cannot close the connection: {error}"))?;
        }
        Ok(self.summary)
    }

    /// Returns true if the number of sent messages plus the number of failed attempts to reconnect
    /// has reached `--count`.
    fn is_complete(&self) -> bool {
        let count = self.options.count;
        count.is_some_and(|count| self.summary.sent + self.failed_connects >= count)
    }

    fn connect(&mut self, carrier: Carrier) -> Result<Endpoint> {
        let Options {
            timeout, resume, ..
        } = *self.options;
        let endpoint = connect(&self.peer, carrier, Request::Echo, timeout, resume)?;
        self.outages = Outages::new();
        self.summary.transport = endpoint.info().transport.to_string();
        Ok(endpoint)
    }

    /// Tries to reconnect until an attempt succeeds. Uses the transport of the first connection, so
    /// that all times are measured over the same transport. Returns `None` if a signal arrives, or
    /// if `--count` is reached.
    fn connect_again(&mut self, stop: &Stop) -> Result<Option<Endpoint>> {
        let carrier = if self.summary.transport == Transport::Tcp.to_string() {
            Carrier::Tcp
        } else {
            Carrier::Rdma
        };
        loop {
            // Wait, to limit the rate of attempts while the peer is unreachable.
            stop.wait(self.options.interval.max(CHECK_INTERVAL));
            if stop.is_requested() {
                return Ok(None);
            }
            match self.connect(carrier) {
                Ok(endpoint) => {
                    self.greet(&endpoint)?;
                    return Ok(Some(endpoint));
                }
                Err(error) => {
                    self.tell(format_args!("{error:#}"))?;
                    self.failed_connects += 1;
                    if self.is_complete() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn greet(&mut self, endpoint: &Endpoint) -> io::Result<()> {
        let (peer, over, size) = (
            endpoint.peer_addr(),
            endpoint.info().transport,
            self.options.size,
        );
        self.tell(format_args!(
            "connected to {peer} over {over}; messages of {size} bytes"
        ))
    }

    fn send(&mut self, endpoint: &Endpoint, stop: &Stop) -> io::Result<Outcome> {
        let start = Instant::now();
        // The start of the time limit. While the connection is suspended, each check sets the start
        // to the current time, so that an outage does not count towards the limit.
        let mut limited = start;
        let mut is_sent = false;
        loop {
            let left = self.options.timeout.saturating_sub(limited.elapsed());
            let received = if is_sent {
                endpoint.recv_timeout(left.min(CHECK_INTERVAL)).map(Some)
            } else {
                let sent = endpoint.send_timeout(&self.message, left.min(CHECK_INTERVAL));
                sent.map(|()| None)
            };
            match received {
                Ok(None) => is_sent = true,
                Ok(Some(message)) => {
                    let time = start.elapsed();
                    if *message != *self.message {
                        log::error!("the peer's reply differs from the message sent");
                    }
                    return Ok(Outcome::Back(time));
                }
                Err(Error::TimedOut) if stop.is_requested() => return Ok(Outcome::Stopped),
                Err(Error::TimedOut) if !left.is_zero() => {
                    self.look(endpoint)?;
                    if self.outages.is_suspended() {
                        limited = Instant::now();
                    }
                }
                Err(error) => return Ok(Outcome::Lost(error)),
            }
        }
    }

    /// Prints a line if the connection was lost or resumed since the previous call. Adds the new
    /// resumes to the summary.
    fn look(&mut self, endpoint: &Endpoint) -> io::Result<()> {
        let before = self.outages.resumes();
        let change = self.outages.look(endpoint);
        self.summary.resumes += self.outages.resumes() - before;
        match change {
            Some(change) => self.tell(format_args!("{change}")),
            None => Ok(()),
        }
    }

    /// Shows a round-trip time. If the interval is at least `READABLE`, prints a new line. If the
    /// interval is shorter, updates the status line.
    fn show(&mut self, time: Duration) -> io::Result<()> {
        let (number, took) = (self.summary.sent, micros(time.as_secs_f64() * 1e6));
        if self.options.interval >= READABLE {
            return self.live.line(format_args!("{number:>5}: {took}"));
        }
        let summary = &self.summary;
        self.live.update(|out| {
            let Some(so_far) = summary.times.summary() else {
                return Ok(());
            };
            write!(
                out,
                "{number} messages: {took}; median {}, 99 % within {}, at most {}",
                micros(so_far.median),
                micros(so_far.p99),
                micros(so_far.most)
            )
        })
    }

    fn tell(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.live.line(text)
    }
}
