//! The checks that every state of the search must pass.

use std::collections::BTreeSet;

use rdma_status::WcStatus;

use super::world::{SideEvent, World};
use crate::{
    CONTROL_RECEIVES, CloseReason, PeerTimeout,
    connection::{
        State,
        tests::{
            pair::{A, B},
            side::{Completion, Kept, Side, WorkKind},
        },
    },
    frame::{Control, Header, Kind},
    outbound::LARGE_IN_FLIGHT,
};

/// Checks a state. `is_quiet` is true if only a side event or a mistake can change the state.
pub(super) fn judge(world: &World, is_quiet: bool) {
    for at in [A, B] {
        let (me, peer) = (&world.pair.sides[at], &world.pair.sides[1 - at]);
        assert!(
            peer.received <= me.sent,
            "a message arrives that was not sent"
        );
        assert!(
            peer.control_received <= me.control_sent,
            "a control message arrives that was not sent"
        );
        check_receives(me);
        check_control_frames(me, peer);
        check_large(me, peer);
        check_reason(world, at);
        check_close_ack(world, me);
        check_blocked(me);
        match &me.ended {
            Some((reason, delivered)) if !me.killed => {
                check_end(world, at, reason, *delivered);
            }
            Some(_) => {}
            None if is_quiet => check_quiet(world, at),
            None => {}
        }
    }
    for (at, flush, sent) in &world.flushes {
        let sides = &world.pair.sides;
        if sides[*at].conn.is_flushed(flush) {
            assert!(
                sides[1 - at].received >= *sent,
                "a flush completes before everything has arrived"
            );
        } else if is_quiet && sides.iter().all(|side| side.ended.is_none()) {
            panic!("a flush never completes");
        }
    }
}

/// Checks that each receive is posted, contains a frame, or contains a message that the application
/// holds.
fn check_receives(me: &Side) {
    let State::Open(open) = &me.conn.state else {
        return;
    };
    if me.broken || me.shared.is_some() {
        return;
    }
    let is_recv = |it: &&Completion| matches!(it, Completion::Recv { .. });
    let buffer = |kept: &Kept| match kept {
        Kept::Buffer(buffer) | Kept::Part(buffer) => Some(*buffer),
        Kept::Large(_) => None,
    };
    let kept: BTreeSet<u32> = me.kept.iter().filter_map(buffer).collect();
    let seen = me.posted.len() + me.cq.iter().filter(is_recv).count() + kept.len();
    let all = usize::from(me.params.window) + CONTROL_RECEIVES as usize;
    assert!(seen <= all, "there are more receives than were created");
    if open.transfer.inbound.is_clear() {
        assert_eq!(seen, all, "a receive is lost");
    }
}

/// Counts the control frames from `me` that `peer` has not processed. Checks, for each kind of
/// frame, that `peer` has reserved enough receives.
fn check_control_frames(me: &Side, peer: &Side) {
    let sent = me.sending.iter().filter_map(|sent| match &sent.what {
        WorkKind::Frame(frame) => Some(frame),
        WorkKind::Read(_) | WorkKind::Nudge => None,
    });
    let arrived = peer.cq.iter().filter_map(|completion| match completion {
        Completion::Recv { frame, .. } => Some(frame),
        Completion::Sent { .. }
        | Completion::Read { .. }
        | Completion::Failed(..)
        | Completion::Drained(_) => None,
    });
    let mut counts = [0; 10];
    let mut messages = 0;
    let mut greetings = 0;
    for frame in sent.chain(arrived) {
        match Header::parse(frame).map(|header| header.kind) {
            Ok(Kind::Control(control)) => counts[control as usize] += 1,
            Ok(Kind::ControlMessage) => messages += 1,
            Ok(Kind::Request | Kind::Answer) => greetings += 1,
            Ok(Kind::Data | Kind::Rendezvous | Kind::Batch | Kind::Fragment) | Err(_) => {}
        }
    }
    assert!(
        messages <= me.conn.control_window(),
        "more control messages are in flight than receives are reserved"
    );
    let grants = counts[Control::Grant as usize];
    assert!(
        greetings <= 1 && (greetings == 0 || grants == 0),
        "a request or an answer is in flight without a reserved receive"
    );
    assert!(
        counts[Control::Grant as usize] <= 2 + LARGE_IN_FLIGHT,
        "more grants are in flight than receives are reserved"
    );
    counts[Control::Grant as usize] = 0;
    let notices = counts[Control::Abort as usize] + counts[Control::Failure as usize];
    let pings = counts[Control::Ping as usize] + counts[Control::Leave as usize];
    assert!(
        counts.iter().all(|count| *count <= 1) && notices <= 1 && pings <= 1,
        "two control frames of the same kind are in flight"
    );
}

