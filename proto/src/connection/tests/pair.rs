//! Simulates two connections and the wire between them. In each direction, the wire keeps frames in
//! order. Completions and connection manager events wait in queues. The test chooses the next step,
//! so events and completions can overtake each other, and acknowledgements can be delayed
//! arbitrarily.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use rdma_status::OsError;

use super::side::{Cm, Completion, InFlight, Shared, Side, WorkKind};
use crate::{
    Account, Arrival, CONTROL_RECEIVES, CONTROL_WINDOW, CmCall, CmInput, CmOp, Connection,
    DrainSide, Event, HEADER_LEN, Output, Params, TransportTraits, connection::transfer::Transfer,
    hello::VERSION, testing::BOTH_WAYS,
};

/// The indices of the two sides.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

/// The number of receives in a shared pool.
const SHARED: u32 = 30;

/// The error that a registration returns if the system has no memory.
pub(super) const fn no_memory() -> OsError {
    OsError::new("ibv_reg_mr", libc::ENOMEM)
}

/// The two sides of the simulation and its clock.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) now: Instant,
    /// Whether a device's pending acknowledgements are lost when its queue pair fails.
    pub(super) acknowledgements_get_lost: bool,
    traits: TransportTraits,
}

/// A possible step of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The frame or READ at the front of this side's send queue arrives at the peer.
    Wire(usize),
    /// The peer's device acknowledges the oldest unacknowledged frame or READ of this side.
    Ack(usize),
    /// This side's driver polls the next completion.
    Cq(usize),
    /// This side's driver handles the next connection manager event.
    Cm(usize),
    /// This side's driver reserves memory for the large message that waits for memory.
    Memory(usize),
}

impl Pair {
    /// Creates two sides. A will connect to B, but no step has been taken yet.
    pub(super) fn new(a: Params, b: Params) -> Self {
        Self::over(TransportTraits::UNRESTRICTED, a, b)
    }

    /// Does the same as [`new`](Self::new), but over a transport with these traits.
    pub(super) fn over(traits: TransportTraits, a: Params, b: Params) -> Self {
        Self::with_request(traits, a, b, b"from a")
    }

    /// Does the same as [`over`](Self::over), but with these private data in the request.
    pub(super) fn with_request(traits: TransportTraits, a: Params, b: Params, data: &[u8]) -> Self {
        let now = Instant::now();
        let connecting = Connection::connect(a.clone(), 1, data, now);
        // This connection of B is a placeholder. B's real connection is created when A's request
        // arrives.
        let listening = Connection::connect(b.clone(), 2, b"", now);
        let mut pair = Self {
            sides: [Side::new(connecting, a), Side::new(listening, b)],
            now,
            acknowledgements_get_lost: false,
            traits,
        };
        pair.perform_outputs(A);
        pair
    }

    /// Creates two sides with an established connection.
    pub(super) fn established(a: Params, b: Params) -> Self {
        let mut pair = Self::new(a, b);
        pair.run();
        assert!(pair.sides.iter().all(|side| side.established), "{pair:?}");
        pair
    }

    /// Creates two sides whose counters will soon wrap around. Neither hello offers any feature.
    pub(super) fn near_the_wrap(a: Params, b: Params) -> Self {
        let mut pair = Self::established(a, b);
        for side in [A, B] {
            let (ours, theirs) = (
                pair.sides[side].params.clone(),
                pair.sides[1 - side].params.clone(),
            );
            let hello = crate::hello::Hello {
                version: VERSION,
                features: 0,
                window: theirs.window,
                credits: 0,
                eager_size: theirs.eager_size,
                max_message: theirs.max_message,
                keepalive_ms: 0,
                engine: 0,
            };
            let (open, _) = pair.sides[side].conn.open().expect("it is established");
            open.transfer = Transfer::starting_at(&ours, &hello, u32::MAX - 5);
            pair.sides[side]
                .conn
                .start_control_messages_at(u32::MAX - 1, CONTROL_WINDOW);
        }
        pair
    }

    /// Performs the outputs of a side's connection.
    pub(super) fn perform_outputs(&mut self, at: usize) {
        self.carry_out(at);
        while self.sides[at].held > 0 && self.sides[at].writable && self.sides[at].ended.is_none() {
            self.send_held(at);
            self.carry_out(at);
        }
    }

