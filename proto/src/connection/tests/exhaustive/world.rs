//! A state of the search: a pair of connections, and the side events that can still occur. Side
//! events are actions of applications, and failures of processes and devices.

use rdma_status::WcStatus;

use super::{Scope, mistake::Mistake, reduction};
use crate::{
    DrainSide, Params, TransportTraits, Work,
    connection::{
        Flush,
        tests::{
            pair::{A, B, Pair, Step},
            params,
            side::{Completion, Side, WorkKind},
        },
    },
    frame::{Header, Kind},
};

/// An event at one side: an action of the application, or a failure of the process or the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideEvent {
    /// Sends a message of 4 bytes.
    Send,
    /// Sends up to three messages in a single frame.
    Batch,
    /// Sends a message of 100 bytes, which the peer reads from this side's memory.
    Large,
    /// Sends a message of 100 bytes in two frames.
    Fragments,
    /// Makes the driver hold back a message that cannot be sent yet.
    Hold,
    /// Sends a control message of 4 bytes.
    Control,
    /// Reports to the peer that this side wants to end the connection soon.
    Leave,
    /// Releases the newest message instead of the oldest one.
    ReleaseNewest,
    /// Requests a proof that everything sent so far has arrived (a flush).
    Flush,
    /// Makes the application hold all its messages until the connection has ended.
    Keep,
    Finish,
    Close,
    /// Accepts the peer's long request.
    Accept,
    /// Prevents the drain markers from completing within the drain timeout.
    LoseMarkers,
    /// Provides memory for large messages again.
    RestoreMemory,
    /// Lets time pass until the next deadline, although other transitions are possible. The event
    /// reduces the budget of one side, but time passes for both sides.
    Wait,
    /// Rejects the peer's long request.
    Reject,
    /// Removes all memory for large messages, so that allocations fail.
    LoseMemory,
    Abort,
    /// Kills the process.
    Kill,
    /// Powers off the host.
    Vanish,
    /// Removes the device.
    Remove,
    /// Makes the device report the oldest work request as failed, after all retries.
    GiveUp,
    /// Makes the peer's device refuse the oldest work request, which must be a READ.
    Refuse,
}

/// The first [`SideEvent`] that is a fault. All variants after it are faults too. After a fault,
/// the connection may end without a close handshake.
const FIRST_FAULT: SideEvent = SideEvent::Wait;
pub(super) const SIDE_EVENTS: usize = SideEvent::Refuse as usize + 1;

/// A transition from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Step(Step),
    /// The side's driver polls the next completion of a queue.
    Poll(usize, DrainSide),
    /// The application releases its oldest message.
    Release(usize),
    /// The application takes a control message.
    Take(usize),
    /// The device retransmits its oldest frame until the retries are exhausted, because the peer's
    /// host has no power.
    Exhaust(usize),
    /// Time passes until the next deadline, because no other transition is possible.
    Pass,
    Do(SideEvent, usize),
    Mistake(usize),
}

impl Act {
    /// Returns whether the library, the driver or the application of this side makes the
    /// transition. All side events and mistakes of this side count as such transitions.
    fn is_of_library(self, side: usize) -> bool {
        match self {
            Self::Poll(at, _)
            | Self::Release(at)
            | Self::Take(at)
            | Self::Step(Step::Cq(at) | Step::Cm(at) | Step::Memory(at))
            | Self::Do(_, at)
            | Self::Mistake(at) => at == side,
            Self::Step(Step::Wire(_) | Step::Ack(_)) | Self::Exhaust(_) | Self::Pass => false,
        }
    }
}

/// The transitions that are possible in a state.
pub(super) struct Next {
    pub(super) acts: Vec<Act>,
    /// Whether only a side event or a mistake can change the state.
    pub(super) is_quiet: bool,
}

/// A state of the search.
#[derive(Clone)]
pub(super) struct World {
    pub(super) pair: Pair,
    /// The number of times that each side event can still occur, by side.
    pub(super) left: [[u8; 2]; SIDE_EVENTS],
    /// The flushes requested so far: the side, the flush, and the number of messages that this side
    /// sent before the flush.
    pub(super) flushes: Vec<(usize, Flush, u32)>,
    /// The mistake that can occur in this search.
    pub(super) mistake: Option<Mistake>,
    pub(super) mistakes_left: u8,
    /// The side events that have had an effect so far, by side.
    pub(super) done: [[bool; 2]; SIDE_EVENTS],
}

