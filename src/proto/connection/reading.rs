//! Reading the peer's large messages: piece by piece, each into memory that is made ready for it.

use std::time::Instant;

use super::{Connection, State};
use crate::{
    proto::{
        Clock, CloseReason, Event, Output, Read, Work,
        frame::{Control, OUT_OF_RESOURCES},
        inbound::Step,
        patience::Look,
        reason::Violation,
    },
    status::{OsError, WcStatus},
};

impl Connection {
    /// A read of a piece of a large message completed, and with it everything that was posted
    /// before it.
    pub(crate) fn handle_read(&mut self, slot: u32, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            // What the peer's device answers is a sign of life of its host.
            transfer.heard.here += 1;
            transfer.inbound.piece_came(now.now());
            transfer.sent(slot);
            if !transfer.deaf {
                self.deliver();
            }
            self.read_on(now);
            self.grant_if_due();
            self.acknowledge_close();
            self.tell_writable();
            self.on_goodbye(now);
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
                Step::Read(piece) => {
                    if idle {
                        transfer.inbound.reading_begins(now.now());
                    }
                    if !transfer.patience.is_watching() {
                        let pieces = transfer.pieces();
                        transfer.patience.reading(pieces, now.now());
                    }
                    let (slot, _) = transfer.ring.take(true);
                    Output::Read(Read { slot, ..piece })
                }
                Step::Begin { .. } | Step::Prepare { .. } => ask(step),
            };
            self.outputs.push(output);
        }
    }

    /// The large message of this id has its place in memory.
    pub(crate) fn handle_memory(&mut self, id: u32, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.patience.fed();
            transfer.inbound.placed(id);
            self.read_on(now);
        }
    }

    /// Memory is ready for the next piece, or for the first `len` bytes of it.
    pub(crate) fn handle_prepared(&mut self, len: u64, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.patience.fed();
            transfer.inbound.prepared(len);
            self.read_on(now);
        }
    }

    /// The system has no memory for what the last [`Output::Begin`] or [`Output::Prepare`] asked
    /// for, which may pass: it is asked again.
    pub(crate) fn handle_out_of_memory(&mut self, error: OsError, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            let look = transfer.patience.starve(error, now);
            self.act_on(look, now);
        }
    }

    /// There may be memory now for what was asked for.
    pub(crate) fn ask_again(&mut self) {
        if let (State::Established | State::Closing(_), Some(transfer)) =
            (&self.state, &mut self.transfer)
            && let Some(step) = transfer.inbound.demanded()
        {
            transfer.patience.retrying();
            self.outputs.push(ask(step));
        }
    }

    /// A deadline of reading may be past.
    pub(super) fn on_reading_timeout(&mut self, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            let (pieces, reading) = (transfer.pieces(), transfer.inbound.is_reading());
            let look = transfer.patience.look(pieces, reading, now);
            self.act_on(look, now);
        }
    }

    fn act_on(&mut self, look: Look, now: Instant) {
        match look {
            Look::Fine => {}
            Look::Retry => self.ask_again(),
            Look::Stalled => self.fail(CloseReason::ReadTimeout, now),
            Look::Starved(error) => {
                self.say_and_leave(
                    CloseReason::OutOfMemory(error),
                    Control::Failure,
                    OUT_OF_RESOURCES,
                    now,
                );
            }
        }
    }

    /// Delivers what is next, as far as it is complete.
    fn deliver(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            while let Some(arrival) = transfer.inbound.pop() {
                self.outputs.push(Output::Event(Event::Arrived(arrival)));
            }
        }
    }

    /// Whether a failed read is the peer's doing: its descriptor named memory that is not there to
    /// be read.
    pub(super) fn forgery(&self, work: Work, status: WcStatus) -> Option<CloseReason> {
        let (Work::Read { .. }, WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR) =
            (work, status)
        else {
            return None;
        };
        let rkey = self.transfer.as_ref()?.inbound.rkey_being_read()?;
        Some(CloseReason::ProtocolViolation(Violation::new(
            "rkey",
            rkey.into(),
            "the key of memory that holds the large message",
        )))
    }
}

/// What the driver is to do for this.
fn ask(step: Step) -> Output {
    match step {
        Step::Begin { id, len } => Output::Begin { id, len },
        Step::Prepare { id, offset, len } => Output::Prepare { id, offset, len },
        Step::Read(read) => Output::Read(read),
    }
}
