//! Reads the peer's large messages in chunks. The memory of each chunk is prepared separately.

use std::time::Instant;

use rdma_status::{OsError, WcStatus};

use super::{open::Open, side::Side, transfer::Accepts};
use crate::{
    Clock, CloseReason, Event, Output, Read, Work,
    frame::{Control, OUT_OF_RESOURCES, READ_TIMEOUT},
    inbound::Step,
    read_watchdog::Verdict,
    reason::Violation,
};

impl Open {
    /// Handles the completion of a read. Everything that was posted earlier has completed too.
    pub(super) fn on_read(&mut self, side: &mut Side, slot: u32, now: impl Clock) {
        let transfer = &mut self.transfer;
        // The completion is a sign of life from the peer's host.
        transfer.activity.on_connection += 1;
        transfer.inbound.chunk_completed(now.now());
        // The completion also frees the slots of all earlier work requests.
        transfer.sent(slot, true);
        if transfer.accepts != Accepts::Nothing {
            self.deliver(side);
        }
        self.read_on(side, now);
        self.grant_if_due(side);
        self.acknowledge_close(side);
        self.report_writable(side);
        self.disconnect_if_done(side, now);
    }

    /// Requests memory for large messages. Posts reads of these messages while slots and memory are
    /// available and the queue pair works. Copies fragments that have arrived, even after the queue
    /// pair has failed.
    pub(super) fn read_on(&mut self, side: &mut Side, now: impl Clock) {
        let is_connected = self.is_connected();
        let transfer = &mut self.transfer;
        loop {
            let idle = !transfer.inbound.is_reading();
            let has_slot = is_connected && transfer.ring.has_room_for_reads();
            let Some(step) = transfer.inbound.next_step(has_slot) else {
                return;
            };
            let output = match step {
                Step::Read(chunk) => {
                    if idle {
                        transfer.inbound.reads_begin(now.now());
                    }
                    if !transfer.timers.read_watchdog.is_watching() {
                        let seen = transfer.progress();
                        transfer.timers.read_watchdog.read_posted(seen, now.now());
                    }
                    let (slot, _) = transfer.ring.take(true);
                    Output::Read(Read { slot, ..chunk })
                }
                Step::Begin { .. } | Step::Prepare { .. } | Step::Copy(_) => output(step),
            };
            side.outputs.push(output);
        }
    }

    /// Records that a fragment has been copied, and frees its receive.
    pub(super) fn on_copied(&mut self, side: &mut Side, now: impl Clock) {
        let Some(buffer) = self.transfer.inbound.fragment_copied() else {
            return;
        };
        self.discard_receive(side, buffer);
        self.watch_fragments(now);
        if self.transfer.accepts != Accepts::Nothing {
            self.deliver(side);
        }
        self.read_on(side, now);
        self.acknowledge_close(side);
        self.disconnect_if_done(side, now);
    }

    /// Starts the read watchdog if fragments of a message are missing, because the peer must send
    /// these fragments within a limited time. Has no effect if the watchdog is already active.
    pub(super) fn watch_fragments(&mut self, now: impl Clock) {
        let transfer = &mut self.transfer;
        if transfer.inbound.missing().is_some() && transfer.timers.read_watchdog.is_off() {
            let seen = transfer.progress();
            transfer.timers.read_watchdog.read_posted(seen, now.now());
        }
    }

    pub(super) fn on_out_of_memory(&mut self, side: &mut Side, error: OsError, now: Instant) {
        let watchdog = &mut self.transfer.timers.read_watchdog;
        let verdict = watchdog.out_of_memory(error, now);
        self.act_on(side, verdict, now);
    }

    /// Repeats the output that failed because no memory was available. Called when the read
    /// watchdog demands a retry, and when other connections might have released memory.
    pub(super) fn retry_memory(&mut self, side: &mut Side) {
        let is_connected = self.is_connected();
        if let Some(step) = self.transfer.inbound.pending_step()
            && (is_connected || matches!(step, Step::Copy(_)))
        {
            self.transfer.timers.read_watchdog.retrying();
            side.outputs.push(output(step));
        }
    }

    /// Returns whether a call of [`on_timeout`](Self::on_timeout) at the time `now` would check the
    /// progress of reads.
    pub(super) fn judges_reads_at(&self, now: Instant) -> bool {
        let deadline = self.transfer.timers.read_watchdog.deadline();
        deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Checks the progress of reads, if the deadline of the read watchdog has passed.
    pub(super) fn on_reading_timeout(&mut self, side: &mut Side, now: Instant) {
        let transfer = &mut self.transfer;
        let (progress, reading) = (transfer.progress(), transfer.inbound.awaits_bytes());
        let verdict = transfer.timers.read_watchdog.check(progress, reading, now);
        self.act_on(side, verdict, now);
    }

    fn act_on(&mut self, side: &mut Side, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Fine => {}
            Verdict::Retry => self.retry_memory(side),
            Verdict::Stalled => self.notify_and_disconnect(
                side,
                CloseReason::ReadTimeout,
                Control::Failure,
                READ_TIMEOUT,
                now,
            ),
            Verdict::OutOfMemory(error) => {
                self.notify_and_disconnect(
                    side,
                    CloseReason::OutOfMemory(error),
                    Control::Failure,
                    OUT_OF_RESOURCES,
                    now,
                );
            }
        }
    }

    /// Delivers the next messages in order, up to the first incomplete message.
    fn deliver(&mut self, side: &mut Side) {
        while let Some(arrival) = self.transfer.inbound.pop() {
            side.outputs.push(Output::Event(Event::Arrived(arrival)));
        }
    }

    /// Returns the reason for the end after a work request has failed. The reason is a protocol
    /// violation if the work request was a READ and the peer's device refused access to the memory
    /// that the peer's descriptor names.
    pub(super) fn failure_of(&self, work: Work, status: WcStatus, vendor_err: u32) -> CloseReason {
        match (work, status, self.transfer.inbound.rkey_being_read()) {
            (
                Work::Read { .. },
                WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR,
                Some(rkey),
            ) => CloseReason::ProtocolViolation(Violation::new(
                "rkey",
                rkey.into(),
                "the key of memory that holds the large message",
            )),
            _ => CloseReason::WorkRequest { status, vendor_err },
        }
    }
}

/// Returns the output that asks the driver to perform this step.
fn output(step: Step) -> Output {
    match step {
        Step::Begin { id, len } => Output::Begin { id, len },
        Step::Prepare { id, offset, len } => Output::Prepare { id, offset, len },
        Step::Read(read) => Output::Read(read),
        Step::Copy(copy) => Output::Copy(copy),
    }
}
