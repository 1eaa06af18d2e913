//! Two connections, a wire that keeps the order of each direction, and queues in which completions
//! and connection manager events wait until somebody looks. Who looks where next is the test's
//! choice, so events and completions overtake each other, and acknowledgements come as late as they
//! like.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::side::{Cm, Completion, InFlight, Kept, Shared, Side, What, lent};
use crate::{
    proto::{
        Account, Arrival, CONTROL_RECEIVES, CloseReason, CmCall, CmInput, CmOp, Connection,
        DrainSide, Event, HEADER_LEN, Output, Params, SendRefused, Work,
        connection::{Flush, Transfer},
        frame::{Descriptor, Header, Kind},
        hello::VERSION,
        testing::BOTH_WAYS,
    },
    status::{OsError, WcStatus},
};

/// Which side.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

/// How many receives a side shares with others where it does.
const SHARED: u32 = 30;

/// What a system without memory answers.
pub(super) const fn no_memory() -> OsError {
    OsError::new("ibv_reg_mr", libc::ENOMEM)
}

/// The two sides and the clock.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) now: Instant,
    /// Whether what a side's device acknowledged last is lost when its queue pair goes.
    pub(super) acknowledgements_get_lost: bool,
}

/// A step that the simulation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The front frame of this side's send queue arrives.
    Wire(usize),
    /// This side's device learns that its oldest frame has arrived.
    Ack(usize),
    /// This side looks at its next completion.
    Cq(usize),
    /// This side looks at its next connection manager event.
    Cm(usize),
    /// There is memory for the large message that this side has begun.
    Memory(usize),
}

impl Pair {
    /// Side A connects to side B; nothing has happened yet.
    pub(super) fn new(a: Params, b: Params) -> Self {
        let now = Instant::now();
        let connecting = Connection::connect(a.clone(), 1, b"from a", now);
        // B's connection is made when A's request arrives; until then it stands for a listener.
        let listening = Connection::connect(b.clone(), 2, b"", now);
        let mut pair = Self {
            sides: [Side::new(connecting, a), Side::new(listening, b)],
            now,
            acknowledgements_get_lost: false,
        };
        pair.settle(A);
        pair
    }

    /// Two sides between which messages flow.
    pub(super) fn established(a: Params, b: Params) -> Self {
        let mut pair = Self::new(a, b);
        pair.run();
        assert!(pair.sides.iter().all(|side| side.established), "{pair:?}");
        pair
    }

    /// Lets the books of both sides begin shortly before their counters wrap around.
    pub(super) fn near_the_wrap(a: Params, b: Params) -> Self {
        let mut pair = Self::established(a, b);
        for side in [A, B] {
            let (ours, theirs) = (
                pair.sides[side].params.clone(),
                pair.sides[1 - side].params.clone(),
            );
            let hello = crate::proto::hello::Hello {
                version: VERSION,
                features: 0,
                window: theirs.window,
                credits: 0,
                eager_size: theirs.eager_size,
                max_message: theirs.max_message,
                keepalive_ms: 0,
                engine: 0,
            };
            pair.sides[side].conn.transfer =
                Some(Transfer::starting_at(&ours, &hello, u32::MAX - 5));
        }
        pair
    }

