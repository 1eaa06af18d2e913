//! The queue of messages that have arrived or been announced, but have not been delivered yet. The
//! messages are in the order in which the peer sent them.

use std::{collections::VecDeque, time::Instant};

use super::{
    chunk_pace::{ChunkPace, LONGEST_CHUNK},
    frame::{Descriptor, Kind},
    outbound::LARGE_IN_FLIGHT,
    output::{Arrival, FragmentCopy, Read},
    reason::Violation,
};

/// The large messages that are being received, and the queue of messages behind them.
///
/// This side first reserves memory for each large message. The reservation can take some time. If a
/// Rendezvous frame announced the message, this side then reads the message in chunks. It prepares
/// the memory of each chunk before it reads the chunk. If the peer sends the message in Fragment
/// frames, this side copies each fragment to the reserved memory, unless the transport has received
/// the fragment there.
///
/// Reads complete in the order in which they were posted. A message in fragments can become
/// complete while this side still reads an earlier message, but is delivered after that message.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Inbound {
    /// Undelivered messages, oldest first. If the queue is not empty, its front is a large message.
    queue: VecDeque<Queued>,
    /// The number of large messages in `queue` that are incomplete.
    incomplete: u32,
    /// The step or the resource that the next read or copy waits for.
    demand: Demand,
    /// The lengths in bytes of the reads in progress, oldest first.
    reads: VecDeque<u64>,
    /// The number of chunks read plus the number of fragments received.
    chunks: u64,
    /// The total length in bytes of the chunks and fragments that `chunks` counts.
    bytes: u64,
    pace: ChunkPace,
    /// The number of large messages for which memory was requested. This number is the id of the
    /// next such message.
    started: u32,
    /// The number of large messages that the peer has announced.
    announced: u32,
    /// The number of messages in fragments that have begun to arrive.
    fragmented: u32,
    /// The number of large messages that have been read completely.
    taken: u32,
    /// The newest value of `taken` that was sent to the peer.
    reported: u32,
    /// The number of large messages for which memory was requested, less those that the application
    /// has released.
    held: u32,
    /// The total length in bytes of the messages that `held` counts.
    held_bytes: u64,
    /// For a byte stream: the number of bytes that were copied out of receive buffers and that the
    /// application has not consumed.
    copied: u64,
    /// The maximum value of `held`.
    max_held: u32,
    /// The maximum of `held_bytes` + `copied`. A single message may exceed this maximum.
    limit: u64,
}

/// A step in receiving a large message. The driver performs the steps.
#[derive(Debug)]
pub(super) enum Step {
    /// Reserve memory for the message.
    Begin { id: u32, len: u64 },
    /// Prepare the memory of one chunk of the message.
    Prepare { id: u32, offset: u64, len: u64 },
    /// Post the read of a chunk.
    Read(Read),
    /// Copy a fragment to the message's memory.
    Copy(FragmentCopy),
}

/// The step or the resource that the next read or copy waits for.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
enum Demand {
    Nothing,
    /// Reserved memory for the message with this id and length in bytes.
    Reservation {
        id: u32,
        len: u64,
    },
    /// Prepared memory for the chunk of this read.
    Memory(Read),
    /// A free slot of the send ring for this read. Memory for the chunk is already prepared.
    Slot(Read),
    /// The copy of this fragment to the message's memory.
    Copy(FragmentCopy),
}

/// An element of [`Inbound::queue`].
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Queued {
    /// A complete arrival that waits behind an incomplete large message.
    Arrival(Arrival),
    Large(Large),
}

/// A large message. Memory is reserved separately for each large message.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Large {
    len: u64,
    source: Source,
    /// The id, which is assigned when memory for the message is requested.
    id: Option<u32>,
    /// Whether memory is reserved for the message.
    has_memory: bool,
    /// For a message that this side reads: the number of bytes for which reads were posted. For a
    /// message in fragments: the number of bytes copied.
    requested: u64,
    /// The number of bytes that have been read or copied.
    completed: u64,
}

