//! One side of a [`Pair`](super::pair::Pair).

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
    time::Instant,
};

use rdma_status::WcStatus;

use crate::{
    Account, Arrival, CONTROL_RECEIVES, CONTROL_SENDS, CloseReason, Connection, DrainSide,
    FragmentCopy, HEADER_LEN, Params, READS, Read, Transmit, Work,
    frame::{Descriptor, Kind},
    parts,
};

/// A completion.
#[derive(Clone, Debug, Hash)]
pub(super) enum Completion {
    Recv { buffer: u32, frame: Vec<u8> },
    Sent { slot: u32 },
    Read { slot: u32 },
    Failed(Work, WcStatus),
    Drained(DrainSide),
}

/// A connection manager event that waits to be handled.
#[derive(Clone, Debug, Hash)]
pub(super) enum Cm {
    AddrResolved,
    RouteResolved,
    Established(Vec<u8>),
    Disconnected,
    DeviceRemoval,
}

/// A posted work request.
#[derive(Clone, Debug, Hash)]
pub(super) struct InFlight {
    pub(super) slot: u32,
    pub(super) signalled: bool,
    pub(super) what: WorkKind,
}

/// The operation of a work request.
#[derive(Clone, Debug, Hash)]
pub(super) enum WorkKind {
    Frame(Vec<u8>),
    Read(Read),
    /// A write of 0 bytes.
    Nudge,
}

impl InFlight {
    pub(super) fn work(&self) -> Work {
        match (&self.what, self.slot) {
            (WorkKind::Frame(_) | WorkKind::Nudge, slot) => Work::Send { slot },
            (WorkKind::Read(_), slot) => Work::Read { slot },
        }
    }
}

/// A large message that is being read or copied.
#[derive(Clone, Debug, Hash)]
pub(super) struct Reading {
    pub(super) id: u32,
    pub(super) number: u32,
    pub(super) len: u64,
    pub(super) has_memory: bool,
    /// Whether the message is copied from frames instead of being read.
    pub(super) is_copied: bool,
    /// The number of bytes for which reads have been posted, or which have been copied.
    pub(super) requested: u64,
    /// The number of bytes that have been read or copied.
    pub(super) completed: u64,
}

/// Receives that a side's connection shares with other connections. The simulation treats all other
/// connections as a single one.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) account: Arc<Account>,
    /// The number of receives that are promised to the peers of the other connections.
    pub(super) promised: u32,
    /// The buffers that contain messages of the other connections.
    pub(super) taken: VecDeque<u32>,
}

/// A message that the application has received and not released.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    Buffer(u32),
    /// One of several messages in the same buffer.
    Part(u32),
    Large(u64),
}

/// Returns the descriptor of the large message with this number.
pub(super) fn exposed(number: u32, len: u64) -> Descriptor {
    Descriptor {
        addr: u64::from(number) << 32,
        len,
        rkey: number,
    }
}

