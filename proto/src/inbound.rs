//! The queue of the peer's messages for the application, in the order in which the peer sent them.

use std::{collections::VecDeque, time::Instant};

use super::{
    frame::{Descriptor, Kind},
    outbound::LARGE_IN_FLIGHT,
    output::{Arrival, FragmentCopy, Read},
    pace::Pace,
    reason::Violation,
};

/// The queue of messages behind a large message, and the reads of large messages.
///
/// A large message first gets a place in memory, which can take some time. An announced message is
/// then read in chunks, and memory is prepared for each chunk. A message in fragments is copied to
/// its place, frame by frame. Reads complete in the order in which they were posted, and a copy
/// completes at once, so large messages complete in the order in which they began to arrive.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Inbound {
    /// Undelivered messages, oldest first. Empty unless the front is a large message.
    queue: VecDeque<Queued>,
    /// The number of large messages in `queue` that have not been read completely.
    incomplete: u32,
    /// The memory that the driver has to provide before the next read.
    demand: Demand,
    /// The lengths in bytes of the reads in progress, oldest first.
    reads: VecDeque<u64>,
    /// The number of chunks that have been read, plus that of fragments that have arrived.
    chunks: u64,
    /// The number of bytes in the chunks and fragments that `chunks` counts.
    bytes: u64,
    pace: Pace,
    /// The number of large messages that were started. It is the id of the next large message.
    started: u32,
    /// The number of large messages that the peer has announced.
    announced: u32,
    /// The number of large messages that have been read completely.
    taken: u32,
    /// The value of `taken` that was last sent to the peer.
    reported: u32,
    /// The number of large messages that were started and that the application has not released.
    held: u32,
    /// The total length in bytes of the messages that `held` counts.
    held_bytes: u64,
    /// The number of bytes of a stream that were copied and that the application has not read.
    copied: u64,
    /// The maximum of `held`.
    most_held: u32,
    /// The maximum of `held_bytes` + `copied`, which a single message may exceed.
    limit: u64,
}

/// A step of reading a large message.
#[derive(Debug)]
pub(super) enum Step {
    /// Find a place in memory for the message.
    Begin { id: u32, len: u64 },
    /// Prepare memory for a chunk of the message.
    Prepare { id: u32, offset: u64, len: u64 },
    /// Post the read of a chunk.
    Read(Read),
    /// Copy a fragment to its place in the message's memory.
    Copy(FragmentCopy),
}

/// The one prerequisite that the driver has to provide before the next read or copy.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
enum Demand {
    Nothing,
    /// A place in memory for the message with this id and length in bytes.
    Place {
        id: u32,
        len: u64,
    },
    /// Memory for this chunk.
    Memory(Read),
    /// A free slot of the send ring for this read, whose memory is ready.
    Slot(Read),
    /// Memory for this fragment, and the copy to it.
    Copy(FragmentCopy),
}

/// An element of [`Inbound::queue`].
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Queued {
    /// A complete arrival behind a large message that is incomplete.
    Arrival(Arrival),
    Large(Large),
}

/// A large message, which gets memory of its own.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Large {
    len: u64,
    source: Source,
    /// The id, which the message gets when it is started.
    id: Option<u32>,
    /// Whether the message has a place in memory.
    has_place: bool,
    /// The number of bytes for which reads were posted, or that were copied.
    requested: u64,
    /// The number of bytes that have been read or copied.
    completed: u64,
}

/// The origin of the bytes of a large message.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Source {
    /// The peer's memory, which this side reads.
    Memory { addr: u64, rkey: u32 },
    /// Frames of the peer.
    Fragments {
        /// The number of bytes that have arrived.
        arrived: u64,
        /// Fragments that have not been copied: the receive buffer and the length in bytes of each,
        /// oldest first.
        waiting: VecDeque<(u32, u32)>,
    },
}

impl Large {
    fn new(len: u64, source: Source) -> Self {
        Self {
            len,
            source,
            id: None,
            has_place: false,
            requested: 0,
            completed: 0,
        }
    }