/// The source of the bytes of a large message.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Source {
    /// The peer's memory, from which this side reads the message.
    Memory { addr: u64, rkey: u32 },
    /// Fragment frames from the peer.
    Fragments {
        /// The number of messages in fragments that began before this one.
        number: u32,
        /// The number of bytes of the message that have arrived.
        arrived: u64,
        /// Fragments that have not been copied, oldest first.
        waiting: VecDeque<Fragment>,
    },
}

/// A fragment of a message.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Fragment {
    pub(super) buffer: u32,
    /// The length in bytes of the payload.
    pub(super) len: u32,
    /// Whether the transport has received the payload directly into the memory of the message.
    pub(super) in_place: bool,
}

impl Large {
    fn new(len: u64, source: Source) -> Self {
        Self {
            len,
            source,
            id: None,
            has_memory: false,
            requested: 0,
            completed: 0,
        }
    }

    fn is_complete(&self) -> bool {
        self.completed == self.len
    }
}

impl Queued {
    /// Returns the large message, if this element is an incomplete large message.
    fn incomplete(&self) -> Option<&Large> {
        match self {
            Self::Large(large) if !large.is_complete() => Some(large),
            Self::Large(_) | Self::Arrival(_) => None,
        }
    }
}

impl Inbound {
    /// Creates an empty queue. At most `max_held` large messages can be in progress or held by the
    /// application. `limit` is the maximum total length in bytes of these messages and of the bytes
    /// copied for a byte stream. Large messages are read in chunks of at most `longest_chunk`
    /// bytes.
    pub(super) fn new(max_held: u16, limit: u64, longest_chunk: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            incomplete: 0,
            demand: Demand::Nothing,
            reads: VecDeque::new(),
            chunks: 0,
            bytes: 0,
            pace: ChunkPace::new(longest_chunk),
            started: 0,
            announced: 0,
            fragmented: 0,
            taken: 0,
            reported: 0,
            held: 0,
            held_bytes: 0,
            copied: 0,
            max_held: max_held.into(),
            limit,
        }
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns true if the queue is empty. An arrival can then be delivered immediately.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a complete arrival if an incomplete large message precedes it. Otherwise returns the
    /// arrival, which can be delivered immediately.
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

    /// If the newest message is sent in fragments, returns the number of its bytes that have not
    /// arrived. Returns `None` if no fragment is missing, or if the message is not sent in
    /// fragments.
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

    /// Queues a fragment. `rest` is the number of bytes from the start of this fragment to the end
    /// of its message. The caller must have checked `rest` and the fragment's length.
    pub(super) fn fragment(&mut self, fragment: Fragment, rest: u32) {
        if self.missing().is_none() {
            let source = Source::Fragments {
                number: self.fragmented,
                arrived: 0,
                waiting: VecDeque::new(),
            };
            self.fragmented = self.fragmented.wrapping_add(1);
            self.begin(Large::new(rest.into(), source));
        }
        self.chunks += 1;
        self.bytes += u64::from(fragment.len);
        if let Some(Queued::Large(Large {
            source: Source::Fragments {
                arrived, waiting, ..
            },
            ..
        })) = self.queue.back_mut()
        {
            *arrived += u64::from(fragment.len);
            waiting.push_back(fragment);
        }
    }

