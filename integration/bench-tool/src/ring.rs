//! Messages that are written into the peer's memory, where its thread looks for them: what a ring
//! that the peer writes into would cost at the least.
//!
//! There is one place a side and one message at a time, so the answer is what frees it: no credit
//! is counted, nothing is copied for an application, and nothing is checked that a peer could
//! change once it has been looked at.

use std::{hint, time::Instant};

use anyhow::{Context, Result, ensure};
use rdmsg::{Completion, Endpoint, Engine, Region, RemoteAccess, RemoteRegion};

use crate::{
    carrier::SILENCE,
    traffic::{Figures, Times, Traffic},
};

/// The bytes behind a message that tell its number. A packet's last bytes are the last to come.
const NUMBER: usize = size_of::<u64>();

/// How often memory is looked at before the clock is.
const LOOKS: u32 = 1 << 16;

pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    let engine = Engine::new()?;
    let endpoint = traffic.accept(&engine)?.pop().context("no connection")?;
    let mut places = Places::new(endpoint, traffic.size)?;
    for _ in 0..traffic.warm_up() + traffic.count {
        places.await_message()?;
        places.write()?;
    }
    // Until the client has closed.
    drop(places.endpoint.recv_timeout(SILENCE));
    drop(places);
    engine.shutdown();
    Ok(())
}

pub(crate) fn measure(traffic: &Traffic) -> Result<Figures> {
    let engine = Engine::new()?;
    let endpoint = traffic.connect(&engine)?.pop().context("no connection")?;
    let mut places = Places::new(endpoint, traffic.size)?;
    let mut round_trips = |count| -> Result<Times> {
        let mut times = Times::start()?;
        for _ in 0..count {
            places.write()?;
            places.await_message()?;
            times.record(2);
        }
        Ok(times)
    };
    round_trips(traffic.warm_up())?;
    let figures = round_trips(traffic.count)?.figures();
    places.endpoint.close()?;
    drop(places);
    engine.shutdown();
    Ok(figures)
}

/// A message's place on either side.
struct Places {
    endpoint: Endpoint,
    /// What the peer writes into.
    incoming: Region,
    outgoing: Region,
    remote: RemoteRegion,
    size: usize,
    received: u64,
    sent: u64,
}

impl Places {
    fn new(endpoint: Endpoint, size: usize) -> Result<Self> {
        let incoming = endpoint.region(size + NUMBER, RemoteAccess::WRITE)?;
        endpoint.send(&incoming.remote().to_bytes())?;
        let told = endpoint.recv_timeout(SILENCE)?;
        Ok(Self {
            incoming,
            outgoing: endpoint.region(size + NUMBER, RemoteAccess::NONE)?,
            remote: RemoteRegion::try_from(&*told)?,
            size,
            received: 0,
            sent: 0,
            endpoint,
        })
    }

    fn write(&mut self) -> Result<()> {
        self.sent += 1;
        self.outgoing.copy_in(self.size, &self.sent.to_ne_bytes());
        let range = 0..self.size + NUMBER;
        self.endpoint
            .write(&self.outgoing, range, &self.remote, 0, self.sent)?;
        Ok(())
    }

    fn has_message(&self) -> bool {
        let mut number = [0; NUMBER];
        self.incoming.copy_out(self.size, &mut number);
        hint::spin_loop();
        u64::from_ne_bytes(number) > self.received
    }

    /// Looks at the memory alone until the message is there, then takes the word of the write
    /// before it, which has long been done.
    fn await_message(&mut self) -> Result<()> {
        let start = Instant::now();
        while !(0..LOOKS).any(|_| self.has_message()) {
            ensure!(start.elapsed() < SILENCE, "the other side writes nothing");
        }
        self.received += 1;
        if self.sent > 0 {
            let completion = self.endpoint.next_completion_timeout(SILENCE)?;
            ensure!(
                matches!(completion, Completion::Written(_)),
                "{completion:?}"
            );
        }
        Ok(())
    }
}