impl World {
    /// Creates the initial state of a scope.
    pub(super) fn new(scope: &Scope) -> Self {
        let params = Params {
            window: scope.window,
            shared: scope.shared,
            send_slots: scope.slots,
            longest_chunk: scope.chunk,
            large_memory: scope.memory,
            // The Answer to a long request can be up to 160 bytes long.
            eager_size: if scope.long_request { 160 } else { 64 },
            ..params()
        };
        let traits = TransportTraits {
            active_speaks_first: scope.active_speaks_first,
            ..TransportTraits::UNRESTRICTED
        };
        let data: &[u8] = if scope.long_request {
            &[7; 21]
        } else {
            b"from a"
        };
        let mut pair = Pair::with_request(traits, params.clone(), params, data);
        // B's connection is a placeholder until a request arrives, so the outputs of the
        // placeholder are discarded.
        while pair.sides[B].conn.poll_output().is_some() {}
        if !scope.establishing {
            pair.run();
        }
        for side in &mut pair.sides {
            side.conn.start_control_messages_at(0, scope.control_window);
        }
        pair.acknowledgements_get_lost = scope.acknowledgements_get_lost;
        let mut left = [[0; 2]; SIDE_EVENTS];
        for (side_event, counts) in scope.side_events {
            left[*side_event as usize] = *counts;
        }
        Self {
            pair,
            left,
            flushes: Vec::new(),
            mistake: None,
            mistakes_left: 1,
            done: [[false; 2]; SIDE_EVENTS],
        }
    }

    /// Returns whether this event has occurred at the side `at` and had an effect.
    pub(super) fn has_done(&self, side_event: SideEvent, at: usize) -> bool {
        self.done[side_event as usize][at]
    }

    /// Returns whether a fault has occurred. After a fault, the connection may end without a close
    /// handshake.
    pub(super) fn is_disturbed(&self) -> bool {
        let faults = &self.done[FIRST_FAULT as usize..];
        faults.iter().any(|sides| sides.contains(&true))
    }

    /// Copies the state, including the accounts of shared receives.
    pub(super) fn copy(&self) -> Self {
        let mut copy = self.clone();
        for side in &mut copy.pair.sides {
            side.own_account();
        }
        copy
    }

    /// Returns the possible transitions. If `reduces` is true, omits transitions that commute with
    /// the returned ones, because the search can make the omitted transitions later.
    pub(super) fn next(&self, reduces: bool) -> Next {
        let mut acts = self.steps();
        let is_idle = acts.is_empty();
        // The deadline does not pass until the application has decided on the request.
        let awaits_answer = self.pair.sides[B].requested && self.pair.sides[B].ended.is_none();
        if is_idle && self.awaits_deadline() && !awaits_answer {
            acts.push(Act::Pass);
        }
        let is_quiet = acts.is_empty() && !awaits_answer;
        acts.extend(self.side_events(is_idle));
        if reduces && let Some(at) = reduction::first(self) {
            acts.retain(|act| act.is_of_library(at));
        }
        Next { acts, is_quiet }
    }

    /// Returns whether time passes only if no other transition is possible.
    pub(super) fn waits_for_deadlines(&self) -> bool {
        self.left[SideEvent::Wait as usize] == [0, 0]
    }

    /// Returns whether the remaining budget contains no fault.
    pub(super) fn is_without_faults(&self) -> bool {
        let faults = &self.left[FIRST_FAULT as usize..];
        faults.iter().all(|left| *left == [0, 0])
    }

    /// Returns the possible transitions, except side events, mistakes and deadlines.
    fn steps(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for at in [A, B] {
            let steps = [
                Step::Wire(at),
                Step::Ack(at),
                Step::Cm(at),
                Step::Memory(at),
            ];
            let possible = steps.into_iter().filter(|step| self.pair.can(*step));
            acts.extend(possible.map(Act::Step));
            if self.pair.can(Step::Cq(at)) {
                let queues = [DrainSide::Recv, DrainSide::Send].into_iter();
                let ready = queues.filter(|queue| self.pair.sides[at].front(*queue).is_some());
                acts.extend(ready.map(|queue| Act::Poll(at, queue)));
            }
            let side = &self.pair.sides[at];
            let releases = !side.kept.is_empty() && !self.has_done(SideEvent::Keep, at);
            if releases && side.ended.is_none() {
                acts.push(Act::Release(at));
            }
            if side.control_kept > 0 && side.ended.is_none() {
                acts.push(Act::Take(at));
            }
            if self.has_done(SideEvent::Vanish, 1 - at) && has_work(side) {
                acts.push(Act::Exhaust(at));
            }
        }
        acts
    }

