//! Reports events to the application: completions of sends and operations, and room for a send. The
//! reports go to the connection's queue or, if the connection is in a group, to the group's queue.

use std::{
    iter,
    sync::{Arc, atomic::Ordering},
};

use log::Level;

use super::{
    completion::Completion,
    core::{Core, SystemClock},
    deferred::DeferredAction,
    outbox::{GroupQueue, Outbox},
    sent_order::{CompletedSend, SentOrder, Unproven},
};
use crate::{
    error::Error,
    proto::{CloseReason, Connection, Note, Work},
    status::WcStatus,
    transport::{Operation, OperationKind, Outcome, Posted},
};

/// Handles completed work requests.
impl Core {
    /// Makes the engine's thread handle a connection request whose private data have arrived in a
    /// separate frame.
    pub(super) fn requested(&mut self) {
        self.requested = true;
        self.deferred.drive = true;
    }

    /// Handles the completion of the work request in this slot and of all earlier ones.
    pub(super) fn sent(&mut self, slot: u32) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        let in_flight = &mut queues.in_flight;
        if in_flight.slots.complete_frames(slot) {
            return self.conn.handle_sent(slot, SystemClock);
        }
        in_flight.slots.complete(slot);
        let mut wake = false;
        let mut last = None;
        while let Some((slot, posted)) = in_flight.slots.pop_done() {
            wake |= succeed(
                &posted,
                &mut self.conn,
                &mut self.order,
                &mut self.unproven,
                &mut self.completions,
            );
            last = Some(slot);
            if let Posted::ReadChunk { id, offset } = posted {
                if let Some(inbound) = in_flight.inbound(id) {
                    inbound.chunk_read(offset);
                }
                // `handle_read` also covers all sends that completed before this read.
                self.conn.handle_read(slot, SystemClock);
                last = None;
            }
        }
        wake |= report_sent(&mut self.order, &mut self.completions);
        self.deferred.wake |= wake;
        self.deferred.arrived |= wake;
        if let Some(slot) = last {
            self.conn.handle_sent(slot, SystemClock);
        }
    }

    /// Handles the failure of the work request in this slot. Work requests posted before it have
    /// completed; those posted after it complete as flushed.
    pub(super) fn send_failed(&mut self, slot: u32, status: WcStatus, vendor_err: u32) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        let mut work = Work::Send { slot };
        let status = match status {
            // The peer or the TCP connection has ended. Drivers that complete a request as soon as
            // TCP has accepted its bytes may report this end as a local error. The connection
            // manager's event reports the cause.
            WcStatus::LOC_QP_OP_ERR if !self.conn.acknowledges_sends() => {
                let text = format_args!("the driver could not pass a request to TCP: {status}");
                self.deferred.log(Note::new(Level::Debug, text));
                WcStatus::WR_FLUSH_ERR
            }
            status => status,
        };
        // A flushed completion does not contain the cause of the failure, and the device may have
        // executed the request anyway. The outcome is therefore reported only when the connection
        // ends or its session is suspended.
        if status != WcStatus::WR_FLUSH_ERR {
            let reason = CloseReason::WorkRequest { status, vendor_err };
            let slots = &mut queues.in_flight.slots;
            slots.fail(slot);
            while let Some((_, posted)) = slots.pop_done() {
                succeed(
                    &posted,
                    &mut self.conn,
                    &mut self.order,
                    &mut self.unproven,
                    &mut self.completions,
                );
            }
            // If the session survives, it resends its messages. If it ends, `end` reports their
            // failure.
            let may_survive = self.session.is_some() && reason.is_loss();
            let failed = match slots.take(slot) {
                Posted::Frame => None,
                Posted::Message if may_survive => None,
                Posted::Message => {
                    let id = self.order.fail(self.unproven.messages());
                    id.map(|id| Completion::Failed { id, reason })
                }
                Posted::Operation(operation) => Some(operation.lost(may_survive, &reason)),
                Posted::ReadChunk { .. } => {
                    work = Work::Read { slot };
                    None
                }
            };
            report_sent(&mut self.order, &mut self.completions);
            if let Some(failed) = failed {
                report(&mut self.completions, failed);
            }
            self.deferred.wake = true;
            self.deferred.arrived = true;
        }
        self.conn
            .handle_work_error(work, status, vendor_err, SystemClock);
    }

    /// Reports messages and writes whose arrival was not proven before. If `all` is true, reports
    /// all of them: the caller knows that they have arrived. If `all` is false, reports only those
    /// whose arrival a pong now proves.
    pub(super) fn prove(&mut self, all: bool) {
        let conn = &self.conn;
        let mut any = false;
        while let Some(gone) = self
            .unproven
            .pop(|proof| all || proof.is_some_and(|proof| conn.has_proof(proof)))
        {
            any |= arrived(gone, &mut self.order, &mut self.completions);
        }
        any |= report_sent(&mut self.order, &mut self.completions);
        self.deferred.arrived |= any;
    }

    /// Ends the exposure of `count` more large messages, which the peer has read.
    pub(super) fn taken(&mut self, count: u32) {
        if let Some(queues) = &mut self.queues {
            let hidden = queues.taken(count);
            self.hidden(hidden);
        }
    }

    /// Handles the completion of the oldest pending invalidation of a memory window.
    pub(super) fn invalidated(&mut self) {
        if let Some(queues) = &mut self.queues {
            let hidden = queues.invalidated();
            self.hidden(hidden);
        }
    }

    /// Ends all exposures at the end of the connection. Reports the large messages that the peer
    /// has read.
    pub(super) fn end_exposures(&mut self) {
        if let Some(queues) = &mut self.queues {
            let hidden = queues.end_exposures();
            self.hidden(hidden);
        }
    }

    /// Reports `count` more large messages as sent. Their memory is no longer exposed to the peer.
    fn hidden(&mut self, count: u32) {
        self.order.take(count);
        self.deferred.arrived |= report_sent(&mut self.order, &mut self.completions);
        self.deferred.wake = true;
    }
}

