//! The attacks. Each attack is one connection.

use std::{
    collections::VecDeque,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;

use super::{
    arena::{Arena, Attacker, Kind},
    mutation,
    rdma::Rdma,
    session::{Session, WINDOW},
    tcp::{self, Tcp},
    victim::{REQUEST_REGION, SHARED, STREAM},
    wire::{Descriptor, Hello},
};
use crate::plan::one_of;

/// The time between two polls for received data.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The speed at which an attacker writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Pace {
    #[default]
    Whole,
    /// Writes the given number of bytes at a time, and pauses for the given time after each write.
    Slow(usize, Duration),
    /// Writes nothing more.
    Stuck,
}

/// How an attacker ends a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Leave {
    Close,
    Reset,
    /// Over TCP, shuts down the sending direction, and continues to receive. Over RDMA,
    /// disconnects.
    Half,
}

/// The state of an attacker's side of a connection.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pace: Pace,
    /// Whether the attacker leaves the victim's READs unanswered.
    pub(super) ignores_reads: bool,
    /// The frames received from the victim.
    pub(super) received: VecDeque<Vec<u8>>,
    pub(super) has_ended: bool,
}

/// An attacker's side of a connection over TCP or RDMA.
pub(super) trait Wire {
    fn state(&mut self) -> &mut State;
    /// Sends a frame.
    fn send_frame(&mut self, frame: &[u8]);
    /// Sends a frame in a way that violates the protocol: over TCP, in an invalid PDU, and over
    /// RDMA, with immediate data.
    fn send_broken(&mut self, frame: &[u8], rng: &mut Rng);
    /// Starts a random operation on the victim's memory region that `token` describes.
    fn operate(&mut self, token: [u8; 24], rng: &mut Rng);
    /// Returns the descriptor of `len` bytes of memory, for the announcement of a large message.
    fn memory(&mut self, len: u64) -> Descriptor;
    /// Writes queued bytes at the pace in `state`. Complies with the arena's rate limit for writes.
    fn flush(&mut self, arena: &Arena<'_>);
    /// Receives the data that has arrived, without waiting.
    fn poll(&mut self);
    /// Starts to end the connection as `leave` specifies. The connection ends at the latest when
    /// this value is dropped.
    fn leave(&mut self, leave: Leave);

    /// Flushes and polls repeatedly until a frame arrives, the connection ends, or `time` has
    /// passed.
    fn pump(&mut self, arena: &Arena<'_>, time: Duration) {
        let end = arena.end.min(Instant::now() + time);
        loop {
            self.flush(arena);
            self.poll();
            let state = self.state();
            if state.has_ended || !state.received.is_empty() || Instant::now() >= end {
                return;
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// A running attack, and its connection to the victim.
pub(super) struct Attack<'a> {
    arena: &'a Arena<'a>,
    attacker: &'a mut Attacker,
    service: usize,
    rng: Rng,
    wire: Box<dyn Wire>,
    session: Session,
}

impl<'a> Attack<'a> {
    /// Connects to the victim. Over TCP, attacks of kind `Setup` and `Silent` do not wait for the
    /// victim's answer to the connection request.
    pub(super) fn open(
        arena: &'a Arena<'a>,
        attacker: &'a mut Attacker,
        service: usize,
        kind: Kind,
        mut rng: Rng,
    ) -> Result<Self> {
        ensure!(arena.may_connect(), "the attack is over");
        let hello = Hello {
            features: 2 | u16::from(service == STREAM),
            window: WINDOW,
            eager_size: rng.u32(64..100_000),
            max_message: rng.u64(100_000..1 << 30),
            keepalive_ms: rng.u32(0..3000),
            engine: rng.u64(..),
            ..Hello::GOOD
        };
        let addr = arena.services[service];
        let is_rdma = arena.site.is_rdma();
        let mut request = hello.bytes();
        if !is_rdma {
            request = tcp::request(&request);
        }
        match (kind, is_rdma) {
            (Kind::Setup, false) if rng.u8(0..4) == 0 => mutation::length(&mut request, &mut rng),
            (Kind::Setup, _) => mutation::request(&mut request, is_rdma, &mut rng),
            (Kind::Silent, false) => request.truncate(rng.usize(0..request.len())),
            _ => {}
        }
        attacker.mutations += u64::from(kind == Kind::Setup);
        let (wire, answer): (Box<dyn Wire>, _) = if is_rdma {
            let (rdma, answer) = Rdma::connect(addr, &request, arena)?;
            (Box::new(rdma), answer)
        } else {
            let waits = !matches!(kind, Kind::Setup | Kind::Silent);
            let (tcp, answer) = Tcp::connect(addr, &request, waits)?;
            (Box::new(tcp), answer)
        };
        Ok(Self {
            arena,
            attacker,
            service,
            rng,
            wire,
            session: Session::new(&answer),
        })
    }

    pub(super) fn run(mut self, kind: Kind) {
        match kind {
            Kind::Setup => {
                self.wire.state().pace = self.pace();
                let time = self.millis(0..500);
                self.wire.pump(self.arena, time);
            }
            Kind::Silent => {
                let time = self.millis(100..8000);
                self.wire.flush(self.arena);
                self.stall();
                self.arena.pause(time);
            }
            Kind::Mutants => self.mutants(),
            Kind::Announce => self.announce(true),
            Kind::Trickle => self.announce(false),
            Kind::Pings => self.flood(Session::ping),
            Kind::Grants => self.flood(Session::grant),
            Kind::Storm if self.rng.bool() => {
                self.send_frame(|session| session.data(b"storm"));
                self.wire.pump(self.arena, Duration::from_millis(1));
            }
            Kind::Storm => {}
            Kind::Deaf => self.send_without_receiving(),
            Kind::Memory => self.memory(),
        }
        let leave = one_of(&mut self.rng, &[Leave::Close, Leave::Reset, Leave::Half]);
        self.wire.leave(leave);
        if leave == Leave::Half {
            self.wire.pump(self.arena, Duration::from_secs(1));
        }
    }

    fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }

    fn pace(&mut self) -> Pace {
        match self.rng.u8(0..6) {
            0 => Pace::Slow(1, self.millis(0..5)),
            1 => Pace::Slow(self.rng.usize(1..100), self.millis(0..50)),
            _ => Pace::Whole,
        }
    }

    fn is_active(&mut self) -> bool {
        !self.wire.state().has_ended && !self.arena.is_over()
    }

    /// Calls `act` repeatedly. The number of calls is random, in the range `times`. Stops earlier
    /// if the connection or the phase ends.
    fn repeat(&mut self, times: Range<u32>, mut act: impl FnMut(&mut Self)) {
        for _ in 0..self.rng.u32(times) {
            if self.is_active() {
                act(self);
            }
        }
    }

    fn send_frame(&mut self, frame: impl FnOnce(&mut Session) -> Vec<u8>) {
        let frame = frame(&mut self.session);
        self.wire.send_frame(&frame);
    }

    /// Flushes and polls until a frame arrives, for at most `time`. Then sends the answers that the
    /// protocol requires.
    fn pump(&mut self, time: Duration) {
        self.wire.pump(self.arena, time);
        while let Some(frame) = self.wire.state().received.pop_front() {
            if let Some(answer) = self.session.take(&frame) {
                self.wire.send_frame(&answer);
            }
        }
    }

    /// Stops writing on this connection. After this call, the attacker sends nothing, not even
    /// answers.
    fn stall(&mut self) {
        self.wire.state().pace = Pace::Stuck;
        self.wire.flush(self.arena);
    }

    fn mutants(&mut self) {
        let (pace, ignores_reads) = (self.pace(), self.rng.bool());
        self.wire.state().pace = pace;
        self.wire.state().ignores_reads = ignores_reads;
        let memory = self.wire.memory(self.rng.u64(1..300_000));
        let mut held = None;
        self.repeat(1..60, |this| {
            let frame = this.session.next(&mut this.rng, memory);
            this.send_or_mutate(frame, &mut held);
            let time = this.millis(0..20);
            this.pump(time);
        });
        if self.rng.u8(0..4) == 0 {
            self.stall();
            self.wire.pump(self.arena, Duration::from_millis(300));
        }
    }

    /// Sends `frame`, followed by the frame in `held`, if any. In a quarter of the calls, violates
    /// the protocol instead: for example, changes `frame`, sends it twice, or stores it in `held`
    /// for a later call.
    fn send_or_mutate(&mut self, mut frame: Vec<u8>, held: &mut Option<Vec<u8>>) {
        let (rng, wire) = (&mut self.rng, &mut self.wire);
        let roll = rng.u8(0..40);
        match roll {
            0..=2 => mutation::frame(&mut frame, rng),
            3 => mutation::length(&mut frame, rng),
            // Skip a frame number, so that the next frame has an unexpected number.
            4 => self.session.frames_sent = self.session.frames_sent.wrapping_add(1),
            5 => wire.send_frame(&frame),
            6 => *held = Some(frame.clone()),
            7 | 8 => wire.send_broken(&frame, rng),
            9 => wire.operate([rng.u8(..); 24], rng),
            _ => {
                let frames = [Some(frame), held.take()].into_iter().flatten();
                return frames.for_each(|frame| wire.send_frame(&frame));
            }
        }
        if matches!(roll, 0..=3 | 5) {
            wire.send_frame(&frame);
        }
        self.attacker.mutations += 1;
    }

    fn announce(&mut self, ignores_reads: bool) {
        self.wire.state().ignores_reads = ignores_reads;
        let most = self.arena.site.longest;
        let len = self.rng.u64(1..=2 * most).min(most);
        let memory = self.wire.memory(len);
        let count = self.rng.u32(1..=4);
        (0..count).for_each(|_| self.send_frame(|session| session.announce(memory)));
        self.wire.flush(self.arena);
        if !ignores_reads {
            self.wire.state().pace = Pace::Slow(self.rng.usize(1..4096), self.millis(20..200));
        } else if self.arena.site.is_rdma() {
            // The device answers READs without the attacker. To prevent this, `stall` moves the
            // queue pair to the error state.
            self.stall();
        }
        if ignores_reads && self.rng.u8(0..4) == 0 {
            return;
        }
        let end = Instant::now() + self.millis(500..10_000);
        while self.is_active() && Instant::now() < end {
            self.pump(Duration::from_millis(200));
        }
    }

    fn flood(&mut self, frame: fn(&mut Session) -> Vec<u8>) {
        let waits = self.rng.bool();
        self.repeat(10..400, |this| {
            this.send_frame(frame);
            this.pump(Duration::ZERO);
            while waits && this.session.pinged && this.is_active() {
                this.pump(Duration::from_millis(20));
            }
        });
    }

    fn send_without_receiving(&mut self) {
        let longest = if self.service == SHARED { 4000 } else { 16_000 };
        self.repeat(1..64, |this| {
            let payload = vec![this.rng.u8(..); this.rng.usize(0..longest)];
            this.send_frame(|session| session.data(&payload));
            this.wire.flush(this.arena);
        });
        // Pause without polling, so that the attacker does not receive the echoes.
        let time = self.millis(100..4000);
        self.arena.pause(time);
    }

    fn memory(&mut self) {
        let mut token = None;
        if self.rng.u8(0..4) > 0 {
            self.send_frame(|session| session.data(REQUEST_REGION));
            self.wire.pump(self.arena, Duration::from_secs(2));
            let mut received = self.wire.state().received.iter();
            token = received.find_map(|frame| frame.get(16..)?.first_chunk().copied());
        }
        self.repeat(1..30, |this| {
            let token = token.unwrap_or_else(|| [this.rng.u8(..); 24]);
            this.wire.operate(token, &mut this.rng);
            this.attacker.mutations += 1;
            let time = this.millis(0..10);
            this.pump(time);
        });
    }
}
