//! Messages of the peer on their way to the application, in the order in which they were sent.

use std::{collections::VecDeque, time::Instant};

use super::{
    frame::{Descriptor, Kind},
    outbound::LARGE_IN_FLIGHT,
    output::{Arrival, Read},
    pace::Pace,
    reason::Violation,
    send_ring::READS,
};

/// The queue of messages that wait for a large one, and the reads of large ones.
///
/// A large message gets its place in memory first, which may take some time. Then it is read in
/// chunks, for each of which memory is prepared, and then delivered. Reads complete in the order in
/// which they were posted, so large messages complete in the order in which they were announced.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Inbound {
    /// Undelivered messages, oldest first. Empty unless a large message is in front.
    queue: VecDeque<Queued>,
    /// The number of large messages in `queue` that have not been read whole.
    incomplete: u32,
    /// The memory that the driver has to provide before the next read.
    demand: Demand,
    /// The lengths of the reads in progress, oldest first.
    reads: VecDeque<u64>,
    /// The number of chunks that have been read.
    chunks: u64,
    /// The number of bytes that have been read.
    bytes: u64,
    pace: Pace,
    /// The number of large messages started, which is the id of the next one.
    started: u32,
    /// The number of large messages that the peer has announced.
    announced: u32,
    /// The number of large messages that have been read whole.
    taken: u32,
    /// The value of `taken` that was last sent to the peer.
    reported: u32,
    /// The number of large messages started and not released by the application.
    held: u32,
    /// Their length in all.
    held_bytes: u64,
    /// The bytes of a stream that were copied and are not read.
    copied: u64,
    /// The bound on `held`.
    most_held: u32,
    /// The bound on `held_bytes` and `copied` together, which a single message may exceed.
    limit: u64,
}

/// A step of reading a large message.
#[derive(Debug)]
pub(super) enum Step {
    /// Find a place in memory for it.
    Begin { id: u32, len: u64 },
    /// Prepare memory for a chunk of it.
    Prepare { id: u32, offset: u64, len: u64 },
    /// Post the read of a chunk.
    Read(Read),
}

/// What is missing before more is read: one thing at a time.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
enum Demand {
    Nothing,
    /// A place in memory for the message of this id and length.
    Place {
        id: u32,
        len: u64,
    },
    /// Memory for this chunk.
    Memory(Read),
    /// A slot of the send ring for this read, and nothing else.
    Slot(Read),
}

/// An element of the queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Queued {
    /// Complete, but behind a message that is not.
    Arrival(Arrival),
    Large(Large),
}

/// A large message that is read, or will be.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Large {
    descriptor: Descriptor,
    /// Its id, once it is started.
    id: Option<u32>,
    /// Whether it has its place in memory.
    has_place: bool,
    /// Bytes for which reads were posted.
    requested: u64,
    /// Bytes that have been read.
    completed: u64,
}

impl Inbound {
    /// Makes an empty queue that holds at most `most_held` large messages and `limit` bytes of them
    /// at a time, and reads in chunks of at most `longest_chunk` bytes.
    pub(super) fn new(most_held: u16, limit: u64, longest_chunk: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            incomplete: 0,
            demand: Demand::Nothing,
            reads: VecDeque::with_capacity(READS as usize),
            chunks: 0,
            bytes: 0,
            pace: Pace::new(longest_chunk),
            started: 0,
            announced: 0,
            taken: 0,
            reported: 0,
            held: 0,
            held_bytes: 0,
            copied: 0,
            most_held: most_held.into(),
            limit,
        }
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether an arrival may be delivered at once.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes a complete arrival. Returns it if it may be delivered at once.
    #[inline]
    pub(super) fn arrive(&mut self, arrival: Arrival) -> Option<Arrival> {
        //= PROTOCOL.md#large-messages
        //# Messages are delivered in the order in which their frames were sent: a data frame behind
        //# a Rendezvous waits until the large message has been read.
        if self.is_clear() {
            return Some(arrival);
        }
        self.queue.push_back(Queued::Arrival(arrival));
        None
    }