    fn carry_out(&mut self, at: usize) {
        while let Some(output) = self.sides[at].conn.poll_output() {
            let side = &mut self.sides[at];
            assert!(
                side.ended.is_none(),
                "no output follows the end: {output:?}"
            );
            match output {
                Output::Cm(op) => self.cm(at, op),
                Output::Post(transmit) => side.post(transmit, &[]),
                Output::PostWithPayload(transmit, message) => side.post(transmit, &message),
                Output::Repost(buffer) => side.repost(buffer),
                Output::Release(buffer) => {
                    side.repost(buffer);
                    side.conn.release(self.now);
                }
                Output::Nudge { slot } => side.posted(InFlight {
                    slot,
                    signalled: true,
                    what: WorkKind::Nudge,
                }),
                Output::PostDrainMarkers => {
                    side.enter_error_state();
                    side.cq.push_back(Completion::Drained(DrainSide::Recv));
                    side.cq.push_back(Completion::Drained(DrainSide::Send));
                }
                Output::Timer => side.timer = side.conn.next_timeout(),
                Output::Note(_) => {}
                Output::Event(Event::Established) => {
                    assert!(
                        !std::mem::replace(&mut side.established, true),
                        "the connection must be established only once"
                    );
                    side.requested = false;
                }
                Output::Event(Event::Requested) => {
                    assert!(
                        !std::mem::replace(&mut side.requested, true),
                        "the long request must be reported only once"
                    );
                }
                Output::Begin { .. } | Output::Prepare { .. } | Output::Copy(_)
                    if side.lacks_memory =>
                {
                    side.failed_allocations += 1;
                    side.conn.handle_out_of_memory(no_memory(), self.now);
                }
                Output::Begin { id, len } => side.begin(id, len),
                Output::Prepare { id, offset, len } => {
                    let ready = side.prepare(id, offset, len);
                    side.conn.handle_prepared(ready, self.now);
                }
                Output::Read(read) => side.read(read),
                Output::Copy(copy) => {
                    side.copy(copy);
                    side.conn.handle_copied(self.now);
                }
                Output::Event(Event::Arrived(arrival)) => side.arrive(arrival),
                Output::Event(Event::ControlMessage { buffer, len }) => {
                    side.control_message(buffer, len);
                }
                Output::Event(Event::PeerLeaving) => {
                    assert!(
                        !std::mem::replace(&mut side.peer_leaves, true),
                        "the peer's Leave must be reported only once"
                    );
                }
                Output::Event(Event::Answered) => side.answered += 1,
                Output::Event(Event::Taken(count)) => {
                    assert!(count > 0);
                    side.exposed.drain(..count as usize);
                }
                Output::Event(Event::Writable) => {
                    let writable = std::mem::replace(&mut side.writable, true);
                    assert!(!writable, "Writable occurs only after a refusal");
                }
                Output::Event(Event::Disconnected { reason, delivered }) => {
                    side.ended = Some((reason, delivered));
                    // The driver destroys the queue pair and the id, so the kernel disconnects.
                    side.enter_error_state();
                    self.report_disconnected(1 - at);
                }
            }
        }
        let side = &self.sides[at];
        if side.ended.is_none() {
            assert_eq!(
                side.timer,
                side.conn.next_timeout(),
                "the connection must report each change of its deadline"
            );
        }
    }

    /// Accepts the peer's long request on behalf of the application.
    pub(super) fn accept(&mut self, at: usize) {
        self.sides[at].conn.accept(b"from b", self.now);
        self.perform_outputs(at);
    }

    /// Rejects the peer's long request on behalf of the application.
    pub(super) fn reject(&mut self, at: usize) {
        self.sides[at].requested = false;
        assert!(self.sides[at].conn.reject(b"no", self.now));
        self.perform_outputs(at);
    }

