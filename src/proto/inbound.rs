//! What has arrived, on its way to the application: in the order in which it was sent, large messages included.

use std::{collections::VecDeque, time::Instant};

use super::{
    frame::{Descriptor, Kind},
    outbound::LARGE_IN_FLIGHT,
    output::{Arrival, Read},
    pace::Pace,
    reason::Violation,
    send_ring::READS,
};

/// The books of what has arrived.
///
/// A large message is started, which takes a place in memory and perhaps some time. Then it is read
/// in chunks, for each of which memory is made ready first, and then delivered. Reads complete in
/// the order in which they were posted, so large messages are done in the order in which they came.
#[derive(Debug)]
pub(super) struct Inbound {
    /// What waits to be delivered, oldest first. Empty unless a large message is in front.
    queue: VecDeque<Queued>,
    /// How many large messages among `queued` are not done.
    incomplete: u32,
    /// What the driver was asked for, to read on.
    demand: Demand,
    /// The chunks that are being read, oldest first.
    reads: VecDeque<u64>,
    /// Pieces that have come, in all.
    chunks: u64,
    pace: Pace,
    /// Large messages started, in all: the id of the next one.
    started: u32,
    /// Large messages that were announced by the peer, in all.
    received: u32,
    /// Large messages that were read, in all.
    taken: u32,
    /// As many as the peer was reported of.
    reported: u32,
    /// Large messages started that the application has not let go of.
    held: u32,
    /// Their bytes.
    held_bytes: u64,
    /// How many may be held.
    most_held: u32,
    /// How many bytes may be held. One message alone may be longer.
    limit: u64,
}

/// What is to be done to read a large message.
#[derive(Debug)]
pub(super) enum Step {
    /// A place in memory is to be found for it.
    Begin { id: u32, len: u64 },
    /// Memory is to be made ready for a chunk of it.
    Prepare { id: u32, offset: u64, len: u64 },
    /// A chunk is to be read.
    Read(Read),
}

/// What is to come before more is read. There is one such thing at a time.
#[derive(Clone, Copy, Debug)]
enum Demand {
    Nothing,
    /// A place in memory, for the message of this id and length.
    Place {
        id: u32,
        len: u64,
    },
    /// Memory for this chunk.
    Memory(Read),
    /// A slot for its read: everything else is there.
    Slot(Read),
}

#[derive(Debug)]
enum Queued {
    /// Complete, but something before it is not.
    Arrival(Arrival),
    Large(Large),
}

#[derive(Debug)]
struct Large {
    descriptor: Descriptor,
    /// Its id, once it is started.
    id: Option<u32>,
    /// Whether it has its place in memory.
    has_place: bool,
    /// Bytes for which reads were posted.
    requested: u64,
    /// Bytes that have completed.
    completed: u64,
}