/// Functions for completions that the application has not taken, for groups, and for room.
impl Core {
    /// Returns true if one more message or operation with an id fits within `max_ids`.
    pub(crate) fn has_report_slot(&mut self) -> bool {
        let (Some(queues), Some(completions)) = (&self.queues, &mut self.completions) else {
            // The connection has ended. The caller's next step detects this.
            return true;
        };
        let ids = queues.in_flight.slots.operations() + self.unproven.writes() + self.order.ids();
        ids + completions.reports() + self.set_aside.load(Ordering::Relaxed) < self.max_ids
    }

    /// Returns true if the application has not yet taken a completion that has an id or that `recv`
    /// has set aside.
    pub(super) fn has_reports(&mut self) -> bool {
        let reports = self.completions.as_mut().map_or(0, Outbox::reports);
        reports + self.set_aside.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_grouped(&self) -> bool {
        let outbox = self.completions.as_ref();
        outbox.is_some_and(|outbox| outbox.is_grouped())
    }

    pub(super) fn join(
        &mut self,
        queue: &Arc<GroupQueue>,
        (key, connection): (u64, u64),
        mut unread: impl FnMut() -> Option<Completion>,
    ) -> Result<(), Error> {
        if let Some(outbox) = &mut self.completions {
            if outbox.is_grouped() {
                return Err(Error::Grouped);
            }
            outbox.join(queue, key, connection);
            self.put_all(unread);
            return Ok(());
        }
        // The connection has ended. Only completions from before its end can follow.
        let Some(first) = unread() else {
            return Err(Error::Disconnected(self.reason()));
        };
        for completion in iter::once(first).chain(iter::from_fn(unread)) {
            if let Err(refused) = queue.put(key, completion) {
                self.deferred.later.push(DeferredAction::Drop(refused));
            }
        }
        Ok(())
    }

    pub(super) fn put_all(&mut self, unread: impl FnMut() -> Option<Completion>) {
        for completion in iter::from_fn(unread) {
            let Some(outbox) = &mut self.completions else {
                self.deferred.later.push(DeferredAction::Drop(completion));
                continue;
            };
            match completion {
                Completion::Room => drop(outbox.put_room()),
                Completion::Suspended { .. } | Completion::Resumed { .. } => {
                    outbox.put_session_event(completion);
                }
                completion => {
                    let refused = outbox.put(completion).err();
                    self.deferred
                        .later
                        .extend(refused.map(DeferredAction::Drop));
                }
            }
        }
    }

    /// Puts [`Completion::Room`] into the queue if the application has requested it.
    pub(super) fn report_room(&mut self) {
        if std::mem::take(&mut self.room_wanted)
            && let Some(outbox) = &mut self.completions
            && outbox.put_room()
        {
            self.deferred.arrived = true;
            self.deferred.wake = true;
        }
    }
}

/// Reports of sessions.
impl Core {
    /// Reports that the connection of a session was lost, or that the session has a new connection.
    pub(super) fn report_session_event(&mut self, completion: Completion) {
        let outbox = self.completions.as_mut();
        self.deferred.arrived |= outbox.is_some_and(|outbox| outbox.put_session_event(completion));
        self.deferred.wake = true;
    }
}

impl Operation {
    /// Returns the completion for an operation that the device did not complete. If the session may
    /// survive, the outcome of writes and atomic operations is reported as unknown, because the
    /// device may have executed them.
    pub(super) fn lost(&self, may_survive: bool, reason: &CloseReason) -> Completion {
        let (id, reason) = (self.id, reason.clone());
        match self.kind {
            OperationKind::Write | OperationKind::Atomic { .. } if may_survive => {
                Completion::OutcomeUnknown { id, reason }
            }
            OperationKind::Read | OperationKind::Write | OperationKind::Atomic { .. } => {
                Completion::Failed { id, reason }
            }
        }
    }
}

/// Handles a successful work request. Returns whether a completion was reported to the application.
fn succeed(
    posted: &Posted,
    conn: &mut Connection,
    order: &mut SentOrder,
    unproven: &mut Unproven,
    completions: &mut Option<Outbox>,
) -> bool {
    let (gone, answer) = match posted {
        Posted::Frame => return false,
        Posted::Message => (Some(CompletedSend::Message), None),
        Posted::ReadChunk { .. } => (None, None),
        Posted::Operation(operation) => {
            let id = operation.id;
            match operation.outcome() {
                Outcome::Written => (Some(CompletedSend::Write(id)), None),
                Outcome::Read => (None, Some(Completion::Read(id))),
                Outcome::Fetched(value) => (None, Some(Completion::Fetched { id, value })),
            }
        }
    };
    match gone {
        Some(gone) if conn.acknowledges_sends() => arrived(gone, order, completions),
        Some(gone) => {
            unproven.put(conn.prove_arrival(), gone);
            false
        }
        None => {
            // A read or an atomic operation has succeeded. The response of the peer's device proves
            // that all earlier messages and writes have arrived.
            let mut any = false;
            while let Some(gone) = unproven.take() {
                any |= arrived(gone, order, completions);
            }
            any | answer.is_some_and(|answer| report(completions, answer))
        }
    }
}

/// Handles the arrival of a message or write at the peer. Returns whether a completion was reported
/// to the application.
fn arrived(gone: CompletedSend, order: &mut SentOrder, completions: &mut Option<Outbox>) -> bool {
    match gone {
        CompletedSend::Message => {
            order.acknowledge();
            false
        }
        CompletedSend::Write(id) => report(completions, Completion::Written(id)),
    }
}

/// Reports the messages that are known to have arrived. Returns whether any message was reported.
fn report_sent(order: &mut SentOrder, completions: &mut Option<Outbox>) -> bool {
    let mut any = false;
    while let Some(id) = order.next_sent() {
        any |= report(completions, Completion::Sent(id));
    }
    any
}

/// Reports the failure of a message or operation, if it has an id.
pub(super) fn report_failed(
    id: Option<u64>,
    reason: &CloseReason,
    completions: &mut Option<Outbox>,
) {
    if let Some(id) = id {
        let reason = reason.clone();
        report(completions, Completion::Failed { id, reason });
    }
}

/// Reports the completion of a message or operation. Does nothing and returns false if the
/// connection has ended.
pub(super) fn report(completions: &mut Option<Outbox>, completion: Completion) -> bool {
    let Some(completions) = completions else {
        return false;
    };
    // `put` fails if the application has dropped the receiver, which is not an error here.
    let _ = completions.put(completion);
    true
}