    /// Reports to a side that memory for its large messages might be available again.
    pub(super) fn restore_memory(&mut self, at: usize) {
        self.sides[at].conn.retry_memory();
        self.perform_outputs(at);
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
                side.conn.handle_transport(self.traits);
            }
            CmOp::Connect { private_data } => {
                let params = self.sides[other].params.clone();
                // The connection manager pads private data with zeros.
                let mut padded = private_data.to_vec();
                padded.resize(56, 0);
                let mut conn =
                    Connection::requested(params.clone(), &padded, BOTH_WAYS, self.now).unwrap();
                let long = conn.has_long_request();
                conn.accept(if long { b"" } else { b"from b" }, self.now);
                self.sides[other] = Side::new(conn, params);
                self.perform_outputs(other);
            }
            CmOp::Accept { private_data } => {
                let mut padded = private_data.to_vec();
                padded.resize(196, 0);
                self.sides[other].cm.push_back(Cm::Established(padded));
                self.sides[at].cm.push_back(Cm::Established(Vec::new()));
            }
            CmOp::Disconnect => {
                let side = &mut self.sides[at];
                side.enter_error_state();
                if side.removed || (side.disconnected && side.cm.is_empty()) {
                    let error = OsError::new("rdma_disconnect", libc::EINVAL);
                    side.conn
                        .handle_cm_failure(CmCall::Disconnect, error, self.now);
                } else {
                    self.report_disconnected(A);
                    self.report_disconnected(B);
                }
            }
            // The simulation does not limit the number of concurrent attempts.
            CmOp::AwaitSetupSlot => self.sides[at].conn.begin_setup(self.now),
            CmOp::CreateId | CmOp::SetMinRnrTimer => {}
            CmOp::Reject { .. } | CmOp::Discard => panic!("these tests do not cause {op:?}"),
        }
    }

    /// Returns whether a step is possible now.
    pub(super) fn can(&self, step: Step) -> bool {
        match step {
            // A frame arrives only if the receiver's queue pair works.
            Step::Wire(from) => {
                !self.sides[from].sending.is_empty() && !self.sides[1 - from].broken
            }
            Step::Ack(from) => {
                let lost = self.acknowledgements_get_lost && self.sides[1 - from].broken;
                !self.sides[from].unacknowledged.is_empty() && !lost
            }
            Step::Cq(at) => !self.sides[at].cq.is_empty() && self.sides[at].ended.is_none(),
            Step::Cm(at) => !self.sides[at].cm.is_empty() && self.sides[at].ended.is_none(),
            Step::Memory(at) => {
                self.sides[at].waiting_for_memory().is_some() && self.sides[at].ended.is_none()
            }
        }
    }

    pub(super) fn take(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Wire(from) => {
                let sent = self.sides[from].sending.pop_front().unwrap();
                let to = &mut self.sides[1 - from];
                match &sent.what {
                    WorkKind::Frame(frame) => {
                        let buffer = to
                            .posted
                            .pop_front()
                            .expect("a receive is posted for each frame");
                        assert!(
                            frame.len() <= HEADER_LEN + to.params.eager_size as usize,
                            "the frame fits the buffer"
                        );
                        to.cq.push_back(Completion::Recv {
                            buffer,
                            frame: frame.clone(),
                        });
                    }
                    WorkKind::Read(read) => assert!(
                        to.exposed.iter().any(|memory| memory.rkey == read.rkey
                            && memory.addr <= read.remote_addr
                            && read.remote_addr + read.len <= memory.addr + memory.len),
                        "memory is read only while it is exposed: {read:?}"
                    ),
                    WorkKind::Nudge => {}
                }
                self.sides[from].unacknowledged.push_back(sent);
            }
            Step::Ack(from) => {
                let side = &mut self.sides[from];
                let sent = side.unacknowledged.pop_front().unwrap();
                let slot = sent.slot;
                match sent.what {
                    WorkKind::Read(read) => {
                        side.read_completed(&read);
                        side.cq.push_back(Completion::Read { slot });
                    }
                    WorkKind::Frame(_) | WorkKind::Nudge if sent.signalled => {
                        side.cq.push_back(Completion::Sent { slot });
                    }
                    WorkKind::Frame(_) | WorkKind::Nudge => {}
                }
            }
            Step::Cq(at) => {
                let side = &mut self.sides[at];
                match side.cq.pop_front().unwrap() {
                    Completion::Recv { buffer, frame } => {
                        // The fast path and the general path must have the same effect, so the
                        // simulation alternates between them.
                        let short = !side.received.is_multiple_of(3);
                        match short.then(|| side.conn.take_message(&frame)).flatten() {
                            Some(len) => {
                                assert!(side.conn.is_settled(), "the fast path produces no output");
                                side.buffers.insert(buffer, frame);
                                side.arrive(Arrival::Message {
                                    buffer,
                                    offset: HEADER_LEN as u32,
                                    len,
                                });
                            }
                            None => {
                                side.buffers.insert(buffer, frame.clone());
                                side.conn.handle_recv(buffer, &frame, now);
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
                self.perform_outputs(at);
            }
            Step::Memory(at) => {
                let side = &mut self.sides[at];
                let reading = side.reads.iter_mut().find(|reading| !reading.has_memory);
                let reading = reading.expect("the message was started");
                reading.has_memory = true;
                let id = reading.id;
                side.conn.handle_memory(id, now);
                self.perform_outputs(at);
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
                self.perform_outputs(at);
            }
        }
    }

    /// Takes steps until no step is possible, without letting time pass.
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

    /// Takes steps and releases received messages, until nothing more arrives.
    pub(super) fn run_until_idle(&mut self) {
        self.run();
        while self.sides.iter().any(|side| !side.kept.is_empty()) {
            self.release_all(A);
            self.release_all(B);
            self.run();
        }
    }

    /// Lets time pass until the next deadline of either side. Returns false if neither side has a
    /// deadline.
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

    /// Lets the duration `time` pass, and then handles the timeouts of both sides. If the deadline
    /// of a side has passed, the side first polls its completions, as `handle_timeout` requires.
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
                self.perform_outputs(at);
            }
        }
    }

    /// Takes steps and lets time pass until both connections have ended, or until no deadline
    /// remains.
    pub(super) fn finish(&mut self) {
        for _ in 0..100 {
            self.run();
            if self.sides.iter().all(|side| side.ended.is_some()) || !self.pass() {
                break;
            }
        }
    }
}
