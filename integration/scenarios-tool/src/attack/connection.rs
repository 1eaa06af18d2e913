//! The attacks, one connection each.

use std::{
    collections::VecDeque,
    fmt,
    net::SocketAddr,
    ops::Range,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use rdmsg::Transport;

use super::{
    arena::{Arena, Attacker, Kind},
    mutation,
    rdma::Rdma,
    session::{Session, WINDOW},
    tcp::{self, Tcp},
    victim::{self, LEND, STREAM},
    wire::{Descriptor, Hello},
};

/// The time between two looks at a connection.
const LOOK: Duration = Duration::from_millis(2);

/// The speed of writing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Pace {
    #[default]
    Whole,
    /// This number of bytes at a time, with a pause.
    Slow(usize, Duration),
    /// No more comes.
    Stuck,
}

/// The way in which a peer leaves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leave {
    Close,
    Reset,
    /// It closes its sending direction, and waits.
    Half,
}

/// The state of a hostile peer's side of a connection.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pace: Pace,
    /// Whether the victim's READs get no answer.
    pub(super) is_mute: bool,
    /// Frames of the victim.
    pub(super) heard: VecDeque<Vec<u8>>,
    pub(super) over: bool,
}

/// A hostile peer's side of a connection.
pub(super) trait Wire {
    fn state(&mut self) -> &mut State;
    /// Sends a frame.
    fn say(&mut self, frame: &[u8]);
    /// Sends a frame with something wrong around it.
    fn say_broken(&mut self, frame: &[u8], rng: &mut Rng) -> String;
    /// Begins an operation on the victim's memory of this token.
    fn operate(&mut self, token: [u8; 24], rng: &mut Rng) -> String;
    /// Memory that the victim may read.
    fn memory(&mut self, len: u64) -> Descriptor;
    /// Writes, as far as the pace and the rate let it.
    fn flush(&mut self, arena: &Arena);
    /// Receives.
    fn poll(&mut self);
    /// Begins to leave. The rest follows when this is dropped.
    fn leave(&mut self, leave: Leave);

