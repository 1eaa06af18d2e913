//! Reading the peer's large messages, in chunks for which memory is prepared one by one.

use std::time::Instant;

use rdma_status::{OsError, WcStatus};

use super::{
    Connection, State,
    transfer::{Heard, Transfer},
};
use crate::{
    Clock, CloseReason, Event, Output, Read, Work,
    frame::{Control, OUT_OF_RESOURCES, READ_TIMEOUT},
    inbound::Step,
    read_watchdog::Verdict,
    reason::Violation,
};

impl Connection {
    /// Takes the completion of a read, which covers everything that was posted before it.
    pub fn handle_read(&mut self, slot: u32, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            // An answer of the peer's device is a sign of life of its host.
            transfer.activity.here += 1;
            transfer.inbound.chunk_completed(now.now());
            // It came behind all that was posted before.
            transfer.sent(slot, true);
            if transfer.heard != Heard::Nothing {
                self.deliver();
            }
            self.read_on(now);
            self.grant_if_due();
            self.acknowledge_close();
            self.report_writable();
            self.disconnect_if_done(now);
        }
    }

    /// Reads more of the peer's large messages, as far as there are slots and memory, while the
    /// queue pair works.
    pub(super) fn read_on(&mut self, now: impl Clock) {
        let (State::Established | State::Closing(_), Some(transfer)) =
            (&self.state, &mut self.transfer)
        else {
            return;
        };
        while transfer.ring.has_room_for_reads() {
            let idle = !transfer.inbound.is_reading();
            let Some(step) = transfer.inbound.next_step() else {
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
                Step::Begin { .. } | Step::Prepare { .. } => output(step),
            };
            self.outputs.push(output);
        }
    }

    /// Takes notice that the large message of this id has its place in memory.
    pub fn handle_memory(&mut self, id: u32, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.timers.read_watchdog.memory_found();
            transfer.inbound.placed(id);
            self.read_on(now);
        }
    }

    /// Takes notice that memory is ready for the first `len` bytes of the next chunk, or all of it.
    pub fn handle_prepared(&mut self, len: u64, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.timers.read_watchdog.memory_found();
            transfer.inbound.prepared(len);
            self.read_on(now);
        }
    }

    /// Takes the failure of the system to provide what the last [`Output::Begin`] or
    /// [`Output::Prepare`] asked for. The output is repeated later.
    pub fn handle_out_of_memory(&mut self, error: OsError, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            let verdict = transfer.timers.read_watchdog.out_of_memory(error, now);
            self.act_on(verdict, now);
        }
    }

    /// Repeats the output for which there was no memory, as some may have been freed.
    pub fn retry_memory(&mut self) {
        if let (State::Established | State::Closing(_), Some(transfer)) =
            (&self.state, &mut self.transfer)
            && let Some(step) = transfer.inbound.demanded()
        {
            transfer.timers.read_watchdog.retrying();
            self.outputs.push(output(step));
        }
    }

    /// Whether [`handle_timeout`](Self::handle_timeout) judges the pace of reads at this time.
    pub fn judges_reads_at(&self, now: Instant) -> bool {
        let deadline = |transfer: &Transfer| transfer.timers.read_watchdog.deadline();
        let deadline = self.transfer.as_ref().and_then(deadline);
        deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Records whether others wait for the memory of messages that are being read.
    pub fn set_wanted(&mut self, wanted: bool) {
        if let Some(transfer) = &mut self.transfer {
            transfer.is_wanted = wanted;
        }
    }

    /// Acts on the deadlines of reading that have passed.
    pub(super) fn on_reading_timeout(&mut self, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            let (progress, reading) = (transfer.progress(), transfer.inbound.is_reading());
            let verdict = transfer.timers.read_watchdog.check(progress, reading, now);
            self.act_on(verdict, now);
        }
    }

    fn act_on(&mut self, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Fine => {}
            Verdict::Retry => self.retry_memory(),
            Verdict::Stalled => self.notify_and_disconnect(
                CloseReason::ReadTimeout,
                Control::Failure,
                READ_TIMEOUT,
                now,
            ),
            Verdict::OutOfMemory(error) => {
                self.notify_and_disconnect(
                    CloseReason::OutOfMemory(error),
                    Control::Failure,
                    OUT_OF_RESOURCES,
                    now,
                );
            }
        }
    }

    /// Delivers what is next in order, as far as it is complete.
    fn deliver(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            while let Some(arrival) = transfer.inbound.pop() {
                self.outputs.push(Output::Event(Event::Arrived(arrival)));
            }
        }
    }

    /// What a work request that failed means: a violation if it was a read, and the peer's
    /// descriptor named memory that cannot be read.
    pub(super) fn failure_of(&self, work: Work, status: WcStatus, vendor_err: u32) -> CloseReason {
        let transfer = self.transfer.as_ref();
        let rkey = transfer.and_then(|transfer| transfer.inbound.rkey_being_read());
        match (work, status, rkey) {
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

/// Returns the output that asks the driver for this step.
fn output(step: Step) -> Output {
    match step {
        Step::Begin { id, len } => Output::Begin { id, len },
        Step::Prepare { id, offset, len } => Output::Prepare { id, offset, len },
        Step::Read(read) => Output::Read(read),
    }
}
