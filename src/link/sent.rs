//! What has become of what was posted, and what the application is told of it.

use log::Level;

use super::{
    core::{Core, SystemClock},
    reports::{arrived, report_failed, report_sent, succeed},
};
use crate::{
    proto::{CloseReason, Note, Work},
    status::WcStatus,
    transport::Posted,
};

impl Core {
    /// The device is done with this slot, and with those that were posted before it.
    pub(super) fn sent(&mut self, slot: u32) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        let in_flight = &mut queues.in_flight;
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
                // That tells of all before it as well.
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

    /// The device failed the work request in this slot. Those posted before it are done; those
    /// posted after it come back flushed.
    pub(super) fn send_failed(&mut self, slot: u32, status: WcStatus, vendor_err: u32) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        let mut work = Work::Send { slot };
        let status = match status {
            // The peer ended, or TCP did: to a driver that is done with a request when TCP has it,
            // that is an error of this side. The connection manager's event says why.
            WcStatus::LOC_QP_OP_ERR if !self.conn.acknowledges_sends() => {
                let text = format_args!("a request could not be put into TCP: {status}");
                self.deferred.log(Note::new(Level::Debug, text));
                WcStatus::WR_FLUSH_ERR
            }
            status => status,
        };
        // Flushed requests say nothing of their end: they may even have been carried out.
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
            let id = match slots.take(slot) {
                Posted::Frame => None,
                Posted::Message => self.order.fail(self.unproven.messages()),
                Posted::Operation(operation) => Some(operation.id),
                Posted::ReadChunk { .. } => {
                    work = Work::Read { slot };
                    None
                }
            };
            report_sent(&mut self.order, &mut self.completions);
            report_failed(id, &reason, &mut self.completions);
            self.deferred.wake = true;
            self.deferred.arrived = true;
        }
        self.conn
            .handle_work_error(work, status, vendor_err, SystemClock);
    }

    /// Tells the application of what is known to have arrived: what came before a pong, or `all`.
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

    /// The peer has read `count` more large messages.
    pub(super) fn taken(&mut self, count: u32) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        // Before it is told: what is said to be sent cannot be read any more.
        queues.in_flight.taken(count);
        self.order.take(count);
        self.deferred.arrived |= report_sent(&mut self.order, &mut self.completions);
        self.deferred.wake = true;
    }
}
