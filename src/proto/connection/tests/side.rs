//! One side of a [`Pair`](super::pair::Pair).

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use crate::{
    proto::{
        CONTROL_RECEIVES, CONTROL_SENDS, CloseReason, Connection, DrainSide, Params, Transmit,
        Work, frame::Kind,
    },
    status::WcStatus,
};

/// Something the device reports.
#[derive(Debug)]
pub(super) enum Completion {
    Recv { buffer: u32, frame: Vec<u8> },
    Sent { slot: u32 },
    Failed(Work, WcStatus),
    Drained(DrainSide),
}

/// Something the connection manager reports.
#[derive(Debug, Clone)]
pub(super) enum Cm {
    AddrResolved,
    RouteResolved,
    Established(Vec<u8>),
    Disconnected,
    DeviceRemoval,
}

/// A frame on its way, with what its sender is to learn of it.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) slot: u32,
    pub(super) signalled: bool,
    pub(super) frame: Vec<u8>,
}

/// One side: its connection, its device and its application.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) conn: Connection,
    pub(super) params: Params,
    /// Receives that the device has.
    pub(super) posted: VecDeque<u32>,
    /// Sends that the device has: the front is next on the wire.
    pub(super) sending: VecDeque<InFlight>,
    /// Sends that have arrived, which this side's device has not been told yet. Answers to them may come earlier than that.
    pub(super) unacknowledged: VecDeque<InFlight>,
    /// Slots whose sends are not known to have completed, oldest first.
    pub(super) slots: VecDeque<u32>,
    pub(super) cq: VecDeque<Completion>,
    pub(super) cm: VecDeque<Cm>,
    /// What the device wrote into the buffers.
    pub(super) buffers: HashMap<u32, Vec<u8>>,
    /// Whether the queue pair is in its error state.
    pub(super) broken: bool,
    /// Whether the connection manager has said, or will say, that the connection is down.
    pub(super) disconnected: bool,
    /// Whether nobody looks at what this side is told any more.
    pub(super) killed: bool,
    /// Whether the device is there no more.
    pub(super) removed: bool,
    /// The deadline, as the connection told of it last.
    pub(super) timer: Option<Instant>,
    /// Whether the connection was handed to the application.
    pub(super) established: bool,
    /// Numbers of the messages sent.
    pub(super) sent: u32,
    /// Messages the application has not let go of: buffers.
    pub(super) kept: VecDeque<u32>,
    /// Numbers of the messages received.
    pub(super) received: u32,
    pub(super) ended: Option<(CloseReason, bool)>,
    /// Whether a sender was told that it may go on, since it was refused.
    pub(super) writable: bool,
}

impl Side {
    pub(super) fn new(conn: Connection, params: Params) -> Self {
        Self {
            conn,
            params,
            posted: VecDeque::new(),
            sending: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            slots: VecDeque::new(),
            cq: VecDeque::new(),
            cm: VecDeque::new(),
            buffers: HashMap::new(),
            broken: false,
            disconnected: false,
            killed: false,
            removed: false,
            timer: None,
            established: false,
            sent: 0,
            kept: VecDeque::new(),
            received: 0,
            ended: None,
            writable: true,
        }
    }

    pub(super) fn post(&mut self, transmit: Transmit, payload: &[u8]) {
        let depth = self.params.send_slots + CONTROL_SENDS;
        assert!(transmit.slot < depth, "the slot exists");
        assert!(
            !self.slots.contains(&transmit.slot),
            "the slot is not the device's: {transmit:?}"
        );
        self.slots.push_back(transmit.slot);
        if transmit.header[0] == Kind::Data as u8 {
            assert!(
                self.slots.len() <= self.params.send_slots as usize,
                "data leaves the slots for control frames alone"
            );
        }
        let frame = [&transmit.header[..], payload].concat();
        let Transmit {
            slot, signalled, ..
        } = transmit;
        if self.broken {
            self.flushed(Work::Send { slot });
        } else {
            self.sending.push_back(InFlight {
                slot,
                signalled,
                frame,
            });
        }
    }

    pub(super) fn repost(&mut self, buffer: u32) {
        let count = u32::from(self.params.window) + CONTROL_RECEIVES;
        assert!(buffer < count, "the buffer exists");
        assert!(
            !self.posted.contains(&buffer) && !self.kept.contains(&buffer),
            "the buffer is free"
        );
        if self.broken {
            self.flushed(Work::Recv { buffer });
        } else {
            self.posted.push_back(buffer);
        }
    }

    fn flushed(&mut self, work: Work) {
        self.cq
            .push_back(Completion::Failed(work, WcStatus::WR_FLUSH_ERR));
    }

    /// The queue pair goes to its error state: everything that it has comes back, in order.
    pub(super) fn break_down(&mut self) {
        self.broken = true;
        for buffer in std::mem::take(&mut self.posted) {
            self.flushed(Work::Recv { buffer });
        }
        let sends = std::mem::take(&mut self.unacknowledged)
            .into_iter()
            .chain(std::mem::take(&mut self.sending));
        for InFlight { slot, .. } in sends {
            self.flushed(Work::Send { slot });
        }
    }

    /// The device gives up on this side's oldest send, if it has one.
    pub(super) fn give_up(&mut self, status: WcStatus) {
        let oldest = self.unacknowledged.front().or_else(|| self.sending.front());
        if let Some(&InFlight { slot, .. }) = oldest {
            self.cq
                .push_back(Completion::Failed(Work::Send { slot }, status));
            self.break_down();
        }
    }
}