/// One side of the simulation: its connection, its device and its application.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) conn: Connection,
    pub(super) params: Params,
    /// The buffers of the posted receives, oldest first.
    pub(super) posted: VecDeque<u32>,
    /// The posted sends. The first one is the next to arrive at the peer.
    pub(super) sending: VecDeque<InFlight>,
    /// The sends that have arrived at the peer but are not acknowledged. A reply to such a send can
    /// arrive before the acknowledgement.
    pub(super) unacknowledged: VecDeque<InFlight>,
    /// The slots whose sends have not been reported as completed, oldest first.
    pub(super) slots: VecDeque<u32>,
    pub(super) cq: VecDeque<Completion>,
    pub(super) cm: VecDeque<Cm>,
    /// The bytes that the device has written into each receive buffer.
    pub(super) buffers: BTreeMap<u32, Vec<u8>>,
    /// Whether the queue pair is in its error state.
    pub(super) broken: bool,
    /// Whether this side's event DISCONNECTED has been queued, or will never occur. The event never
    /// occurs if the peer's host has failed or this side's device has been removed.
    pub(super) disconnected: bool,
    /// Whether this side's process has ended.
    pub(super) killed: bool,
    /// Whether the device has been removed.
    pub(super) removed: bool,
    /// The deadline that the connection last reported to the driver.
    pub(super) timer: Option<Instant>,
    /// Whether the connection has reported its establishment.
    pub(super) established: bool,
    /// Whether the application must still answer the peer's long request.
    pub(super) requested: bool,
    /// The number of messages sent.
    pub(super) sent: u32,
    /// The buffers that contain several messages, and the number of unreleased messages in each.
    pub(super) batches: BTreeMap<u32, u32>,
    /// The messages that the application has not released.
    pub(super) kept: VecDeque<Kept>,
    /// The exposed large messages, which the peer can read, oldest first.
    pub(super) exposed: VecDeque<Descriptor>,
    /// The peer's large messages that are being received, oldest first.
    pub(super) reads: VecDeque<Reading>,
    /// The number of messages received.
    pub(super) received: u32,
    pub(super) ended: Option<(CloseReason, bool)>,
    /// Whether the peer's Finish has arrived.
    pub(super) peer_finished: bool,
    /// Whether this side has reported that it wants to end the connection soon.
    pub(super) leaves: bool,
    /// Whether the peer has reported that it wants to end the connection soon.
    pub(super) peer_leaves: bool,
    /// The number of control messages sent.
    pub(super) control_sent: u32,
    /// The number of control messages received.
    pub(super) control_received: u32,
    /// The number of received control messages that the application has not taken.
    pub(super) control_kept: u32,
    /// The number of messages that the driver holds back until they can be sent.
    pub(super) held: u32,
    /// False after a refused send, until the next `Writable` event.
    pub(super) writable: bool,
    /// The shared receives. `None` if the connection does not share receives.
    pub(super) shared: Option<Shared>,
    /// The number of Pings that the peer has answered.
    pub(super) answered: u64,
    /// Whether the system has no memory for large messages.
    pub(super) lacks_memory: bool,
    /// The number of requests for memory that failed.
    pub(super) failed_allocations: u32,
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
            buffers: BTreeMap::new(),
            broken: false,
            disconnected: false,
            killed: false,
            removed: false,
            timer: None,
            established: false,
            requested: false,
            sent: 0,
            batches: BTreeMap::new(),
            kept: VecDeque::new(),
            exposed: VecDeque::new(),
            reads: VecDeque::new(),
            received: 0,
            ended: None,
            peer_finished: false,
            leaves: false,
            peer_leaves: false,
            control_sent: 0,
            control_received: 0,
            control_kept: 0,
            held: 0,
            writable: true,
            shared: None,
            answered: 0,
            lacks_memory: false,
            failed_allocations: 0,
        }
    }

    pub(super) fn post(&mut self, transmit: Transmit, payload: &[u8]) {
        let kind = transmit.header[0];
        let data = [Kind::Data, Kind::Rendezvous, Kind::Batch, Kind::Fragment];
        if data.iter().any(|data| data.number() == kind) {
            assert!(
                self.slots.len() < self.params.send_slots as usize,
                "data frames must not use the slots of reads and control frames"
            );
        }
        let what = WorkKind::Frame([&transmit.header[..], payload].concat());
        self.posted(InFlight {
            slot: transmit.slot,
            signalled: transmit.signalled,
            what,
        });
    }

    /// Delivers an arrival to the application, and checks that arrivals are in order.
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let number = match arrival {
            Arrival::Message {
                buffer,
                offset,
                len,
            } => {
                self.kept.push_back(Kept::Buffer(buffer));
                let bytes = &self.buffers[&buffer][offset as usize..][..len as usize];
                u32::from_le_bytes(bytes.try_into().unwrap())
            }
            Arrival::Batch { buffer, len, count } => {
                let frame = self.buffers[&buffer].clone();
                let payload = &frame[HEADER_LEN..];
                assert_eq!(payload.len(), len as usize);
                self.batches.insert(buffer, count);
                let mut delivered = 0;
                for (at, len) in parts(payload) {
                    let bytes = &payload[at as usize..][..len as usize];
                    self.kept.push_back(Kept::Part(buffer));
                    self.received(u32::from_le_bytes(bytes.try_into().unwrap()));
                    delivered += 1;
                }
                assert_eq!(delivered, count);
                return;
            }
            Arrival::Large { id, len } => {
                let reading = self.reads.pop_front().expect("the message was started");
                assert_eq!((reading.id, reading.len, reading.completed), (id, len, len));
                self.kept.push_back(Kept::Large(len));
                reading.number
            }
            Arrival::Immediate { .. } => panic!("these tests send no immediate data"),
            Arrival::Finish => {
                assert!(
                    !std::mem::replace(&mut self.peer_finished, true),
                    "a Finish arrives once"
                );
                return;
            }
        };
        self.received(number);
    }

    /// Delivers a control message to the application, and checks that control messages are in
    /// order.
    pub(super) fn control_message(&mut self, buffer: u32, len: u32) {
        let bytes = &self.buffers[&buffer][HEADER_LEN..];
        assert_eq!(bytes.len(), len as usize);
        let number = u32::from_le_bytes(bytes.try_into().unwrap());
        assert_eq!(
            number, self.control_received,
            "each message arrives once and in order"
        );
        self.control_received += 1;
        self.control_kept += 1;
    }

    fn received(&mut self, number: u32) {
        assert!(!self.peer_finished, "no message follows a Finish");
        assert_eq!(
            number, self.received,
            "each message arrives once and in order"
        );
        self.received += 1;
    }

    /// Begins to receive a large message. Memory for the message is reserved in a later step.
    pub(super) fn begin(&mut self, id: u32, len: u64) {
        self.reads.push_back(Reading {
            id,
            number: u32::MAX,
            len,
            has_memory: false,
            is_copied: false,
            requested: 0,
            completed: 0,
        });
        let held = self.held() + self.reads.iter().map(|reading| reading.len).sum::<u64>();
        assert!(
            held <= self.params.large_memory || held == len,
            "the held large messages must not exceed the memory limit"
        );
    }

    /// Returns the id of the first large message that waits for memory, if there is one.
    pub(super) fn waiting_for_memory(&self) -> Option<u32> {
        self.reads
            .iter()
            .find(|reading| !reading.has_memory)
            .map(|reading| reading.id)
    }

    /// Prepares memory for a chunk. At some offsets, prepares memory only for the first part of the
    /// chunk. Returns the number of bytes for which memory is prepared.
    pub(super) fn prepare(&mut self, id: u32, offset: u64, len: u64) -> u64 {
        let reading = self.reads.back().expect("the message was started");
        assert!(reading.has_memory && len > 0 && len <= self.params.longest_chunk);
        assert_eq!((reading.id, reading.requested), (id, offset));
        if offset > 0 && len > 4096 && offset.is_multiple_of(3) {
            len - 4096
        } else {
            len
        }
    }

    /// Copies a fragment to the message's memory, and checks that the fragment is the next one of
    /// its message.
    pub(super) fn copy(&mut self, copy: FragmentCopy) {
        let bytes = &self.buffers[&copy.buffer][HEADER_LEN..];
        assert_eq!(bytes.len(), copy.len as usize);
        let reading = self.reads.back_mut().expect("the message was started");
        assert!(reading.has_memory);
        assert_eq!((reading.id, reading.requested), (copy.id, copy.offset));
        let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let first = copy.offset == 0;
        assert!(
            first || number == reading.number,
            "all fragments must belong to the same message"
        );
        reading.number = number;
        reading.is_copied = true;
        reading.requested += u64::from(copy.len);
        reading.completed = reading.requested;
        assert!(reading.completed <= reading.len);
    }

    /// Posts a read of the peer's memory.
    pub(super) fn read(&mut self, read: Read) {
        let reading = self.reads.back_mut().expect("the message was started");
        assert!(reading.has_memory);
        reading.number = read.rkey;
        assert_eq!((reading.id, reading.requested), (read.id, read.offset));
        assert!(read.len > 0 && reading.requested + read.len <= reading.len);
        reading.requested += read.len;
        let slot = read.slot;
        self.posted(InFlight {
            slot,
            signalled: true,
            what: WorkKind::Read(read),
        });
    }

    /// Records that the oldest read has completed.
    pub(super) fn read_completed(&mut self, read: &Read) {
        let reading = self
            .reads
            .iter_mut()
            .find(|reading| reading.completed < reading.len)
            .expect("the message was started");
        assert_eq!((reading.id, reading.completed), (read.id, read.offset));
        reading.completed += read.len;
    }

    /// Frees the slot of a completed work request, and the slots of all earlier work requests.
    pub(super) fn slots_are_free_up_to(&mut self, slot: u32) {
        while self.slots.pop_front().is_some_and(|done| done != slot) {}
    }

    /// Returns the number of bytes in the large messages that the application holds.
    fn held(&self) -> u64 {
        let large = |kept: &Kept| match kept {
            Kept::Buffer(_) | Kept::Part(_) => 0,
            Kept::Large(len) => *len,
        };
        self.kept.iter().map(large).sum()
    }

    /// Frees the receives that an ended connection has promised to its peer. Checks that each
    /// receive of the account is then free, promised to the peer of another connection, or occupied
    /// by a message that has not been released.
    pub(super) fn release_account(&mut self) {
        let buffers = self.kept.iter().filter_map(|kept| match kept {
            Kept::Buffer(buffer) | Kept::Part(buffer) => Some(*buffer),
            Kept::Large(_) => None,
        });
        let kept = buffers.collect::<HashSet<u32>>().len() as u32;
        self.conn.release_account(kept);
        if let Some(shared) = &self.shared {
            let others = shared.promised + shared.taken.len() as u32;
            assert_eq!(
                shared.account.free() + others + kept,
                shared.account.total(),
                "each receive is free, promised or held"
            );
        }
    }

    /// Promises `count` more receives to the peers of the other connections, or fewer if the
    /// account has fewer free receives.
    pub(super) fn others_claim(&mut self, count: u32) {
        if let Some(shared) = &mut self.shared {
            shared.promised += shared.account.trade(0, 0, count);
        }
    }

    /// Receives a frame on one of the other connections that share the receives.
    pub(super) fn others_receive(&mut self) {
        if let Some(shared) = &mut self.shared
            && shared.promised > 0
        {
            shared.promised -= 1;
            let buffer = self.posted.pop_front();
            shared.taken.push_back(
                buffer.expect("a receive is posted for every frame of the other connections"),
            );
        }
    }

    /// Releases the oldest message of the other connections.
    pub(super) fn others_release(&mut self) {
        if let Some(buffer) = self
            .shared
            .as_mut()
            .and_then(|shared| shared.taken.pop_front())
        {
            self.repost(buffer);
            if let Some(shared) = &self.shared {
                shared.account.give(1);
            }
        }
    }

    pub(super) fn posted(&mut self, in_flight: InFlight) {
        let slot = in_flight.slot;
        let depth = self.params.send_slots + READS + CONTROL_SENDS;
        assert!(slot < depth, "the slot exists");
        assert!(
            !self.slots.contains(&slot),
            "the slot is free: {in_flight:?}"
        );
        self.slots.push_back(slot);
        if self.broken {
            self.flushed(in_flight.work());
        } else {
            self.sending.push_back(in_flight);
        }
    }

    pub(super) fn repost(&mut self, buffer: u32) {
        let count = match &self.shared {
            Some(shared) => shared.account.total(),
            None => u32::from(self.params.window) + CONTROL_RECEIVES,
        };
        assert!(buffer < count, "the buffer exists");
        assert!(
            !self.posted.contains(&buffer)
                && !self.kept.iter().any(
                    |kept| matches!(kept, Kept::Buffer(kept) | Kept::Part(kept) if *kept == buffer)
                ),
            "the buffer is free"
        );
        self.buffers.remove(&buffer);
        self.batches.remove(&buffer);
        if self.broken && self.shared.is_none() {
            self.flushed(Work::Recv { buffer });
        } else {
            self.posted.push_back(buffer);
        }
    }

    fn flushed(&mut self, work: Work) {
        self.cq
            .push_back(Completion::Failed(work, WcStatus::WR_FLUSH_ERR));
    }

    /// Moves the queue pair to its error state, which flushes all work requests in order.
    pub(super) fn enter_error_state(&mut self) {
        self.broken = true;
        // Shared receives are not flushed, because other connections use them.
        if self.shared.is_none() {
            for buffer in std::mem::take(&mut self.posted) {
                self.flushed(Work::Recv { buffer });
            }
        }
        let sends = std::mem::take(&mut self.unacknowledged)
            .into_iter()
            .chain(std::mem::take(&mut self.sending));
        for in_flight in sends {
            self.flushed(in_flight.work());
        }
    }

    /// Completes this side's oldest work request with the error `status`, and moves the queue pair
    /// to its error state. Has no effect if no send or READ is in flight.
    pub(super) fn give_up(&mut self, status: WcStatus) {
        let oldest = self.unacknowledged.front().or_else(|| self.sending.front());
        if let Some(in_flight) = oldest {
            let work = in_flight.work();
            self.cq.push_back(Completion::Failed(work, status));
            self.enter_error_state();
        }
    }
}
