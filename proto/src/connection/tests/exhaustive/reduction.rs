//! Finds transitions whose order has no effect: see the parent module.

use rdma_status::WcStatus;

use super::world::{Act, SideEvent, World};
use crate::{
    DrainSide,
    connection::{
        State,
        tests::{
            pair::{A, B, Step},
            side::{Completion, InFlight, Side, WorkKind},
        },
    },
    frame::{Control, Header, Kind},
};

/// Returns a transition that commutes with all other transitions, if there is one.
pub(super) fn only(world: &World) -> Option<Act> {
    let one_of =
        |find: fn(&World, usize) -> Option<Act>| [A, B].into_iter().find_map(|at| find(world, at));
    one_of(unobservable).or_else(|| one_of(carried))
}

/// Returns a side whose transitions all commute with the transitions of the other side and of both
/// devices, if there is such a side.
pub(super) fn first(world: &World) -> Option<usize> {
    let suffices = |at: &usize| is_independent(world, *at) || drains(world, *at);
    [A, B].into_iter().find(suffices)
}

/// Returns true if the connection is live, no side can disconnect, and the next transitions of this
/// side are independent of the peer and the devices. These transitions are independent under two
/// conditions. First, each of the side's queues that can still receive completions already contains
/// a completion, so later completions are polled after it. Second, no READ of the peer is about to
/// arrive. A READ may arrive only while this side exposes the memory, and this side can revoke the
/// memory.
fn is_independent(world: &World, at: usize) -> bool {
    let (side, peer) = (&world.pair.sides[at], &world.pair.sides[1 - at]);
    let receives = side.front(DrainSide::Recv).is_some();
    let is_done = side.unacknowledged.is_empty() && side.sending.is_empty();
    let sends = is_done || side.front(DrainSide::Send).is_some();
    let stays = !may_disconnect(world, A) && !may_disconnect(world, B);
    is_live(world) && stays && receives && sends && peer.sending.iter().all(is_frame)
}

/// Returns whether the queue pair of the side has failed, and the side can only poll the remaining
/// completions and events.
fn drains(world: &World, at: usize) -> bool {
    let sides = &world.pair.sides;
    let side = &sides[at];
    is_draining(side)
        && side.broken
        && sides.iter().all(|side| side.disconnected)
        && world.waits_for_deadlines()
        && !(side.cq.is_empty() && side.cm.is_empty())
}

/// Returns a poll of a draining side that cannot affect how the connection ends, if there is such a
/// poll.
fn unobservable(world: &World, at: usize) -> Option<Act> {
    let side = &world.pair.sides[at];
    if !is_draining(side) {
        return None;
    }
    let is_nothing = |queue: &DrainSide| match side.front(*queue) {
        Some(Completion::Failed(_, status)) => *status == WcStatus::WR_FLUSH_ERR,
        Some(Completion::Sent { .. }) => true,
        Some(Completion::Recv { .. } | Completion::Read { .. } | Completion::Drained(_)) | None => {
            false
        }
    };
    let queues = [DrainSide::Recv, DrainSide::Send].into_iter();
    queues
        .filter(is_nothing)
        .map(|queue| Act::Poll(at, queue))
        .next()
}

fn is_draining(side: &Side) -> bool {
    matches!(&side.conn.state, State::Open(open) if !open.is_connected())
}

/// Returns whether both queue pairs work, and no fault can occur. Both queue pairs then work until
/// a side disconnects.
fn is_live(world: &World) -> bool {
    let is_live = |side: &Side| {
        let is_connected = matches!(&side.conn.state, State::Open(open) if open.is_connected());
        is_connected && !side.broken && side.cm.is_empty()
    };
    world.is_without_faults() && world.pair.sides.iter().all(is_live)
}

/// Returns whether the side `at` of a live connection can disconnect. The side can disconnect if it
/// has closed and both CloseAcks have arrived, or if B has rejected A's request.
fn may_disconnect(world: &World, at: usize) -> bool {
    let has_closed =
        world.has_done(SideEvent::Close, at) && world.pair.sides.iter().all(has_acknowledged);
    has_closed || world.has_done(SideEvent::Reject, B)
}

/// Returns whether this side's CloseAck has been sent and is no longer in flight.
fn has_acknowledged(side: &Side) -> bool {
    let State::Open(open) = &side.conn.state else {
        return false;
    };
    let is_ack = |sent: &InFlight| match &sent.what {
        WorkKind::Frame(frame) => {
            Header::parse(frame).is_ok_and(|header| header.kind == Kind::Control(Control::CloseAck))
        }
        WorkKind::Read(_) | WorkKind::Nudge => false,
    };
    open.transfer.control.has_final_frame() && !side.sending.iter().any(is_ack)
}

/// Returns the arrival or the acknowledgement of a frame from the side `at`, if one is possible and
/// no queue pair can fail before it. Returns `None` if the peer can disconnect, because the peer
/// could disconnect before the frame arrives. The side `at` itself cannot disconnect before all its
/// frames are acknowledged.
fn carried(world: &World, at: usize) -> Option<Act> {
    if !is_live(world) || may_disconnect(world, 1 - at) {
        return None;
    }
    let side = &world.pair.sides[at];
    if !side.unacknowledged.is_empty() {
        return Some(Act::Step(Step::Ack(at)));
    }
    let arrives = side.sending.front().is_some_and(is_frame);
    arrives.then_some(Act::Step(Step::Wire(at)))
}

fn is_frame(sent: &InFlight) -> bool {
    !matches!(sent.what, WorkKind::Read(_))
}
