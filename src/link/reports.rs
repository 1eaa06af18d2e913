//! Reports events to the application: completions of sends and operations, and room for a send. The
//! reports go to the connection's queue or, if the connection is in a group, to the group's queue.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use log::Level;

use super::{
    completion::Completion,
    core::SystemClock,
    deferred::{Deferred, DeferredAction},
    destination::{Destination, GroupQueue},
    inbox::Inlet,
    sent_order::{CompletedSend, SentOrder, Unproven},
};
use crate::{
    error::Error,
    proto::{CloseReason, Connection, Note, Work},
    status::WcStatus,
    transport::{Operation, OperationKind, Outcome, Posted, WorkQueues},
};

/// The reports of a connection to its application.
pub(crate) struct Reports {
    /// The destination of completions. `None` after the end of the connection, or after the last
    /// handle was dropped. Unread messages in the queue own references to the link. If the link
    /// kept the queue after the end, the link would never be freed.
    pub(crate) destination: Option<Destination>,
    /// The destination of [`Completion::Disconnected`], from the end of the connection until the
    /// link has put this completion into the queue.
    pub(super) last_destination: Option<Destination>,
    /// The unconfirmed messages, which determine the order of `Sent` completions.
    pub(super) order: SentOrder,
    /// Sends and writes that the device has completed, but whose arrival at the peer is not yet
    /// proven.
    pub(super) unproven: Unproven,
    /// Whether [`Completion::Room`] is pending after a refused send.
    pub(super) room_wanted: bool,
    /// The number of completions that `recv` took from the queue and set aside for later calls.
    set_aside: Arc<AtomicUsize>,
    /// The maximum number of operations with ids that are in flight, or reported but not yet taken.
    max_ids: usize,
}

/// Handles completed work requests.
impl Reports {
    pub(super) fn new(completions: Inlet, set_aside: Arc<AtomicUsize>, max_ids: usize) -> Self {
        Self {
            destination: Some(Destination::new(completions)),
            last_destination: None,
            order: SentOrder::default(),
            unproven: Unproven::default(),
            room_wanted: false,
            set_aside,
            max_ids,
        }
    }

    /// Handles the completion of the work request in this slot and of all earlier ones.
    #[inline]
    pub(super) fn sent(
        &mut self,
        slot: u32,
        queues: &mut WorkQueues,
        conn: &mut Connection,
        deferred: &mut Deferred,
    ) {
        let in_flight = &mut queues.in_flight;
        if in_flight.slots.complete_frames(slot) {
            return conn.handle_sent(slot, SystemClock);
        }
        in_flight.slots.complete(slot);
        let mut wake = false;
        let mut last = None;
        while let Some((slot, posted)) = in_flight.slots.pop_done() {
            wake |= self.succeed(&posted, conn);
            last = Some(slot);
            if let Posted::ReadChunk { id, offset } = posted {
                if let Some(inbound) = in_flight.inbound(id) {
                    inbound.chunk_read(offset);
                }
                // `handle_read` also covers all sends that completed before this read.
                conn.handle_read(slot, SystemClock);
                last = None;
            }
        }
        wake |= self.report_sent();
        deferred.wake |= wake;
        deferred.arrived |= wake;
        if let Some(slot) = last {
            conn.handle_sent(slot, SystemClock);
        }
    }

    /// Handles the failure of the work request in this slot. Work requests posted before it have
    /// completed; those posted after it complete as flushed. `has_session` is true if the
    /// connection may resume.
    pub(super) fn send_failed(
        &mut self,
        (slot, status, vendor_err): (u32, WcStatus, u32),
        has_session: bool,
        queues: &mut WorkQueues,
        conn: &mut Connection,
        deferred: &mut Deferred,
    ) {
        let mut work = Work::Send { slot };
        let status = match status {
            // The peer or the TCP connection has ended. Drivers that complete a request as soon as
            // TCP has accepted its bytes may report this end as a local error. The connection
            // manager's event reports the cause.
            WcStatus::LOC_QP_OP_ERR if !conn.acknowledges_sends() => {
                let text = format_args!("the driver could not pass a request to TCP: {status}");
                deferred.log(Note::new(Level::Debug, text));
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
                self.succeed(&posted, conn);
            }
            // If the session survives, it resends its messages. If it ends, `end` reports their
            // failure.
            let may_survive = has_session && reason.is_loss();
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
            self.report_sent();
            if let Some(failed) = failed {
                self.report(failed);
            }
            deferred.wake = true;
            deferred.arrived = true;
        }
        conn.handle_work_error(work, status, vendor_err, SystemClock);
    }

    /// Reports messages and writes whose arrival was not proven before. If `all` is true, reports
    /// all of them: the caller knows that they have arrived. If `all` is false, reports only those
    /// whose arrival a pong now proves.
    pub(super) fn prove(&mut self, all: bool, conn: &Connection, deferred: &mut Deferred) {
        let mut any = false;
        while let Some(gone) = self
            .unproven
            .pop(|proof| all || proof.is_some_and(|proof| conn.has_proof(proof)))
        {
            any |= self.arrived(gone);
        }
        any |= self.report_sent();
        deferred.arrived |= any;
    }

    /// Reports `count` more large messages as sent. Their memory is no longer exposed to the peer.
    pub(super) fn hidden(&mut self, count: u32, deferred: &mut Deferred) {
        self.order.take(count);
        deferred.arrived |= self.report_sent();
        deferred.wake = true;
    }