    /// Takes the announcement of a large message.
    pub(super) fn announce(&mut self, descriptor: Descriptor) -> Result<(), Violation> {
        //= PROTOCOL.md#large-messages
        //# At most **4** large messages may be announced and not yet reported as taken, in each
        //# direction.
        if self.announced.wrapping_sub(self.reported) >= LARGE_IN_FLIGHT {
            return Err(Kind::Rendezvous.unexpected("no more large messages in flight than agreed"));
        }
        self.announced = self.announced.wrapping_add(1);
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

    /// Returns the next step of reading announced messages, if it may be taken now. The caller
    /// fills in the slot of a read.
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
        let alone = self.held == 0 && self.copied == 0;
        let (may_hold_more, room) = (self.held < self.most_held, self.room());
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
                    //= PROTOCOL.md#large-messages
                    //# It must not read outside the announced bytes, nor after it reported the
                    //# message as taken.
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

    /// Returns the step that the driver has been asked for and has not reported.
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

    /// Records that the large message of this id has its place in memory.
    pub(super) fn placed(&mut self, id: u32) {
        if !matches!(self.demand, Demand::Place { id: wanted, .. } if wanted == id) {
            debug_assert!(false, "the place was asked for");
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

    /// Records that memory is ready for the first `len` bytes of the next chunk, or all of it.
    pub(super) fn prepared(&mut self, len: u64) {
        if let Demand::Memory(read) = self.demand {
            debug_assert!(len > 0, "there are bytes to read");
            self.demand = Demand::Slot(Read {
                len: read.len.min(len),
                ..read
            });
        }
    }

    /// Whether a read is in progress.
    #[inline]
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Returns the number of chunks that have been read.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Returns the number of bytes that have been read.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of bytes that have been read of incomplete messages.
    pub(super) fn incomplete_bytes(&self) -> u64 {
        let completed = |queued: &Queued| match queued {
            Queued::Large(large) if large.completed < large.descriptor.len => large.completed,
            Queued::Large(_) | Queued::Arrival(_) => 0,
        };
        self.queue.iter().map(completed).sum()
    }

    /// Records that a read is posted while none is in progress.
    pub(super) fn reads_begin(&mut self, now: Instant) {
        self.pace.begin(now);
    }

    /// Records that the oldest read is done.
    pub(super) fn chunk_completed(&mut self, now: Instant) {
        let Some(chunk) = self.reads.pop_front() else {
            debug_assert!(false, "only reads that were posted complete");
            return;
        };
        self.chunks += 1;
        self.bytes += chunk;
        self.pace.completed(chunk, now);
        let large = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Large(large) if large.completed < large.descriptor.len => Some(large),
            Queued::Large(_) | Queued::Arrival(_) => None,
        });
        if let Some(large) = large {
            large.completed += chunk;
            if large.completed == large.descriptor.len {
                self.incomplete -= 1;
                //= PROTOCOL.md#large-messages
                //# The receiver counts in *taken* the large messages that it has read whole.
                self.taken = self.taken.wrapping_add(1);
            }
        }
    }

    /// Returns the rkey of the large message that is being read.
    pub(super) fn rkey_being_read(&self) -> Option<u32> {
        self.queue.iter().find_map(|queued| match queued {
            Queued::Large(large) if large.completed < large.requested => {
                Some(large.descriptor.rkey)
            }
            Queued::Large(_) | Queued::Arrival(_) => None,
        })
    }

    /// Takes the next arrival in order, if it is complete.
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

    /// Records that the application has released a large message of `len` bytes.
    pub(super) fn release(&mut self, len: u64) {
        debug_assert!(self.held > 0, "no more is released than was started");
        self.held = self.held.saturating_sub(1);
        self.held_bytes = self.held_bytes.saturating_sub(len);
    }

    /// Returns the number of bytes that may still be held or copied.
    fn room(&self) -> u64 {
        let used = self.held_bytes.saturating_add(self.copied);
        self.limit.saturating_sub(used)
    }

    /// Whether there is room for `len` copied bytes and for `others`.
    pub(super) fn has_room_for(&self, len: u64, others: u64) -> bool {
        others.saturating_add(len) <= self.room()
    }

    /// Whether more than half of the large messages that may be held are.
    pub(super) fn may_copy_large(&self) -> bool {
        2 * self.held > self.most_held
    }

    /// Records that `len` bytes of a stream were copied.
    pub(super) fn copied(&mut self, len: u64) {
        self.copied += len;
    }

    /// Records that `len` copied bytes were read.
    pub(super) fn release_copied(&mut self, len: u64) {
        debug_assert!(self.copied >= len, "no more is read than was copied");
        self.copied = self.copied.saturating_sub(len);
    }

    /// Returns the bytes of large messages that are being read or held by the application.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the number of messages that have arrived or were announced, and are not delivered: a
    /// large one, and the messages behind it.
    pub(super) fn undelivered(&self) -> u64 {
        let messages = |queued: &Queued| match queued {
            Queued::Arrival(Arrival::Finish) => 0,
            Queued::Arrival(Arrival::Batch { count, .. }) => u64::from(*count),
            Queued::Arrival(_) | Queued::Large(_) => 1,
        };
        self.queue.iter().map(messages).sum()
    }

    /// Whether every large message that was announced has been read.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.incomplete == 0
    }

    /// Whether *taken* is due in a frame of its own: half of the large messages that may be in
    /// flight were taken, or no read is in progress, whose end would be reported as well.
    #[inline]
    pub(super) fn report_due(&self) -> bool {
        let unreported = self.taken.wrapping_sub(self.reported);
        unreported >= LARGE_IN_FLIGHT / 2 || (unreported > 0 && self.reads.is_empty())
    }

    /// Returns the count of large messages taken for a frame that is being sent.
    #[inline]
    pub(super) fn report_taken(&mut self) -> u32 {
        self.reported = self.taken;
        self.reported
    }
}