    /// Does everything that a side's connection wants.
    fn settle(&mut self, at: usize) {
        while let Some(output) = self.sides[at].conn.poll_output() {
            let side = &mut self.sides[at];
            assert!(
                side.ended.is_none(),
                "nothing comes after the end: {output:?}"
            );
            match output {
                Output::Cm(op) => self.cm(at, op),
                Output::Post(transmit) => side.post(transmit, &[]),
                Output::Repost(buffer) => side.repost(buffer),
                Output::Release(buffer) => {
                    side.repost(buffer);
                    side.conn.release();
                }
                Output::PostDrainMarkers => {
                    side.break_down();
                    side.cq.push_back(Completion::Drained(DrainSide::Recv));
                    side.cq.push_back(Completion::Drained(DrainSide::Send));
                }
                Output::Timer => side.timer = side.conn.next_timeout(),
                Output::Event(Event::Established) => {
                    assert!(!std::mem::replace(&mut side.established, true), "once");
                }
                Output::Begin { .. } | Output::Prepare { .. } if side.starving => {
                    side.starved += 1;
                    side.conn.handle_out_of_memory(no_memory(), self.now);
                }
                Output::Begin { id, len } => side.begin(id, len),
                Output::Prepare { id, offset, len } => {
                    let ready = side.prepare(id, offset, len);
                    side.conn.handle_prepared(ready, self.now);
                }
                Output::Read(read) => side.read(read),
                Output::Event(Event::Arrived(arrival)) => side.arrive(arrival),
                Output::Event(Event::Answered) => side.answered += 1,
                Output::Event(Event::Taken(count)) => {
                    assert!(count > 0);
                    side.lent.drain(..count as usize);
                }
                Output::Event(Event::Writable) => {
                    let writable = std::mem::replace(&mut side.writable, true);
                    assert!(!writable, "nobody is told who was not refused");
                }
                Output::Event(Event::Disconnected { reason, delivered }) => {
                    side.ended = Some((reason, delivered));
                    // Its queue pair and id go, which its kernel tells the other side.
                    side.break_down();
                    self.tell_disconnected(1 - at);
                }
            }
        }
        let side = &self.sides[at];
        if side.ended.is_none() {
            assert_eq!(
                side.timer,
                side.conn.next_timeout(),
                "the driver knows the deadline"
            );
        }
    }

    /// There may be memory for this side's large messages again.
    pub(super) fn feed(&mut self, at: usize) {
        self.sides[at].conn.retry_memory();
        self.settle(at);
    }

    fn cm(&mut self, at: usize, op: CmOp) {
        let other = 1 - at;
        match op {
            CmOp::ResolveAddr { .. } => self.sides[at].cm.push_back(Cm::AddrResolved),
            CmOp::ResolveRoute { .. } => self.sides[at].cm.push_back(Cm::RouteResolved),
            CmOp::CreateTransport => {
                let side = &mut self.sides[at];
                let window = side.params.window;
                let mut count = u32::from(window) + CONTROL_RECEIVES;
                if side.params.shared {
                    count = SHARED;
                    let account = Arc::new(Account::new(count));
                    assert!(account.open(window));
                    side.conn.use_account(Arc::clone(&account));
                    side.shared = Some(Shared {
                        account,
                        promised: 0,
                        taken: VecDeque::new(),
                    });
                }
                side.posted = (0..count).collect();
            }
            CmOp::Connect { private_data } => {
                let params = self.sides[other].params.clone();
                // The connection manager pads.
                let mut padded = private_data.to_vec();
                padded.resize(56, 0);
                let mut conn =
                    Connection::requested(params.clone(), &padded, BOTH_WAYS, self.now).unwrap();
                conn.accept(b"from b", self.now);
                self.sides[other] = Side::new(conn, params);
                self.settle(other);
            }
            CmOp::Accept { private_data } => {
                let mut padded = private_data.to_vec();
                padded.resize(196, 0);
                self.sides[other].cm.push_back(Cm::Established(padded));
                self.sides[at].cm.push_back(Cm::Established(Vec::new()));
            }
            CmOp::Disconnect => {
                let side = &mut self.sides[at];
                side.break_down();
                if side.removed || (side.disconnected && side.cm.is_empty()) {
                    let error = OsError::new("rdma_disconnect", libc::EINVAL);
                    side.conn
                        .handle_cm_failure(CmCall::Disconnect, error, self.now);
                } else {
                    self.tell_disconnected(A);
                    self.tell_disconnected(B);
                }
            }
            // The turn comes at once.
            CmOp::AwaitTurn => self.sides[at].conn.take_turn(self.now),
            CmOp::CreateId | CmOp::SetMinRnrTimer => {}
            CmOp::Reject { .. } | CmOp::Discard => panic!("not in these scenes: {op:?}"),
        }
    }