    /// Handles a successful work request. Returns whether a completion was reported.
    fn succeed(&mut self, posted: &Posted, conn: &mut Connection) -> bool {
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
            Some(gone) if conn.acknowledges_sends() => self.arrived(gone),
            Some(gone) => {
                self.unproven.put(conn.prove_arrival(), gone);
                false
            }
            None => {
                // A read or an atomic operation has succeeded. Its response proves that all earlier
                // messages and writes have arrived.
                let mut any = false;
                while let Some(gone) = self.unproven.take() {
                    any |= self.arrived(gone);
                }
                any | answer.is_some_and(|answer| self.report(answer))
            }
        }
    }

    /// Handles the arrival of a message or write at the peer. Returns whether a completion was
    /// reported.
    fn arrived(&mut self, gone: CompletedSend) -> bool {
        match gone {
            CompletedSend::Message => {
                self.order.acknowledge();
                false
            }
            CompletedSend::Write(id) => self.report(Completion::Written(id)),
        }
    }

    /// Reports the messages that are known to have arrived. Returns whether any message was
    /// reported.
    fn report_sent(&mut self) -> bool {
        let mut any = false;
        while let Some(id) = self.order.next_sent() {
            any |= self.report(Completion::Sent(id));
        }
        any
    }

    /// Reports the failure of a message or operation, if it has an id.
    pub(super) fn report_failed(&mut self, id: Option<u64>, reason: &CloseReason) {
        if let Some(id) = id {
            let reason = reason.clone();
            self.report(Completion::Failed { id, reason });
        }
    }

    /// Reports the completion of a message or operation. Does nothing and returns false if the
    /// connection has ended.
    pub(super) fn report(&mut self, completion: Completion) -> bool {
        let Some(destination) = &mut self.destination else {
            return false;
        };
        // `put` fails if the application has dropped the receiver, which is not an error here.
        let _ = destination.put(completion);
        true
    }
}

/// Completions that the application has not taken, groups, and room.
impl Reports {
    /// Returns true if one more message or operation with an id fits within `max_ids`.
    pub(super) fn has_slot(&mut self, queues: &WorkQueues) -> bool {
        let Some(destination) = &mut self.destination else {
            // The connection has ended. The caller's next step detects this.
            return true;
        };
        let ids = queues.in_flight.slots.operations() + self.unproven.writes() + self.order.ids();
        ids + destination.reports() + self.set_aside.load(Ordering::Relaxed) < self.max_ids
    }

    /// Returns true if the application has not yet taken a completion that has an id or that `recv`
    /// has set aside.
    pub(super) fn are_untaken(&mut self) -> bool {
        let reports = self.destination.as_mut().map_or(0, Destination::reports);
        reports + self.set_aside.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_grouped(&self) -> bool {
        self.destination
            .as_ref()
            .is_some_and(Destination::is_grouped)
    }

    /// Moves the `unread` completions to a group, and redirects later ones to it. `reason` is the
    /// reason for the end, if the connection has ended.
    pub(super) fn join(
        &mut self,
        queue: &Arc<GroupQueue>,
        (key, connection): (u64, u64),
        mut unread: impl FnMut() -> Option<Completion>,
        reason: CloseReason,
        deferred: &mut Deferred,
    ) -> Result<(), Error> {
        if let Some(destination) = &mut self.destination {
            if destination.is_grouped() {
                return Err(Error::Grouped);
            }
            destination.join(queue, key, connection);
            self.put_all(unread, deferred);
            return Ok(());
        }
        // The connection has ended. Only completions from before its end can follow.
        let Some(first) = unread() else {
            return Err(Error::Disconnected(reason));
        };
        for completion in iter::once(first).chain(iter::from_fn(unread)) {
            if let Err(refused) = queue.put(key, completion) {
                deferred.later.push(DeferredAction::Drop(refused));
            }
        }
        Ok(())
    }

    pub(super) fn put_all(
        &mut self,
        unread: impl FnMut() -> Option<Completion>,
        deferred: &mut Deferred,
    ) {
        for completion in iter::from_fn(unread) {
            let Some(destination) = &mut self.destination else {
                deferred.later.push(DeferredAction::Drop(completion));
                continue;
            };
            match completion {
                Completion::Room => drop(destination.put_room()),
                Completion::Suspended { .. } | Completion::Resumed { .. } => {
                    destination.put_session_event(completion);
                }
                completion => {
                    let refused = destination.put(completion).err();
                    deferred.later.extend(refused.map(DeferredAction::Drop));
                }
            }
        }
    }

    /// Puts [`Completion::Room`] into the queue if the application has requested it.
    pub(super) fn report_room(&mut self, deferred: &mut Deferred) {
        if std::mem::take(&mut self.room_wanted)
            && let Some(destination) = &mut self.destination
            && destination.put_room()
        {
            deferred.arrived = true;
            deferred.wake = true;
        }
    }

    /// Reports that the connection of a session was lost, or that the session has a new connection.
    pub(super) fn report_session_event(&mut self, completion: Completion, deferred: &mut Deferred) {
        let destination = self.destination.as_mut();
        deferred.arrived |=
            destination.is_some_and(|destination| destination.put_session_event(completion));
        deferred.wake = true;
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