    /// Writes and receives for this time, or until a frame has come.
    fn pump(&mut self, arena: &Arena, time: Duration) {
        let end = arena.end().min(Instant::now() + time);
        loop {
            self.flush(arena);
            self.poll();
            let state = self.state();
            if state.over || !state.heard.is_empty() || Instant::now() >= end {
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

/// One connection of an attacker.
pub(super) struct Attack<'a> {
    pub(super) arena: &'a Arena,
    pub(super) attacker: &'a Attacker,
    pub(super) service: usize,
    pub(super) rng: Rng,
}

/// A connection that is set up.
struct Open {
    wire: Box<dyn Wire>,
    session: Session,
}

impl Attack<'_> {
    pub(super) fn run(mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Setup if !self.is_over_rdma() => return self.setup(),
            Kind::Silent if !self.is_over_rdma() => return self.silent(),
            Kind::Storm => return self.storm(),
            _ => {}
        }
        let mut hello = self.hello();
        if kind == Kind::Setup {
            let what = mutation::hello(&mut hello, 0, &mut self.rng);
            self.note_mutation(format_args!("hello with {what}"));
        }
        let mut open = self.open(&hello)?;
        match kind {
            Kind::Mutants => self.mutants(&mut open),
            Kind::Announce => self.announce(&mut open, true),
            Kind::Trickle => self.announce(&mut open, false),
            Kind::Pings => self.flood(&mut open, Session::ping),
            Kind::Grants => self.flood(&mut open, Session::grant),
            Kind::Deaf => self.deaf(&mut open),
            Kind::Memory => self.memory(&mut open),
            Kind::Silent => {
                self.stick(&mut open);
                let time = self.millis(100..8000);
                self.arena.pause(time);
            }
            Kind::Setup | Kind::Storm => {}
        }
        self.leave(open.wire);
        Ok(())
    }

    fn addr(&self) -> SocketAddr {
        self.arena.services[self.service]
    }

    fn is_over_rdma(&self) -> bool {
        self.arena.transport == Transport::Rdma
    }

    fn note(&self, action: impl fmt::Display) {
        self.attacker.note(action);
    }

    fn note_mutation(&self, action: impl fmt::Display) {
        self.arena.mutations.fetch_add(1, Ordering::Relaxed);
        self.note(action);
    }

    fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
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

    /// Waits for a connect's turn.
    fn turn(&self) -> Result<()> {
        let is_turn = self.arena.may_connect();
        ensure!(is_turn, "the attack is over");
        Ok(())
    }

    fn open(&mut self, hello: &[u8]) -> Result<Open> {
        self.turn()?;
        let (wire, hello): (Box<dyn Wire>, _) = if self.is_over_rdma() {
            let (rdma, hello) = Rdma::connect(self.addr(), hello, self.arena)?;
            (Box::new(rdma), hello)
        } else {
            let mut tcp = Tcp::connect(self.addr())?;
            let hello = tcp.set_up(hello)?;
            (Box::new(tcp), hello)
        };
        let session = Session::new(&hello);
        Ok(Open { wire, session })
    }

    fn leave(&mut self, mut wire: Box<dyn Wire>) {
        let ways = [Leave::Close, Leave::Reset, Leave::Half];
        let leave = ways[self.rng.usize(0..ways.len())];
        self.note(format_args!("leaves: {leave:?}"));
        wire.leave(leave);
        if matches!(leave, Leave::Half) {
            wire.pump(self.arena, Duration::from_secs(1));
        }
    }

    fn pace(&mut self) -> Pace {
        match self.rng.u8(0..6) {
            0 => Pace::Slow(1, self.millis(0..5)),
            1 => Pace::Slow(self.rng.usize(1..100), self.millis(0..50)),
            _ => Pace::Whole,
        }
    }

    /// Sends a request over TCP with something wrong.
    fn setup(&mut self) -> Result<()> {
        let mut bytes = tcp::request(&self.hello());
        let what = match self.rng.u8(0..4) {
            0 => mutation::request(&mut bytes, &mut self.rng),
            1 => mutation::length(&mut bytes, &mut self.rng),
            _ => mutation::hello(&mut bytes, 8, &mut self.rng),
        };
        self.note_mutation(format_args!("request with {what}"));
        let (pace, time) = (self.pace(), self.millis(0..500));
        self.ask(&bytes, pace, time)
    }

    /// Sends the beginning of a request over TCP.
    fn silent(&mut self) -> Result<()> {
        let mut bytes = tcp::request(&self.hello());
        bytes.truncate(self.rng.usize(0..bytes.len()));
        let time = self.millis(100..8000);
        self.ask(&bytes, Pace::Whole, time)
    }

    fn ask(&mut self, bytes: &[u8], pace: Pace, time: Duration) -> Result<()> {
        self.turn()?;
        let len = bytes.len();
        self.note(format_args!(
            "{len} bytes of a request, {pace:?}, for {time:?}"
        ));
        let mut tcp = Tcp::connect(self.addr())?;
        tcp.state().pace = pace;
        tcp.put(bytes);
        tcp.pump(self.arena, time);
        self.leave(Box::new(tcp));
        Ok(())
    }

    fn storm(&mut self) -> Result<()> {
        for _ in 0..self.rng.u32(2..8) {
            let hello = self.hello();
            let mut open = self.open(&hello)?;
            if self.rng.bool() {
                let frame = open.session.data(b"storm");
                open.wire.say(&frame);
                open.wire.pump(self.arena, Duration::from_millis(1));
            }
            self.leave(open.wire);
        }
        Ok(())
    }

    fn goes_on(&self, open: &mut Open) -> bool {
        !open.wire.state().over && !self.arena.is_over()
    }

    /// Writes and receives, and sends the answers that the protocol wants.
    fn pump(&self, open: &mut Open, time: Duration) {
        open.wire.pump(self.arena, time);
        while let Some(frame) = open.wire.state().heard.pop_front() {
            if let Some(answer) = open.session.take(&frame) {
                open.wire.say(&answer);
            }
        }
    }

    /// Writes and receives nothing more.
    fn stick(&self, open: &mut Open) {
        self.note("silence");
        open.wire.state().pace = Pace::Stuck;
        open.wire.flush(self.arena);
    }

    /// Does something this number of times, as long as the connection goes on.
    fn repeat(
        &mut self,
        open: &mut Open,
        times: Range<u32>,
        mut act: impl FnMut(&mut Self, &mut Open),
    ) {
        for _ in 0..self.rng.u32(times) {
            if self.goes_on(open) {
                act(self, open);
            }
        }
    }

    fn mutants(&mut self, open: &mut Open) {
        let (pace, is_mute) = (self.pace(), self.rng.bool());
        open.wire.state().pace = pace;
        open.wire.state().is_mute = is_mute;
        let memory = open.wire.memory(self.rng.u64(1..300_000));
        self.note(format_args!("{pace:?}, serves no READs: {is_mute}"));
        let mut held = None;
        self.repeat(open, 1..60, |this, open| {
            let frame = open.session.next(&mut this.rng, memory);
            this.one(open, frame, &mut held);
            let time = this.millis(0..20);
            this.pump(open, time);
        });
        if self.rng.u8(0..4) == 0 {
            self.stick(open);
            open.wire.pump(self.arena, Duration::from_millis(300));
        }
    }

    /// Sends one frame of a valid conversation, or something else in its place.
    fn one(&mut self, open: &mut Open, mut frame: Vec<u8>, held: &mut Option<Vec<u8>>) {
        let rng = &mut self.rng;
        let kind = frame[0];
        let (times, what) = match rng.u8(0..40) {
            0..=2 => (1, mutation::frame(&mut frame, rng)),
            3 => (1, mutation::length(&mut frame, rng)),
            4 => {
                open.session.skip();
                (0, "left out".to_owned())
            }
            5 => (2, "twice".to_owned()),
            6 => {
                *held = Some(frame.clone());
                (0, "behind the next".to_owned())
            }
            7 | 8 => (0, open.wire.say_broken(&frame, rng)),
            9 => (0, open.wire.operate([rng.u8(..); 24], rng)),
            _ => {
                self.note(format_args!("frame of kind {kind}"));
                let frames = [Some(frame), held.take()].into_iter().flatten();
                return frames.for_each(|frame| open.wire.say(&frame));
            }
        };
        (0..times).for_each(|_| open.wire.say(&frame));
        self.note_mutation(format_args!("frame of kind {kind}: {what}"));
    }

    fn announce(&mut self, open: &mut Open, is_mute: bool) {
        open.wire.state().is_mute = is_mute;
        let most = victim::longest(self.arena.transport);
        let len = self.rng.u64(1..=2 * most).min(most);
        let memory = open.wire.memory(len);
        let count = self.rng.u32(1..=4);
        self.note(format_args!("announces {count} messages of {len} bytes"));
        for _ in 0..count {
            let frame = open.session.announce(memory);
            open.wire.say(&frame);
        }
        open.wire.flush(self.arena);
        if !is_mute {
            let pace = Pace::Slow(self.rng.usize(1..4096), self.millis(20..200));
            self.note(format_args!("serves: {pace:?}"));
            open.wire.state().pace = pace;
        } else if self.is_over_rdma() {
            // A queue pair in the error state serves no READ.
            self.stick(open);
        }
        if is_mute && self.rng.u8(0..4) == 0 {
            return;
        }
        let end = Instant::now() + self.millis(500..10_000);
        while self.goes_on(open) && Instant::now() < end {
            self.pump(open, Duration::from_millis(200));
        }
    }

    fn flood(&mut self, open: &mut Open, frame: fn(&mut Session) -> Vec<u8>) {
        let waits = self.rng.bool();
        self.note(format_args!("waits for pongs: {waits}"));
        self.repeat(open, 10..400, |this, open| {
            let frame = frame(&mut open.session);
            open.wire.say(&frame);
            this.pump(open, Duration::ZERO);
            while waits && open.session.is_pinged() && this.goes_on(open) {
                this.pump(open, Duration::from_millis(20));
            }
        });
    }

    fn deaf(&mut self, open: &mut Open) {
        let is_shared = self.service == victim::SHARED;
        let longest = if is_shared { 4000 } else { 16_000 };
        self.repeat(open, 1..64, |this, open| {
            let payload = vec![this.rng.u8(..); this.rng.usize(0..longest)];
            let frame = open.session.data(&payload);
            open.wire.say(&frame);
            open.wire.flush(this.arena);
        });
        let time = self.millis(100..4000);
        self.note(format_args!("takes nothing for {time:?}"));
        self.arena.pause(time);
    }

    fn memory(&mut self, open: &mut Open) {
        let mut token = None;
        if self.rng.u8(0..4) > 0 {
            let frame = open.session.data(LEND);
            open.wire.say(&frame);
            open.wire.pump(self.arena, Duration::from_secs(2));
            let mut heard = open.wire.state().heard.iter();
            token = heard.find_map(|frame| frame.get(16..)?.first_chunk().copied());
            self.note(format_args!("has a token: {}", token.is_some()));
        }
        self.repeat(open, 1..30, |this, open| {
            let token = token.unwrap_or_else(|| [this.rng.u8(..); 24]);
            let what = open.wire.operate(token, &mut this.rng);
            this.note_mutation(what);
            let time = this.millis(0..10);
            this.pump(open, time);
        });
    }
}