impl Inbound {
    /// At most `most_held` large messages, and at most `limit` bytes of them, are held at a time.
    /// No chunk is longer than `longest_chunk`.
    pub(super) fn new(most_held: u16, limit: u64, longest_chunk: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            incomplete: 0,
            demand: Demand::Nothing,
            reads: VecDeque::with_capacity(READS as usize),
            chunks: 0,
            pace: Pace::new(longest_chunk),
            started: 0,
            received: 0,
            taken: 0,
            reported: 0,
            held: 0,
            held_bytes: 0,
            most_held: most_held.into(),
            limit,
        }
    }

    /// Whether what arrives may be delivered at once.
    pub(super) fn is_clear(&self) -> bool {
        self.queue.is_empty()
    }

    /// Something arrived whole. It is given back where it may be delivered at once.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> Option<Arrival> {
        if self.is_clear() {
            return Some(arrival);
        }
        self.queue.push_back(Queued::Arrival(arrival));
        None
    }

    /// The peer announces a large message.
    pub(super) fn announce(&mut self, descriptor: Descriptor) -> Result<(), Violation> {
        if self.received.wrapping_sub(self.reported) >= LARGE_IN_FLIGHT {
            return Err(
                Kind::Rendezvous.unexpected("no more large messages on their way than agreed")
            );
        }
        self.received = self.received.wrapping_add(1);
        self.incomplete += 1;
        self.queue.push_back(Queued::Large(Large {
            descriptor,
            id: None,
            has_place: false,
            requested: 0,
            completed: 0,
        }));
        Ok(())
    }

    /// What is to be done next to read what was announced, if it may be done now. In which slot a read is posted is the caller's to fill in.
    pub(super) fn next_step(&mut self) -> Option<Step> {
        match self.demand {
            Demand::Place { .. } | Demand::Memory(_) => return None,
            Demand::Slot(read) => {
                self.demand = Demand::Nothing;
                return Some(self.read(read));
            }
            Demand::Nothing => {}
        }
        if self.reads.len() >= self.pace.depth() || self.incomplete == 0 {
            return None;
        }
        let alone = self.held == 0;
        let (may_hold_more, room) = (
            self.held < self.most_held,
            self.limit.saturating_sub(self.held_bytes),
        );
        let large = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Large(large) if large.requested < large.descriptor.len => Some(large),
            Queued::Large(_) | Queued::Arrival(_) => None,
        })?;
        let Descriptor { addr, len, rkey } = large.descriptor;
        match large.id {
            Some(id) if large.has_place => {
                let offset = large.requested;
                self.demand = Demand::Memory(Read {
                    slot: u32::MAX,
                    id,
                    offset,
                    len: (len - offset).min(self.pace.chunk()),
                    remote_addr: addr + offset,
                    rkey,
                });
            }
            None if alone || (may_hold_more && len <= room) => {
                let id = self.started;
                large.id = Some(id);
                self.started = id.wrapping_add(1);
                self.held += 1;
                self.held_bytes = self.held_bytes.saturating_add(len);
                self.demand = Demand::Place { id, len };
            }
            Some(_) | None => return None,
        }
        self.demanded()
    }

    /// What the driver was asked for and has not found yet.
    pub(super) fn demanded(&self) -> Option<Step> {
        match self.demand {
            Demand::Nothing | Demand::Slot(_) => None,
            Demand::Place { id, len } => Some(Step::Begin { id, len }),
            Demand::Memory(Read {
                id, offset, len, ..
            }) => Some(Step::Prepare { id, offset, len }),
        }
    }

    fn read(&mut self, read: Read) -> Step {
        for queued in &mut self.queue {
            if let Queued::Large(large) = queued
                && large.id == Some(read.id)
            {
                large.requested += read.len;
            }
        }
        self.reads.push_back(read.len);
        Step::Read(read)
    }

    /// The large message of this id has its place in memory.
    pub(super) fn placed(&mut self, id: u32) {
        if !matches!(self.demand, Demand::Place { id: wanted, .. } if wanted == id) {
            debug_assert!(false, "it was asked for");
            return;
        }
        self.demand = Demand::Nothing;
        for queued in &mut self.queue {
            if let Queued::Large(large) = queued
                && large.id == Some(id)
            {
                large.has_place = true;
            }
        }
    }

    /// Memory is ready for the next chunk, or for the first `len` bytes of it.
    pub(super) fn prepared(&mut self, len: u64) {
        if let Demand::Memory(read) = self.demand {
            debug_assert!(len > 0, "a read of nothing comes to nothing");
            self.demand = Demand::Slot(Read {
                len: read.len.min(len),
                ..read
            });
        }
    }

    /// Whether a chunk is being read.
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Pieces that have come, in all.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// A read is posted, and there was none.
    pub(super) fn reads_begin(&mut self, now: Instant) {
        self.pace.begin(now);
    }

    /// The oldest read is done.
    pub(super) fn chunk_completed(&mut self, now: Instant) {
        let Some(chunk) = self.reads.pop_front() else {
            debug_assert!(false, "a read completes that was posted");
            return;
        };
        self.chunks += 1;
        self.pace.completed(chunk, now);
        let large = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Large(large) if large.completed < large.descriptor.len => Some(large),
            Queued::Large(_) | Queued::Arrival(_) => None,
        });
        if let Some(large) = large {
            large.completed += chunk;
            if large.completed == large.descriptor.len {
                self.incomplete -= 1;
                self.taken = self.taken.wrapping_add(1);
            }
        }
    }

    /// The rkey of the large message of which a chunk is being read.
    pub(super) fn rkey_being_read(&self) -> Option<u32> {
        self.queue.iter().find_map(|queued| match queued {
            Queued::Large(large) if large.completed < large.requested => {
                Some(large.descriptor.rkey)
            }
            Queued::Large(_) | Queued::Arrival(_) => None,
        })
    }

    /// What is to be delivered next, if it is complete.
    pub(super) fn pop(&mut self) -> Option<Arrival> {
        match self.queue.front()? {
            Queued::Large(Large {
                descriptor,
                id: Some(id),
                completed,
                ..
            }) if *completed == descriptor.len => {
                let arrival = Arrival::Large {
                    id: *id,
                    len: descriptor.len,
                };
                self.queue.pop_front();
                Some(arrival)
            }
            Queued::Large(_) => None,
            Queued::Arrival(_) => match self.queue.pop_front() {
                Some(Queued::Arrival(arrival)) => Some(arrival),
                Some(Queued::Large(_)) | None => None,
            },
        }
    }

    /// The application let go of a large message of `len` bytes.
    pub(super) fn release(&mut self, len: u64) {
        debug_assert!(self.held > 0, "no more is released than was started");
        self.held = self.held.saturating_sub(1);
        self.held_bytes = self.held_bytes.saturating_sub(len);
    }

    /// Bytes of large messages that are being read, or that the application has not let go of.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Messages that have come or were announced, and have not been delivered: a large one, and
    /// what waits for its turn after it.
    pub(super) fn undelivered(&self) -> u64 {
        self.queue.len() as u64
    }

    /// Whether every large message that was announced has been read.
    pub(super) fn is_idle(&self) -> bool {
        self.incomplete == 0
    }

    /// Whether the peer should be reported by a frame of its own what was taken: when half of what may be on its way was, or nothing
    /// is being read any more whose end would be reported of as well.
    pub(super) fn report_due(&self) -> bool {
        let unreported = self.taken.wrapping_sub(self.reported);
        unreported >= LARGE_IN_FLIGHT / 2 || (unreported > 0 && self.reads.is_empty())
    }

    /// The count to put into a frame that is being sent.
    pub(super) fn report_taken(&mut self) -> u32 {
        self.reported = self.taken;
        self.reported
    }
}