    fn is_complete(&self) -> bool {
        self.completed == self.len
    }
}

impl Queued {
    /// Returns the large message, if this element is an incomplete one.
    fn incomplete(&self) -> Option<&Large> {
        match self {
            Self::Large(large) if !large.is_complete() => Some(large),
            Self::Large(_) | Self::Arrival(_) => None,
        }
    }
}

impl Inbound {
    /// Creates an empty queue that holds at most `most_held` large messages and `limit` bytes of
    /// them at a time, and reads in chunks of at most `longest_chunk` bytes.
    pub(super) fn new(most_held: u16, limit: u64, longest_chunk: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            incomplete: 0,
            demand: Demand::Nothing,
            reads: VecDeque::new(),
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

    /// Whether an arrival can be delivered at once, because the queue is empty.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes a complete arrival. Returns the arrival if it can be delivered at once, and queues it
    /// otherwise.
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

    /// Queues a large message that the peer has announced.
    pub(super) fn announce(&mut self, descriptor: Descriptor) -> Result<(), Violation> {
        //= PROTOCOL.md#large-messages
        //# At most **4** large messages may be announced and not yet reported as taken, in each
        //# direction.
        if self.announced.wrapping_sub(self.reported) >= LARGE_IN_FLIGHT {
            return Err(Kind::Rendezvous.unexpected("no more large messages in flight than agreed"));
        }
        self.announced = self.announced.wrapping_add(1);
        let Descriptor { addr, len, rkey } = descriptor;
        self.begin(Large::new(len, Source::Memory { addr, rkey }));
        Ok(())
    }

    fn begin(&mut self, large: Large) {
        self.incomplete += 1;
        self.queue.push_back(Queued::Large(large));
    }

    /// Returns the number of bytes that are missing of the message whose fragments are arriving.
    /// Returns `None` if no fragment is missing.
    #[inline]
    pub(super) fn missing(&self) -> Option<u64> {
        match self.queue.back()? {
            Queued::Large(Large {
                len,
                source: Source::Fragments { arrived, .. },
                ..
            }) => Some(len - arrived).filter(|missing| *missing > 0),
            Queued::Large(_) | Queued::Arrival(_) => None,
        }
    }

    /// Queues a fragment with `len` bytes of payload. `rest` is the number of bytes of its message
    /// from the start of this fragment. The caller has checked both numbers.
    pub(super) fn fragment(&mut self, buffer: u32, len: u32, rest: u32) {
        if self.missing().is_none() {
            let source = Source::Fragments {
                arrived: 0,
                waiting: VecDeque::new(),
            };
            self.begin(Large::new(rest.into(), source));
        }
        self.chunks += 1;
        self.bytes += u64::from(len);
        if let Some(Queued::Large(Large {
            source: Source::Fragments { arrived, waiting },
            ..
        })) = self.queue.back_mut()
        {
            *arrived += u64::from(len);
            waiting.push_back((buffer, len));
        }
    }

    /// Returns the next step of reading or copying large messages, if one is possible now. The
    /// caller sets `has_slot` if the send ring has a slot for a read, and fills the slot in the
    /// returned read.
    pub(super) fn next_step(&mut self, has_slot: bool) -> Option<Step> {
        match self.demand {
            Demand::Slot(read) if has_slot => {
                self.demand = Demand::Nothing;
                return Some(self.read(read));
            }
            Demand::Place { .. } | Demand::Memory(_) | Demand::Copy(_) | Demand::Slot(_) => {
                return None;
            }
            Demand::Nothing => {}
        }
        if self.incomplete == 0 {
            return None;
        }
        let alone = self.held == 0 && self.copied == 0;
        let (may_hold_more, room) = (self.held < self.most_held, self.room());
        let may_read = has_slot && self.reads.len() < self.pace.depth();
        let large = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Large(large) if large.requested < large.len => Some(large),
            Queued::Large(_) | Queued::Arrival(_) => None,
        })?;
        let len = large.len;
        match (large.id, &large.source) {
            (_, Source::Memory { .. }) if !may_read => return None,
            (Some(id), Source::Memory { addr, rkey }) if large.has_place => {
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
                    rkey: *rkey,
                });
            }
            (Some(id), Source::Fragments { waiting, .. }) if large.has_place => {
                let (buffer, len) = *waiting.front()?;
                let offset = large.requested;
                self.demand = Demand::Copy(FragmentCopy {
                    id,
                    offset,
                    buffer,
                    len,
                });
            }
            (None, _) if alone || (may_hold_more && len <= room) => {
                let id = self.started;
                large.id = Some(id);
                self.started = id.wrapping_add(1);
                self.held += 1;
                self.held_bytes = self.held_bytes.saturating_add(len);
                self.demand = Demand::Place { id, len };
            }
            (Some(_) | None, _) => return None,
        }
        self.demanded()
    }

    /// Returns the step that the driver was asked to perform and has not reported as performed.
    pub(super) fn demanded(&self) -> Option<Step> {
        match self.demand {
            Demand::Nothing | Demand::Slot(_) => None,
            Demand::Place { id, len } => Some(Step::Begin { id, len }),
            Demand::Memory(Read {
                id, offset, len, ..
            }) => Some(Step::Prepare { id, offset, len }),
            Demand::Copy(copy) => Some(Step::Copy(copy)),
        }
    }

    fn read(&mut self, read: Read) -> Step {
        if let Some(large) = self.started(read.id) {
            large.requested += read.len;
        }
        self.reads.push_back(read.len);
        Step::Read(read)
    }

    /// Returns the queued large message with this id.
    fn started(&mut self, id: u32) -> Option<&mut Large> {
        self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Large(large) if large.id == Some(id) => Some(large),
            Queued::Large(_) | Queued::Arrival(_) => None,
        })
    }

    /// Records that the large message with this id has its place in memory.
    pub(super) fn placed(&mut self, id: u32) {
        if !matches!(self.demand, Demand::Place { id: wanted, .. } if wanted == id) {
            debug_assert!(false, "the place was asked for");
            return;
        }
        self.demand = Demand::Nothing;
        if let Some(large) = self.started(id) {
            large.has_place = true;
        }
    }

    /// Records that the fragment of the last [`Step::Copy`] has been copied. Returns the fragment's
    /// receive buffer, which is free now.
    pub(super) fn fragment_copied(&mut self) -> Option<u32> {
        let Demand::Copy(copy) = self.demand else {
            debug_assert!(false, "the copy was asked for");
            return None;
        };
        self.demand = Demand::Nothing;
        let large = self.started(copy.id)?;
        large.requested += u64::from(copy.len);
        large.completed = large.requested;
        let is_complete = large.is_complete();
        if let Source::Fragments { waiting, .. } = &mut large.source {
            waiting.pop_front();
        }
        self.incomplete -= u32::from(is_complete);
        Some(copy.buffer)
    }

    /// Records that memory is ready for the first `len` bytes of the next chunk, or for the whole
    /// chunk if it is shorter.
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

    /// Whether bytes of a large message are arriving: a read is in progress, or fragments are
    /// missing.
    pub(super) fn awaits_bytes(&self) -> bool {
        self.is_reading() || self.missing().is_some()
    }

    /// Returns the number of chunks that have been read, plus that of fragments that have arrived.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Returns the number of bytes in all chunks that have been read and fragments that have
    /// arrived.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of bytes of incomplete large messages that have been read or copied.
    pub(super) fn incomplete_bytes(&self) -> u64 {
        let incomplete = self.queue.iter().filter_map(Queued::incomplete);
        incomplete.map(|large| large.completed).sum()
    }

    /// Records that a read was posted while no other read was in progress.
    pub(super) fn reads_begin(&mut self, now: Instant) {
        self.pace.begin(now);
    }

    /// Records that the oldest read has completed.
    pub(super) fn chunk_completed(&mut self, now: Instant) {
        let Some(chunk) = self.reads.pop_front() else {
            debug_assert!(false, "only reads that were posted complete");
            return;
        };
        self.chunks += 1;
        self.bytes += chunk;
        self.pace.completed(chunk, now);
        // The chunk belongs to the first message with outstanding reads: all bytes of earlier
        // messages have been read or copied.
        let large = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Large(large) if large.completed < large.requested => Some(large),
            Queued::Large(_) | Queued::Arrival(_) => None,
        });
        if let Some(large) = large {
            large.completed += chunk;
            if large.is_complete() {
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
            Queued::Large(Large {
                source: Source::Memory { rkey, .. },
                requested,
                completed,
                ..
            }) if completed < requested => Some(*rkey),
            Queued::Large(_) | Queued::Arrival(_) => None,
        })
    }

    /// Removes and returns the next arrival in order, if it is complete.
    pub(super) fn pop(&mut self) -> Option<Arrival> {
        match self.queue.front()? {
            Queued::Large(Large {
                id: Some(id),
                len,
                completed,
                ..
            }) if completed == len => {
                let arrival = Arrival::Large { id: *id, len: *len };
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

    /// Returns the number of bytes by which `held_bytes` + `copied` may grow.
    fn room(&self) -> u64 {
        let used = self.held_bytes.saturating_add(self.copied);
        self.limit.saturating_sub(used)
    }

    /// Whether the limit leaves room for `len` copied bytes in addition to `others` bytes.
    pub(super) fn has_room_for(&self, len: u64, others: u64) -> bool {
        others.saturating_add(len) <= self.room()
    }

    /// Whether the application should copy the next large message out: it holds more than half of
    /// the large messages that it may hold.
    pub(super) fn may_copy_large(&self) -> bool {
        2 * self.held > self.most_held
    }

    /// Records that `len` bytes of a stream were copied.
    pub(super) fn copied(&mut self, len: u64) {
        self.copied += len;
    }

    /// Records that the application has read `len` copied bytes.
    pub(super) fn release_copied(&mut self, len: u64) {
        debug_assert!(self.copied >= len, "no more is read than was copied");
        self.copied = self.copied.saturating_sub(len);
    }

    /// Returns the number of bytes of large messages that are being read or that the application
    /// holds.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the number of messages that have arrived or were announced, and have not been
    /// delivered: an incomplete large message and the messages behind it.
    pub(super) fn undelivered(&self) -> u64 {
        let messages = |queued: &Queued| match queued {
            Queued::Arrival(Arrival::Finish) => 0,
            Queued::Arrival(Arrival::Batch { count, .. }) => u64::from(*count),
            Queued::Arrival(_) | Queued::Large(_) => 1,
        };
        self.queue.iter().map(messages).sum()
    }

    /// Returns the number of queued messages and fragments that hold receives.
    pub(super) fn waiting(&self) -> u32 {
        let receives = |queued: &Queued| match queued {
            Queued::Arrival(Arrival::Finish) => 0,
            Queued::Arrival(Arrival::Batch { count, .. }) => *count,
            Queued::Arrival(_) => 1,
            Queued::Large(large) => match &large.source {
                Source::Memory { .. } => 0,
                Source::Fragments { waiting, .. } => waiting.len() as u32,
            },
        };
        self.queue.iter().map(receives).sum()
    }

    /// Whether every large message has been read or copied whole.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.incomplete == 0
    }

    /// Whether a Grant frame must report *taken*, the number of large messages that were read. It
    /// must if `LARGE_IN_FLIGHT / 2` messages or more are unreported, or if at least one is and no
    /// read is in progress. Fewer wait for the read, so that one frame reports several messages.
    #[inline]
    pub(super) fn report_due(&self) -> bool {
        let unreported = self.taken.wrapping_sub(self.reported);
        unreported >= LARGE_IN_FLIGHT / 2 || (unreported > 0 && self.reads.is_empty())
    }

    /// Returns *taken*, the number of large messages that have been read, for a frame that is being
    /// sent. Records the number as reported.
    #[inline]
    pub(super) fn report_taken(&mut self) -> u32 {
        self.reported = self.taken;
        self.reported
    }
}
