use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use rdmsg::Endpoint;

use super::{
    options::{Options, Test},
    plan::Point,
};
use crate::{
    measure::Times,
    process::Stop,
    service::{Request, connect},
};

/// The number of short messages to send between two checks of the elapsed time.
const BATCH: u64 = 16;

/// The result of measuring one point of the plan.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// The transport that the connections used.
    pub(super) transport: String,
    pub(super) messages: u64,
    /// The sum of the rates of all connections.
    pub(super) messages_per_second: f64,
    /// The round-trip times. Empty unless the test measures latency.
    pub(super) times: Times,
}

/// The result of one connection.
struct Part {
    messages: u64,
    time: Duration,
    times: Times,
}

/// Measures one point, with new connections.
pub(super) fn measure(
    point: &Point,
    peer: &[SocketAddr],
    options: &Options,
    stop: &Stop,
) -> Result<Measured> {
    let request = match point.test {
        Test::Latency => Request::Echo,
        Test::Bandwidth | Test::Rate => Request::Sink,
    };
    let endpoints = (0..point.connections)
        .map(|_| {
            connect(
                peer,
                point.carrier,
                request,
                options.timeout,
                Duration::ZERO,
            )
        })
        .collect::<Result<Vec<Endpoint>>>()?;
    let transport = endpoints[0].info().transport.to_string();
    let same = endpoints
        .iter()
        .all(|one| one.info().transport.to_string() == transport);
    ensure!(
        same,
        "some connections use RDMA and others TCP: choose one transport with --transport"
    );
    let parts = thread::scope(|scope| {
        let workers: Vec<_> = endpoints
            .iter()
            .map(|endpoint| {
                let worker = Worker {
                    endpoint,
                    message: (0..point.size.0).map(|offset| offset as u8).collect(),
                    limit: options.timeout,
                    stop,
                };
                thread::Builder::new()
                    .spawn_scoped(scope, move || worker.run(point.test, options.seconds))
                    .context("cannot start the thread that measures a connection")
            })
            .collect();
        let ended = workers.into_iter().map(|worker| {
            let ended = worker?.join().map_err(|_| anyhow!("a thread panicked"));
            ended.and_then(|part| part)
        });
        // Join all threads, even if one of them has returned an error.
        ended.collect::<Vec<Result<Part>>>()
    });
    let mut measured = Measured {
        transport,
        messages: 0,
        messages_per_second: 0.0,
        times: Times::new(),
    };
    for part in parts {
        let part = part?;
        measured.messages += part.messages;
        measured.messages_per_second += part.messages as f64 / part.time.as_secs_f64();
        measured.times.add_all(&part.times);
    }
    for endpoint in endpoints {
        endpoint.close()?;
    }
    Ok(measured)
}

/// The measurement on one connection.
struct Worker<'a> {
    endpoint: &'a Endpoint,
    message: Vec<u8>,
    limit: Duration,
    stop: &'a Stop,
}

impl Worker<'_> {
    fn run(&self, test: Test, time: Duration) -> Result<Part> {
        let measure = |time| match test {
            Test::Latency => self.echo(time),
            Test::Bandwidth | Test::Rate => self.send(time),
        };
        let ended = measure(time / 10).and_then(|_| measure(time));
        // Abort a failed connection, because its close would wait for the peer.
        ended.inspect_err(|_| self.endpoint.abort(0))
    }

    fn echo(&self, time: Duration) -> Result<Part> {
        let mut times = Times::new();
        let start = Instant::now();
        while start.elapsed() < time && !self.stop.is_requested() {
            let sent = Instant::now();
            self.endpoint.send_timeout(&self.message, self.limit)?;
            let answer = self.endpoint.recv_timeout(self.limit)?;
            times.add(sent.elapsed());
            ensure!(
                answer.len() == self.message.len(),
                "the length of the peer's reply differs from that of the message sent"
            );
        }
        Ok(Part {
            messages: times.count(),
            time: start.elapsed(),
            times,
        })
    }

    fn send(&self, time: Duration) -> Result<Part> {
        let batch = if self.message.len() > 4096 { 1 } else { BATCH };
        let start = Instant::now();
        let mut messages = 0;
        while start.elapsed() < time && !self.stop.is_requested() {
            for _ in 0..batch {
                self.endpoint.send_timeout(&self.message, self.limit)?;
            }
            messages += batch;
        }
        // The flush waits until the messages in flight have arrived.
        self.endpoint.flush_timeout(self.limit)?;
        Ok(Part {
            messages,
            time: start.elapsed(),
            times: Times::new(),
        })
    }
}
