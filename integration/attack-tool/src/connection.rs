//! The attacks, one connection each.

use std::{
    fmt,
    net::SocketAddr,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use rdmsg::Transport;

use crate::{
    arena::{Arena, Journal},
    attack::{Kind, Leave, Pace, Wire},
    mutation,
    rdma::Rdma,
    session::{Session, WINDOW},
    tcp::{self, Tcp},
    victim::{self, LEND, STREAM},
    wire::Hello,
};

/// One connection of an attacker.
pub(crate) struct Attack<'a> {
    arena: &'a Arena<'a>,
    journal: &'a Journal,
    service: usize,
    rng: Rng,
}

/// A connection that is set up.
struct Open {
    wire: Box<dyn Wire>,
    session: Session,
}

impl<'a> Attack<'a> {
    pub(crate) fn new(
        arena: &'a Arena<'a>,
        journal: &'a Journal,
        service: usize,
        rng: Rng,
    ) -> Self {
        Self {
            arena,
            journal,
            service,
            rng,
        }
    }

    pub(crate) fn run(mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Setup => self.setup(),
            Kind::Silent => self.silent(),
            Kind::Mutants => self.mutants(),
            Kind::Announce => self.announce(false),
            Kind::Trickle => self.announce(true),
            Kind::Pings => self.flood(true),
            Kind::Grants => self.flood(false),
            Kind::Storm => self.storm(),
            Kind::Deaf => self.deaf(),
            Kind::Memory => self.memory(),
        }
    }

    fn addr(&self) -> SocketAddr {
        self.arena.services[self.service]
    }

    fn is_over_rdma(&self) -> bool {
        self.arena.transport == Transport::Rdma
    }

    fn note(&self, action: impl fmt::Display) {
        self.journal.add(action.to_string());
    }

    /// Waits for a connect's turn.
    fn turn(&self) -> Result<()> {
        ensure!(
            self.arena.rates.connects.take(self.arena),
            "the attack is over"
        );
        Ok(())
    }

    fn hello(&mut self) -> Vec<u8> {
        let hello = Hello {
            features: 2 | u16::from(self.service == STREAM),
            window: WINDOW,
            eager_size: self.rng.u32(64..100_000),
            max_message: self.rng.u64(100_000..1 << 30),
            keepalive_ms: self.rng.u32(0..3000),
            engine: self.rng.u64(..),
            ..Hello::GOOD
        };
        hello.bytes().to_vec()
    }

    fn open(&mut self) -> Result<Open> {
        self.turn()?;
        let hello = self.hello();
        let (wire, credits): (Box<dyn Wire>, _) = if self.is_over_rdma() {
            let (rdma, credits) = Rdma::connect(self.addr(), &hello, self.arena)?;
            (Box::new(rdma), credits)
        } else {
            let mut tcp = Tcp::connect(self.addr())?;
            let credits = tcp.set_up(&hello)?;
            (Box::new(tcp), credits)
        };
        Ok(Open {
            wire,
            session: Session::new(credits),
        })
    }

    fn leave(&mut self, wire: Box<dyn Wire>) {
        let leave = match self.rng.u8(0..3) {
            0 => Leave::Close,
            1 => Leave::Reset,
            _ => Leave::Half,
        };
        self.note(format_args!("leaves: {leave:?}"));
        wire.leave(leave, self.arena);
    }

    fn pace(&mut self) -> Pace {
        match self.rng.u8(0..6) {
            0 => Pace::Slow {
                bytes: 1,
                every: Duration::from_millis(self.rng.u64(0..5)),
            },
            1 => Pace::Slow {
                bytes: self.rng.usize(1..100),
                every: Duration::from_millis(self.rng.u64(0..50)),
            },
            _ => Pace::Whole,
        }
    }

    fn setup(&mut self) -> Result<()> {
        self.turn()?;
        let mut hello = self.hello();
        if self.is_over_rdma() {
            let what = mutation::hello(&mut hello, 0, &mut self.rng);
            self.note(format_args!("hello with {what}"));
            let (rdma, _) = Rdma::connect(self.addr(), &hello, self.arena)?;
            self.leave(Box::new(rdma));
            return Ok(());
        }
        let mut bytes = tcp::request(&hello);
        let what = match self.rng.u8(0..4) {
            0 => mutation::request(&mut bytes, &mut self.rng),
            1 => mutation::length(&mut bytes, &mut self.rng),
            _ => mutation::hello(&mut bytes, 8, &mut self.rng),
        };
        self.note(format_args!("request with {what}"));
        self.arena.rates.mutations.fetch_add(1, Ordering::Relaxed);
        let mut tcp = Tcp::connect(self.addr())?;
        let pace = self.pace();
        tcp.set_pace(pace);
        tcp.put(&bytes);
        let time = Duration::from_millis(self.rng.u64(0..500));
        tcp.pump(self.arena, time);
        self.leave(Box::new(tcp));
        Ok(())
    }

    fn silent(&mut self) -> Result<()> {
        let time = Duration::from_millis(self.rng.u64(100..8000));
        if self.is_over_rdma() {
            let mut open = self.open()?;
            self.note(format_args!("silent for {time:?}"));
            open.wire.set_pace(Pace::Stuck);
            self.arena.pause(time);
            self.leave(open.wire);
            return Ok(());
        }
        self.turn()?;
        let hello = self.hello();
        let bytes = tcp::request(&hello);
        let len = self.rng.usize(0..bytes.len());
        let mut tcp = Tcp::connect(self.addr())?;
        self.note(format_args!(
            "{len} bytes of a request, and silent for {time:?}"
        ));
        tcp.put(&bytes[..len]);
        let end = Instant::now() + time;
        while !tcp.is_over() && !self.arena.is_over() && Instant::now() < end {
            tcp.pump(self.arena, Duration::from_millis(500));
        }
        self.leave(Box::new(tcp));
        Ok(())
    }

    /// Sends the answers that the protocol wants to the frames that have arrived.
    fn answer(open: &mut Open) {
        while let Some(frame) = open.wire.heard() {
            if let Some(answer) = open.session.take(&frame) {
                open.wire.say(&answer);
            }
        }
    }

    fn mutants(&mut self) -> Result<()> {
        let mut open = self.open()?;
        let pace = self.pace();
        open.wire.set_pace(pace);
        let serves = self.rng.bool();
        open.wire.serve(serves);
        let len = self.rng.u64(1..300_000);
        let memory = open.wire.memory(len);
        self.note(format_args!("{pace:?}, serves READs: {serves}"));
        let mut held = None;
        for _ in 0..self.rng.u32(1..60) {
            if open.wire.is_over() || self.arena.is_over() {
                break;
            }
            let frame = open.session.next(&mut self.rng, memory);
            self.one(&mut open, frame, &mut held);
            let time = Duration::from_millis(self.rng.u64(0..20));
            open.wire.pump(self.arena, time);
            Self::answer(&mut open);
        }
        if self.rng.u8(0..4) == 0 {
            self.note("half a frame, then silence");
            open.wire.set_pace(Pace::Stuck);
            open.wire.pump(self.arena, Duration::from_millis(300));
        }
        self.leave(open.wire);
        Ok(())
    }

    /// Sends one frame of a valid conversation, or something else in its place.
    fn one(&mut self, open: &mut Open, mut frame: Vec<u8>, held: &mut Option<Vec<u8>>) {
        let rng = &mut self.rng;
        let kind = frame[0];
        let what = match rng.u8(0..40) {
            0..=2 => {
                let what = mutation::frame(&mut frame, rng);
                open.wire.say(&frame);
                what
            }
            3 => {
                let what = mutation::length(&mut frame, rng);
                open.wire.say(&frame);
                what
            }
            4 => {
                open.session.skip();
                "left out".to_owned()
            }
            5 => {
                open.wire.say(&frame);
                open.wire.say(&frame);
                "twice".to_owned()
            }
            6 => {
                *held = Some(frame);
                "behind the next".to_owned()
            }
            7..=8 => open.wire.say_broken(&frame, rng),
            9 => open.wire.operate(None, rng),
            _ => {
                open.wire.say(&frame);
                if let Some(held) = held.take() {
                    open.wire.say(&held);
                }
                return self.note(format_args!("frame of kind {kind}"));
            }
        };
        self.arena.rates.mutations.fetch_add(1, Ordering::Relaxed);
        self.note(format_args!("frame of kind {kind}: {what}"));
    }

    fn announce(&mut self, serves: bool) -> Result<()> {
        let mut open = self.open()?;
        open.wire.serve(serves);
        // Over RDMA the device serves. It is stopped instead.
        let most = victim::longest(self.arena.transport);
        let len = if self.rng.bool() {
            most
        } else {
            self.rng.u64(1..most)
        };
        let memory = open.wire.memory(len);
        let count = self.rng.u32(1..=4);
        self.note(format_args!("announces {count} messages of {len} bytes"));
        for _ in 0..count {
            let frame = open.session.announce(memory);
            open.wire.say(&frame);
        }
        open.wire.write_only(self.arena);
        if serves {
            let pace = Pace::Slow {
                bytes: self.rng.usize(1..4096),
                every: Duration::from_millis(self.rng.u64(20..200)),
            };
            self.note(format_args!("serves: {pace:?}"));
            open.wire.set_pace(pace);
        } else if self.rng.u8(0..4) == 0 {
            self.leave(open.wire);
            return Ok(());
        }
        let end = Instant::now() + Duration::from_millis(self.rng.u64(500..10_000));
        while !open.wire.is_over() && !self.arena.is_over() && Instant::now() < end {
            open.wire.pump(self.arena, Duration::from_millis(200));
            Self::answer(&mut open);
        }
        self.leave(open.wire);
        Ok(())
    }

    fn flood(&mut self, pings: bool) -> Result<()> {
        let mut open = self.open()?;
        let waits = self.rng.bool();
        let count = self.rng.u32(10..400);
        self.note(format_args!("{count} frames, waits for pongs: {waits}"));
        for _ in 0..count {
            if open.wire.is_over() || self.arena.is_over() {
                break;
            }
            let frame = if pings {
                open.session.ping()
            } else {
                open.session.grant()
            };
            open.wire.say(&frame);
            loop {
                let time = Duration::from_millis(if waits && pings { 20 } else { 0 });
                open.wire.pump(self.arena, time);
                Self::answer(&mut open);
                let is_done = !(waits && pings) || open.session.has_pong();
                if is_done || open.wire.is_over() || self.arena.is_over() {
                    break;
                }
            }
        }
        self.leave(open.wire);
        Ok(())
    }

    fn storm(&mut self) -> Result<()> {
        for _ in 0..self.rng.u32(2..8) {
            let mut open = self.open()?;
            if self.rng.bool() {
                let frame = open.session.data(b"storm");
                open.wire.say(&frame);
                open.wire.pump(self.arena, Duration::from_millis(1));
            }
            self.leave(open.wire);
        }
        Ok(())
    }

    fn deaf(&mut self) -> Result<()> {
        let mut open = self.open()?;
        let longest = if self.service == victim::SHARED {
            4000
        } else {
            16_000
        };
        for _ in 0..self.rng.u32(1..64) {
            if open.wire.is_over() || self.arena.is_over() {
                break;
            }
            let payload = vec![self.rng.u8(..); self.rng.usize(0..longest)];
            let frame = open.session.data(&payload);
            open.wire.say(&frame);
            open.wire.write_only(self.arena);
        }
        let time = Duration::from_millis(self.rng.u64(100..4000));
        self.note(format_args!("takes nothing for {time:?}"));
        self.arena.pause(time);
        self.leave(open.wire);
        Ok(())
    }

    fn memory(&mut self) -> Result<()> {
        let mut open = self.open()?;
        let mut token = None;
        if self.rng.u8(0..4) > 0 {
            let frame = open.session.data(LEND);
            open.wire.say(&frame);
            open.wire.pump(self.arena, Duration::from_secs(2));
            while let Some(frame) = open.wire.heard() {
                token = frame.get(16..).and_then(|rest| rest.first_chunk().copied());
                if let Some(answer) = open.session.take(&frame) {
                    open.wire.say(&answer);
                }
            }
            self.note(format_args!("has a token: {}", token.is_some()));
        }
        for _ in 0..self.rng.u32(1..30) {
            if open.wire.is_over() || self.arena.is_over() {
                break;
            }
            let what = open.wire.operate(token, &mut self.rng);
            self.arena.rates.mutations.fetch_add(1, Ordering::Relaxed);
            self.note(what);
            open.wire
                .pump(self.arena, Duration::from_millis(self.rng.u64(0..10)));
            Self::answer(&mut open);
        }
        self.leave(open.wire);
        Ok(())
    }
}