    /// Returns the next step in receiving large messages, if a step is possible now. `has_slot`
    /// states whether the send ring has a free slot for a read. If the step is a [`Step::Read`],
    /// the caller must set [`Read::slot`].
    pub(super) fn next_step(&mut self, has_slot: bool) -> Option<Step> {
        match self.demand {
            Demand::Slot(read) if has_slot => {
                self.demand = Demand::Nothing;
                return Some(self.read(read));
            }
            Demand::Reservation { .. } | Demand::Memory(_) | Demand::Copy(_) | Demand::Slot(_) => {
                return None;
            }
            Demand::Nothing => {}
        }
        if self.incomplete == 0 {
            return None;
        }
        let alone = self.held == 0 && self.copied == 0;
        let (may_hold_more, room) = (self.held < self.max_held, self.room());
        let may_read = has_slot && self.reads.len() < self.pace.depth();
        let large = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Large(large) if large.requested < large.len => Some(large),
            Queued::Large(_) | Queued::Arrival(_) => None,
        })?;
        let len = large.len;
        match (large.id, &large.source) {
            (_, Source::Memory { .. }) if !may_read => return None,
            (Some(id), Source::Memory { addr, rkey }) if large.has_memory => {
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
            (
                Some(id),
                Source::Fragments {
                    number, waiting, ..
                },
            ) if large.has_memory => {
                let Fragment {
                    buffer,
                    len,
                    in_place,
                } = *waiting.front()?;
                self.demand = Demand::Copy(FragmentCopy {
                    id,
                    number: *number,
                    offset: large.requested,
                    buffer,
                    len,
                    in_place,
                });
            }
            (None, _) if alone || (may_hold_more && len <= room) => {
                let id = self.started;
                large.id = Some(id);
                self.started = id.wrapping_add(1);
                self.held += 1;
                self.held_bytes = self.held_bytes.saturating_add(len);
                self.demand = Demand::Reservation { id, len };
            }
            (Some(_) | None, _) => return None,
        }
        self.pending_step()
    }

    /// Returns the step that the driver was asked to perform and has not completed yet.
    pub(super) fn pending_step(&self) -> Option<Step> {
        match self.demand {
            Demand::Nothing | Demand::Slot(_) => None,
            Demand::Reservation { id, len } => Some(Step::Begin { id, len }),
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

    /// Records that memory is reserved for the large message with this id.
    pub(super) fn memory_reserved(&mut self, id: u32) {
        if !matches!(self.demand, Demand::Reservation { id: wanted, .. } if wanted == id) {
            debug_assert!(false, "only requested memory may be reserved");
            return;
        }
        self.demand = Demand::Nothing;
        if let Some(large) = self.started(id) {
            large.has_memory = true;
        }
    }

    /// Records that the fragment of the pending [`Step::Copy`] has been copied. Returns the receive
    /// buffer of the fragment, which can now be reposted.
    pub(super) fn fragment_copied(&mut self) -> Option<u32> {
        let Demand::Copy(copy) = self.demand else {
            debug_assert!(false, "only a requested copy may complete");
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

    /// Records that memory is prepared for the first `len` bytes of the next chunk. If the chunk is
    /// longer, the chunk is shortened to `len` bytes.
    pub(super) fn prepared(&mut self, len: u64) {
        if let Demand::Memory(read) = self.demand {
            debug_assert!(len > 0, "memory must be prepared for at least one byte");
            self.demand = Demand::Slot(Read {
                len: read.len.min(len),
                ..read
            });
        }
    }

    /// Returns whether a read is in progress.
    #[inline]
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Returns whether bytes of a large message are expected: a read is in progress, or fragments
    /// are missing.
    pub(super) fn awaits_bytes(&self) -> bool {
        self.is_reading() || self.missing().is_some()
    }

    /// Returns the number of chunks read plus the number of fragments received.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Returns the total length in bytes of the chunks and fragments that [`chunks`](Self::chunks)
    /// counts.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of bytes that incomplete large messages occupy. For messages in
    /// fragments, this is an upper bound: the driver may have reserved memory for a whole message
    /// that is not longer than a chunk.
    pub(super) fn incomplete_bytes(&self) -> u64 {
        let incomplete = self.queue.iter().filter_map(Queued::incomplete);
        incomplete
            .map(|large| match large.source {
                Source::Fragments { .. } if large.completed > 0 && large.len <= LONGEST_CHUNK => {
                    large.len
                }
                Source::Fragments { .. } | Source::Memory { .. } => large.completed,
            })
            .sum()
    }

    /// Records that a read was posted while no other read was in progress. The pace of reading is
    /// measured from `now`.
    pub(super) fn reads_begin(&mut self, now: Instant) {
        self.pace.begin(now);
    }

    /// Records that the oldest read has completed.
    pub(super) fn chunk_completed(&mut self, now: Instant) {
        let Some(chunk) = self.reads.pop_front() else {
            debug_assert!(false, "only a posted read may complete");
            return;
        };
        self.chunks += 1;
        self.bytes += chunk;
        self.pace.completed(chunk, now);
        // Reads complete in the order in which they were posted, so the chunk belongs to the first
        // message with reads in progress.
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

    /// Returns the rkey of the oldest large message with reads in progress.
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

    /// Removes and returns the arrival at the front of the queue, if it is complete.
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
        debug_assert!(self.held > 0, "only a started message may be released");
        self.held = self.held.saturating_sub(1);
        self.held_bytes = self.held_bytes.saturating_sub(len);
    }

    /// Returns the number of bytes by which `held_bytes` + `copied` can still grow.
    fn room(&self) -> u64 {
        let used = self.held_bytes.saturating_add(self.copied);
        self.limit.saturating_sub(used)
    }

    /// Returns whether `len` bytes can be copied without exceeding the limit, if `others` further
    /// bytes count as used.
    pub(super) fn has_room_for(&self, len: u64, others: u64) -> bool {
        others.saturating_add(len) <= self.room()
    }

    /// Returns true if the application should copy the next large message and free the memory that
    /// the message was received into. This is the case if more than half of the maximum number of
    /// large messages are in progress or held by the application.
    pub(super) fn may_copy_large(&self) -> bool {
        2 * self.held > self.max_held
    }

    /// Records that `len` bytes of a byte stream were copied.
    pub(super) fn copied(&mut self, len: u64) {
        self.copied += len;
    }

    /// Records that the application has consumed `len` of the copied bytes.
    pub(super) fn release_copied(&mut self, len: u64) {
        debug_assert!(self.copied >= len, "only copied bytes may be released");
        self.copied = self.copied.saturating_sub(len);
    }

    /// Returns the total length in bytes of the large messages that are in progress or held by the
    /// application.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the number of messages that have arrived or been announced, but have not been
    /// delivered yet: an incomplete large message and the messages behind it.
    pub(super) fn undelivered(&self) -> u64 {
        let messages = |queued: &Queued| match queued {
            Queued::Arrival(Arrival::Finish) => 0,
            Queued::Arrival(Arrival::Batch { count, .. }) => u64::from(*count),
            Queued::Arrival(_) | Queued::Large(_) => 1,
        };
        self.queue.iter().map(messages).sum()
    }

    /// Returns the number of receives that queued messages and fragments occupy. A batch counts as
    /// one receive for each of its messages.
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

    /// Returns whether all large messages are complete.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.incomplete == 0
    }

    /// Returns true if a Grant frame must report the number of large messages read (*taken*). A
    /// report is due if at least `LARGE_IN_FLIGHT / 2` messages are unreported. A report of fewer
    /// messages is due only when no read is in progress, so that one frame usually reports several
    /// messages.
    #[inline]
    pub(super) fn report_due(&self) -> bool {
        let unreported = self.taken.wrapping_sub(self.reported);
        unreported >= LARGE_IN_FLIGHT / 2 || (unreported > 0 && self.reads.is_empty())
    }

    /// Returns the number of large messages read (*taken*) for a frame that is being sent, and
    /// records this number as reported.
    #[inline]
    pub(super) fn report_taken(&mut self) -> u32 {
        self.reported = self.taken;
        self.reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmented_message_counts_as_a_whole_once_it_has_memory() {
        for (rest, counted) in [(1000, 1000), (LONGEST_CHUNK as u32 + 1, 10)] {
            let mut inbound = Inbound::new(4, 8 << 20, LONGEST_CHUNK);
            let fragment = Fragment {
                buffer: 0,
                len: 10,
                in_place: false,
            };
            inbound.fragment(fragment, rest);
            assert!(matches!(inbound.next_step(true), Some(Step::Begin { .. })));
            inbound.memory_reserved(0);
            assert_eq!(inbound.incomplete_bytes(), 0);
            assert!(matches!(inbound.next_step(true), Some(Step::Copy(_))));
            inbound.fragment_copied();
            assert_eq!(inbound.incomplete_bytes(), counted);
        }
    }
}