    /// Returns whether a side has a deadline. If so, time can pass when nothing else is possible.
    fn awaits_deadline(&self) -> bool {
        let awaits = |side: &Side| side.ended.is_none() && side.conn.next_timeout().is_some();
        self.pair.sides.iter().any(awaits)
    }

    /// Returns the side events and mistakes that are possible now.
    fn side_events(&self, is_idle: bool) -> Vec<Act> {
        let mut acts = Vec::new();
        for at in [A, B] {
            let side = &self.pair.sides[at];
            if side.ended.is_some() || !(side.established || side.requested) {
                continue;
            }
            if side.requested {
                let answers = [SideEvent::Accept, SideEvent::Reject, SideEvent::Kill];
                let possible = answers
                    .into_iter()
                    .filter(|it| self.left[*it as usize][at] > 0);
                acts.extend(possible.map(|it| Act::Do(it, at)));
                continue;
            }
            let mut add = |side_event: SideEvent, possible: bool| {
                if possible && self.left[side_event as usize][at] > 0 {
                    acts.push(Act::Do(side_event, at));
                }
            };
            let sends = side.writable && side.held == 0;
            add(SideEvent::Send, sends);
            add(SideEvent::Batch, sends);
            add(SideEvent::Large, sends);
            add(SideEvent::Fragments, sends);
            add(SideEvent::Hold, true);
            add(SideEvent::Control, side.conn.close_reason().is_none());
            add(SideEvent::Leave, side.conn.close_reason().is_none());
            add(SideEvent::ReleaseNewest, side.kept.len() > 1);
            add(SideEvent::Flush, side.conn.close_reason().is_none());
            add(SideEvent::Keep, !side.kept.is_empty());
            add(SideEvent::Finish, true);
            add(SideEvent::Close, true);
            add(SideEvent::LoseMarkers, has_markers(side));
            add(
                SideEvent::RestoreMemory,
                side.lacks_memory && side.waiting_for_memory().is_none(),
            );
            add(SideEvent::LoseMemory, !side.lacks_memory);
            add(SideEvent::Wait, !is_idle && self.awaits_deadline());
            add(SideEvent::Abort, true);
            add(SideEvent::Kill, true);
            add(SideEvent::Vanish, true);
            add(SideEvent::Remove, !side.removed);
            add(SideEvent::GiveUp, has_work(side));
            add(SideEvent::Refuse, oldest_is_read(side));
        }
        if let Some(mistake) = self.mistake
            && self.mistakes_left > 0
        {
            let possible = [A, B]
                .into_iter()
                .filter(|at| mistake.is_possible(self, *at));
            acts.extend(possible.map(Act::Mistake));
        }
        acts
    }

    /// Makes a transition.
    pub(super) fn apply(&mut self, act: Act) {
        match act {
            Act::Step(step) => self.pair.take(step),
            Act::Poll(at, queue) => {
                self.pair.sides[at].move_to_front(queue);
                self.pair.take(Step::Cq(at));
            }
            Act::Release(at) => self.pair.release(at, true),
            Act::Take(at) => self.pair.take_control_message(at),
            Act::Exhaust(at) => self.pair.sides[at].give_up(WcStatus::RETRY_EXC_ERR),
            Act::Pass => self.pass(),
            Act::Do(side_event, at) => {
                self.left[side_event as usize][at] -= 1;
                self.done[side_event as usize][at] |= self.act(side_event, at);
            }
            Act::Mistake(at) => {
                self.mistakes_left -= 1;
                let mistake = self.mistake.expect("the search has a mistake");
                mistake.make(self, at);
            }
        }
        if let Some(mistake) = self.mistake {
            mistake.repeat(self);
        }
    }