/// Checks that the memory of each large message remains exposed until the peer has read the
/// message.
fn check_large(me: &Side, peer: &Side) {
    if me.ended.is_some() || peer.ended.is_some() {
        return;
    }
    for reading in peer.reads.iter().filter(|reading| !reading.is_copied) {
        let is_exposed = me
            .exposed
            .iter()
            .any(|memory| memory.rkey == reading.number);
        assert!(
            is_exposed || reading.number == u32::MAX || reading.completed == reading.len,
            "a large message is reported as taken while it is read"
        );
    }
}

/// Checks that the side `at` reports no violation, because its peer always follows the protocol.
/// The only exception is a refused READ, which the side reports as a violation.
fn check_reason(world: &World, at: usize) {
    let reason = world.pair.sides[at].conn.close_reason();
    let is_accused = matches!(reason, Some(CloseReason::ProtocolViolation(_)));
    assert!(
        !is_accused || world.has_done(SideEvent::Refuse, at),
        "a violation is reported, but the peer follows the protocol: {reason:?}"
    );
}

/// Checks that a side sends its CloseAck only after the peer's Close has arrived and the side has
/// read the peer's large messages. The check does not apply after a fault.
fn check_close_ack(world: &World, me: &Side) {
    if let State::Open(open) = &me.conn.state
        && open.transfer.control.has_final_frame()
        && !world.is_disturbed()
    {
        let (closed, read) = (
            open.transfer.has_peer_closed(),
            open.transfer.has_read_all(),
        );
        assert!(closed && read, "a close is acknowledged early");
    }
}

/// Checks that no send is still blocked when the connection is ending: the application must have
/// been notified of the end. The check does not apply while the driver holds back messages.
fn check_blocked(me: &Side) {
    if let State::Open(open) = &me.conn.state {
        assert!(
            open.is_established() || me.held > 0 || !open.transfer.is_blocked(),
            "a blocked send is not notified of the end"
        );
    }
}

/// Checks this side's report about the end of the connection: the reason must be correct, and
/// `delivered` may be true only if everything was delivered. If no fault has occurred, `delivered`
/// must be true.
fn check_end(world: &World, at: usize, reason: &CloseReason, delivered: bool) {
    let (me, peer) = (&world.pair.sides[at], &world.pair.sides[1 - at]);
    if delivered {
        assert_eq!(
            me.sent, peer.received,
            "delivered, but messages are missing"
        );
        assert_eq!(
            me.control_sent, peer.control_received,
            "delivered, but control messages are missing"
        );
    }
    match reason {
        CloseReason::PeerClosed => {
            assert_eq!(
                peer.sent, me.received,
                "a clean end, but messages are missing"
            );
            assert_eq!(
                peer.control_sent, me.control_received,
                "a clean end, but control messages are missing"
            );
        }
        CloseReason::Truncated { missing } => assert_eq!(
            u64::from(peer.sent - me.received),
            *missing,
            "the reported number of missing messages is wrong"
        ),
        _ => {}
    }
    check_cause(world, at, reason);
    if !world.is_disturbed() {
        let is_clean = matches!(reason, CloseReason::LocallyClosed | CloseReason::PeerClosed);
        assert!(is_clean, "an undisturbed close ends with {reason:?}");
        assert!(delivered, "an undisturbed close does not confirm delivery");
        assert_eq!(
            peer.sent, me.received,
            "an undisturbed close loses messages"
        );
    }
}