    /// Whether a step is possible now.
    pub(super) fn can(&self, step: Step) -> bool {
        match step {
            // A frame arrives only where there is a live queue pair: established at least on the
            // accepting side.
            Step::Wire(from) => {
                !self.sides[from].sending.is_empty() && !self.sides[1 - from].broken
            }
            Step::Ack(from) => {
                let lost = self.acknowledgements_get_lost && self.sides[1 - from].broken;
                !self.sides[from].unacknowledged.is_empty() && !lost
            }
            Step::Cq(at) => !self.sides[at].cq.is_empty() && self.sides[at].ended.is_none(),
            Step::Cm(at) => !self.sides[at].cm.is_empty() && self.sides[at].ended.is_none(),
            Step::Memory(at) => self.sides[at].begun().is_some() && self.sides[at].ended.is_none(),
        }
    }

    pub(super) fn take(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Wire(from) => {
                let sent = self.sides[from].sending.pop_front().unwrap();
                let to = &mut self.sides[1 - from];
                match &sent.what {
                    What::Frame(frame) => {
                        let buffer = to
                            .posted
                            .pop_front()
                            .expect("a receive is posted for every frame: no RNR NAK, ever");
                        assert!(
                            frame.len() <= HEADER_LEN + to.params.eager_size as usize,
                            "the frame fits the buffer"
                        );
                        to.cq.push_back(Completion::Recv {
                            buffer,
                            frame: frame.clone(),
                        });
                    }
                    What::Read(read) => assert!(
                        to.lent.iter().any(|lent| lent.rkey == read.rkey
                            && lent.addr <= read.remote_addr
                            && read.remote_addr + read.len <= lent.addr + lent.len),
                        "memory is read only while it is lent: {read:?}"
                    ),
                }
                self.sides[from].unacknowledged.push_back(sent);
            }
            Step::Ack(from) => {
                let side = &mut self.sides[from];
                let sent = side.unacknowledged.pop_front().unwrap();
                let slot = sent.slot;
                match sent.what {
                    What::Read(read) => {
                        side.read_came(&read);
                        side.cq.push_back(Completion::Read { slot });
                    }
                    What::Frame(_) if sent.signalled => {
                        side.cq.push_back(Completion::Sent { slot });
                    }
                    What::Frame(_) => {}
                }
            }
            Step::Cq(at) => {
                let side = &mut self.sides[at];
                match side.cq.pop_front().unwrap() {
                    Completion::Recv { buffer, frame } => {
                        // Either way must do.
                        let short = !side.received.is_multiple_of(3);
                        match short.then(|| side.conn.take_message(&frame)).flatten() {
                            Some(len) => {
                                side.buffers.insert(buffer, frame);
                                side.arrive(Arrival::Message {
                                    buffer,
                                    offset: HEADER_LEN as u32,
                                    len,
                                });
                            }
                            None => {
                                side.conn.handle_recv(buffer, &frame, now);
                                side.buffers.insert(buffer, frame);
                            }
                        }
                    }
                    Completion::Sent { slot } => {
                        side.slots_are_free_up_to(slot);
                        side.conn.handle_sent(slot, now);
                    }
                    Completion::Read { slot } => {
                        side.slots_are_free_up_to(slot);
                        side.conn.handle_read(slot, now);
                    }
                    Completion::Failed(work, status) => {
                        side.conn.handle_work_error(work, status, 0x81, now);
                    }
                    Completion::Drained(drained) => side.conn.handle_drained(drained),
                }
                self.settle(at);
            }
            Step::Memory(at) => {
                let side = &mut self.sides[at];
                let pull = side.pulls.iter_mut().find(|pull| !pull.has_memory);
                let pull = pull.expect("it was begun");
                pull.has_memory = true;
                let id = pull.id;
                side.conn.handle_memory(id, now);
                self.settle(at);
            }
            Step::Cm(at) => {
                let side = &mut self.sides[at];
                let event = side.cm.pop_front().unwrap();
                side.conn.handle_cm_event(
                    match &event {
                        Cm::AddrResolved => CmInput::AddrResolved,
                        Cm::RouteResolved => CmInput::RouteResolved,
                        Cm::Established(private_data) => CmInput::Established {
                            private_data,
                            reads: BOTH_WAYS,
                        },
                        Cm::Disconnected => CmInput::Disconnected,
                        Cm::DeviceRemoval => CmInput::DeviceRemoval,
                    },
                    now,
                );
                self.settle(at);
            }
        }
    }

    /// Takes steps until there is none left. The clock stands still.
    pub(super) fn run(&mut self) {
        const STEPS: [Step; 10] = [
            Step::Wire(A),
            Step::Wire(B),
            Step::Ack(A),
            Step::Ack(B),
            Step::Cm(A),
            Step::Cm(B),
            Step::Cq(A),
            Step::Cq(B),
            Step::Memory(A),
            Step::Memory(B),
        ];
        while let Some(step) = STEPS.into_iter().find(|step| self.can(*step)) {
            self.take(step);
        }
    }

    /// Takes steps and lets go of what was received until nothing more comes.
    pub(super) fn run_dry(&mut self) {
        self.run();
        while self.sides.iter().any(|side| !side.kept.is_empty()) {
            self.release_all(A);
            self.release_all(B);
            self.run();
        }
    }

    /// Lets time pass until the next deadline of either side, if there is one.
    pub(super) fn pass(&mut self) -> bool {
        let deadlines = self
            .sides
            .iter()
            .filter(|side| side.ended.is_none())
            .filter_map(|side| side.conn.next_timeout());
        let Some(next) = deadlines.min() else {
            return false;
        };
        self.wait(next.saturating_duration_since(self.now));
        true
    }

    /// Lets this much time pass. Who has a deadline then looks at its completions first, as the
    /// contract has it.
    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        for at in [A, B] {
            let due = self.sides[at]
                .timer
                .is_some_and(|deadline| deadline <= self.now);
            while due && self.can(Step::Cq(at)) {
                self.take(Step::Cq(at));
            }
            if self.sides[at].ended.is_none() {
                self.sides[at].conn.handle_timeout(self.now);
                self.settle(at);
            }
        }
    }

    /// Runs until both sides have ended.
    pub(super) fn finish(&mut self) {
        for _ in 0..100 {
            self.run();
            if self.sides.iter().all(|side| side.ended.is_some()) || !self.pass() {
                break;
            }
        }
    }

    /// Sends the next message; says whether it went out.
    pub(super) fn send(&mut self, at: usize) -> bool {
        let side = &mut self.sides[at];
        let sent = side.conn.send(4).map(|transmit| {
            let number = side.sent.to_le_bytes();
            side.post(transmit, &number);
        });
        self.sent(at, sent)
    }

    /// Sends the next message as a large one of `len` bytes; says whether it went out.
    pub(super) fn send_large(&mut self, at: usize, len: u64) -> bool {
        let side = &mut self.sides[at];
        let descriptor = lent(side.sent, len);
        let sent = side.conn.send_large(&descriptor).map(|transmit| {
            side.lent.push_back(descriptor);
            side.post(transmit, &descriptor.emit());
        });
        self.sent(at, sent)
    }

    fn sent(&mut self, at: usize, sent: Result<(), SendRefused>) -> bool {
        let side = &mut self.sides[at];
        match sent {
            Ok(()) => side.sent += 1,
            Err(SendRefused::Blocked) => side.writable = false,
            Err(SendRefused::Closed(_)) => {}
            Err(SendRefused::TooLong { limit }) => panic!("nothing is longer than {limit}"),
        }
        self.settle(at);
        sent.is_ok()
    }

    /// The application lets go of a message it kept: the oldest, or the newest.
    pub(super) fn release(&mut self, at: usize, oldest: bool) {
        let side = &mut self.sides[at];
        let kept = if oldest {
            side.kept.pop_front()
        } else {
            side.kept.pop_back()
        };
        if side.ended.is_none() {
            match kept {
                Some(Kept::Buffer(buffer)) if side.conn.accepts_receives() => {
                    side.repost(buffer);
                    side.conn.release();
                }
                Some(Kept::Large(len)) => side.conn.release_large(len, self.now),
                Some(Kept::Buffer(_)) | None => {}
            }
        }
        self.settle(at);
    }

    pub(super) fn release_all(&mut self, at: usize) {
        while !self.sides[at].kept.is_empty() {
            self.release(at, true);
        }
    }

    pub(super) fn close(&mut self, at: usize) {
        self.sides[at].conn.close(self.now);
        self.settle(at);
    }

    pub(super) fn abort(&mut self, at: usize, code: u32) {
        self.sides[at].conn.abort(code, self.now);
        self.settle(at);
    }

    /// This side's process dies: its queue pair goes, and its kernel says so to the peer. It is not
    /// looked at any more.
    pub(super) fn kill(&mut self, at: usize) {
        self.sides[at].killed = true;
        self.sides[at].ended = Some((CloseReason::LocallyAborted, false));
        self.sides[at].break_down();
        self.tell_disconnected(1 - at);
    }

    fn tell_disconnected(&mut self, at: usize) {
        let side = &mut self.sides[at];
        if !std::mem::replace(&mut side.disconnected, true) {
            side.cm.push_back(Cm::Disconnected);
        }
    }

    /// This side's host vanishes: nothing comes from it and nothing reaches it.
    pub(super) fn vanish(&mut self, at: usize) {
        self.sides[at].killed = true;
        self.sides[at].ended = Some((CloseReason::LocallyAborted, false));
        self.sides[at].break_down();
        self.sides[1 - at].disconnected = true;
    }

    /// This side's device is taken away.
    pub(super) fn remove_device(&mut self, at: usize) {
        let side = &mut self.sides[at];
        if !std::mem::replace(&mut side.removed, true) {
            side.disconnected = true;
            side.break_down();
            side.cm.push_back(Cm::DeviceRemoval);
        }
    }

    /// The device fails this side's oldest send.
    pub(super) fn fail_send(&mut self, at: usize, status: WcStatus) {
        let side = &mut self.sides[at];
        let slot = *side.slots.front().expect("something was sent");
        side.conn
            .handle_work_error(Work::Send { slot }, status, 0x81, self.now);
        self.settle(at);
    }

    pub(super) fn reason(&self, at: usize) -> &CloseReason {
        &self.sides[at].ended.as_ref().expect("it has ended").0
    }

    pub(super) fn delivered(&self, at: usize) -> bool {
        self.sides[at].ended.as_ref().expect("it has ended").1
    }

    /// Announces a large message that no connection made.
    pub(super) fn forge_large(&mut self, from: usize, descriptor: &Descriptor) {
        let header = Header {
            kind: Kind::Rendezvous,
            grant: self.sides[from].params.window.into(),
            len: 24,
            arg: 0,
        };
        self.forge(from, &[&header.emit()[..], &descriptor.emit()].concat());
    }

    /// Asks the peer how far it has come.
    pub(super) fn flush(&mut self, at: usize) -> Flush {
        let flush = self.sides[at].conn.flush().expect("it is established");
        self.settle(at);
        flush
    }

    /// Puts bytes on the wire that no connection made.
    pub(super) fn forge(&mut self, from: usize, frame: &[u8]) {
        self.sides[from].sending.push_back(InFlight {
            slot: u32::MAX,
            signalled: false,
            what: What::Frame(frame.to_vec()),
        });
    }
}