    /// Performs a side event. Returns false if the event had no effect, for example because a send
    /// was refused.
    fn act(&mut self, side_event: SideEvent, at: usize) -> bool {
        let pair = &mut self.pair;
        match side_event {
            SideEvent::Send => return pair.send(at),
            SideEvent::Batch => return pair.send_batch(at, 3) > 1,
            SideEvent::Large => return pair.send_large(at, 100),
            SideEvent::Fragments => return pair.send_fragments(at, 100),
            SideEvent::Hold => return pair.hold_back(at),
            SideEvent::Control => return pair.send_control_message(at),
            SideEvent::Leave => return pair.ask_to_leave(at),
            SideEvent::ReleaseNewest => pair.release(at, false),
            SideEvent::Flush => {
                let sent = pair.sides[at].sent;
                self.flushes.push((at, pair.flush(at), sent));
            }
            // After this event, `steps` returns no releases for this side.
            SideEvent::Keep => {}
            SideEvent::Finish => pair.finish_sending(at),
            SideEvent::Close => pair.close(at),
            SideEvent::Accept => pair.accept(at),
            SideEvent::Reject => pair.reject(at),
            SideEvent::LoseMarkers => {
                let keeps = |completion: &Completion| !matches!(completion, Completion::Drained(_));
                pair.sides[at].cq.retain(keeps);
            }
            SideEvent::RestoreMemory => {
                pair.sides[at].lacks_memory = false;
                pair.restore_memory(at);
            }
            SideEvent::Wait => self.pass(),
            SideEvent::LoseMemory => pair.sides[at].lacks_memory = true,
            SideEvent::Abort => pair.abort(at, 3),
            SideEvent::Kill => pair.kill(at),
            SideEvent::Vanish => pair.vanish(at),
            SideEvent::Remove => pair.remove_device(at),
            SideEvent::GiveUp => pair.sides[at].give_up(WcStatus::RETRY_EXC_ERR),
            SideEvent::Refuse => pair.sides[at].give_up(WcStatus::REM_ACCESS_ERR),
        }
        true
    }

    /// Lets time pass until the next deadline.
    fn pass(&mut self) {
        self.pair.sides.iter_mut().for_each(Side::sort_queues);
        assert!(self.pair.pass(), "there is a deadline");
    }

    /// Describes a transition before it is made.
    pub(super) fn describe(&self, act: Act) -> String {
        let name = |at: usize| if at == A { "A" } else { "B" };
        let sides = &self.pair.sides;
        match act {
            Act::Step(Step::Wire(at)) => {
                let what = sides[at].sending.front().map(|sent| what(&sent.what));
                format!("{}'s {} arrives", name(at), what.unwrap_or_default())
            }
            Act::Step(Step::Ack(at)) => {
                let what = sides[at]
                    .unacknowledged
                    .front()
                    .map(|sent| what(&sent.what));
                let what = what.unwrap_or_default();
                format!("{}'s {what} is acknowledged", name(at))
            }
            Act::Step(Step::Cq(at)) => format!("{} polls", name(at)),
            Act::Poll(at, queue) => {
                let completion = match sides[at].front(queue) {
                    Some(Completion::Recv { frame, .. }) => kind(frame),
                    Some(Completion::Failed(Work::Recv { .. }, status)) => {
                        format!("Recv: {status}")
                    }
                    other => format!("{:?}", other.expect("the queue is not empty")),
                };
                format!("{} polls {completion}", name(at))
            }
            Act::Step(Step::Cm(at)) => format!("{} takes {:?}", name(at), sides[at].cm[0]),
            Act::Step(Step::Memory(at)) => format!("{} finds memory", name(at)),
            Act::Release(at) => format!("{} releases a message", name(at)),
            Act::Take(at) => format!("{} takes a control message", name(at)),
            Act::Exhaust(at) => format!("{}'s device gives up: the peer has no power", name(at)),
            Act::Pass => "time passes until the next deadline".to_owned(),
            Act::Do(side_event, at) => format!("{}: {side_event:?}", name(at)),
            Act::Mistake(at) => format!("{:?}: a mistake of {}", self.mistake, name(at)),
        }
    }
}

fn has_markers(side: &Side) -> bool {
    let is_marker = |completion: &Completion| matches!(completion, Completion::Drained(_));
    side.cq.iter().any(is_marker)
}

/// Returns whether the device has a work request whose retries can be exhausted.
fn has_work(side: &Side) -> bool {
    side.ended.is_none() && !(side.unacknowledged.is_empty() && side.sending.is_empty())
}

fn oldest_is_read(side: &Side) -> bool {
    let oldest = side.unacknowledged.front().or_else(|| side.sending.front());
    oldest.is_some_and(|oldest| matches!(oldest.what, WorkKind::Read(_)))
}

fn what(what: &WorkKind) -> String {
    match what {
        WorkKind::Frame(frame) => kind(frame),
        WorkKind::Read(read) => format!("READ of large message {}", read.id),
        WorkKind::Nudge => "empty WRITE".to_owned(),
    }
}

/// Describes a frame by its kind and the fields of its header.
fn kind(frame: &[u8]) -> String {
    match Header::parse(frame) {
        Ok(header) => {
            let name = match header.kind {
                Kind::Control(control) => format!("{control:?}"),
                kind => format!("{kind:?}"),
            };
            format!(
                "{name}(sequence {}, grant {})",
                header.sequence, header.grant
            )
        }
        Err(violation) => format!("malformed frame ({violation})"),
    }
}