/// Checks that the reported cause of the end has actually occurred.
fn check_cause(world: &World, at: usize, reason: &CloseReason) {
    let (here, there) = (
        |side_event| world.has_done(side_event, at),
        |side_event| world.has_done(side_event, 1 - at),
    );
    let is_closed = world.pair.sides[at].conn.opened();
    let is_closed = is_closed.is_some_and(|open| open.transfer.has_peer_closed());
    let has_happened = match reason {
        CloseReason::LocallyClosed => here(SideEvent::Close) || here(SideEvent::Reject),
        CloseReason::Rejected { data, .. } => there(SideEvent::Reject) && **data == *b"no",
        CloseReason::PeerClosed => there(SideEvent::Close),
        CloseReason::Truncated { missing } => there(SideEvent::Close) && *missing > 0,
        CloseReason::LocallyAborted => here(SideEvent::Abort),
        // The active side sends an Abort with code 0 if its request is unanswered at the deadline.
        CloseReason::PeerAborted(0) | CloseReason::TimedOut(_) => {
            world.has_done(SideEvent::Wait, B)
        }
        CloseReason::PeerAborted(code) => there(SideEvent::Abort) && *code == 3,
        CloseReason::DeviceRemoved => here(SideEvent::Remove),
        CloseReason::WorkRequest { status, .. } if *status == WcStatus::RETRY_EXC_ERR => {
            here(SideEvent::GiveUp) || there(SideEvent::Vanish)
        }
        CloseReason::ProtocolViolation(_) => here(SideEvent::Refuse),
        CloseReason::OutOfMemory(_) => here(SideEvent::LoseMemory),
        CloseReason::PeerOutOfResources => there(SideEvent::LoseMemory),
        CloseReason::ReadTimeout | CloseReason::PeerGaveUp(PeerTimeout::Read) => {
            world.has_done(SideEvent::Wait, A)
        }
        // If the peer has sent its Close, the Close is the cause, even if this side processes the
        // Close after the disconnect.
        CloseReason::PeerDisconnected => world.is_disturbed() && !is_closed,
        _ => false,
    };
    assert!(
        has_happened,
        "the reported cause has not occurred: {reason:?}"
    );
}

/// Checks a side in a quiet state, which only a side event or a mistake can change. In such a
/// state, the side must not wait for anything, and must be able to send.
fn check_quiet(world: &World, at: usize) {
    let (me, peer) = (&world.pair.sides[at], &world.pair.sides[1 - at]);
    let State::Open(open) = &me.conn.state else {
        panic!("stuck: not established");
    };
    assert!(open.is_established(), "stuck: the connection never ends");
    if peer.ended.is_some() {
        assert!(
            world.has_done(SideEvent::Vanish, 1 - at),
            "stuck: the end of the peer is never detected"
        );
        return;
    }
    let is_idle = me.sending.is_empty() && me.unacknowledged.is_empty() && me.reads.is_empty();
    assert!(
        is_idle && me.exposed.is_empty(),
        "stuck: a work request never completes"
    );
    assert!(
        !open.transfer.recv_credit.delays_grant(),
        "stuck: a grant is delayed forever"
    );
    assert_eq!(
        me.control_sent, peer.control_received,
        "stuck: control messages never arrive"
    );
    assert_eq!(
        me.leaves, peer.peer_leaves,
        "stuck: a request to leave never arrives"
    );
    assert!(
        me.conn.control_credit() > 0,
        "stuck: an idle side sends no more control messages"
    );
    if world.has_done(SideEvent::Keep, 1 - at) {
        return;
    }
    assert!(
        me.writable && me.held == 0,
        "stuck: a send is blocked forever"
    );
    assert_eq!(me.sent, peer.received, "stuck: messages never arrive");
    assert_eq!(
        open.transfer.finished, peer.peer_finished,
        "stuck: a finish never arrives"
    );
    let window = u32::from(peer.params.window);
    let available = open.transfer.send_credit.available();
    assert!(
        available > window / 2 || me.shared.is_some(),
        "stuck: {available} of {window} credits are left"
    );
    let next = world.copy().pair.sides[at].conn.may_send(4);
    assert!(
        open.transfer.finished || next.is_ok(),
        "stuck: an idle side sends nothing more: {next:?}"
    );
}
