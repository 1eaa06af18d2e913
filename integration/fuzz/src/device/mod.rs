//! The simulated driver and device of the connection under test.

mod application;
mod checks;
mod driver;

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use crate::{
    proto::{
        Arrival, CloseReason, CmOp, Connection, Descriptor, DrainSide, Event, Output, Params, parts,
    },
    wire::word,
};

/// The maximum number of large messages in flight. A large message is in flight from the peer's
/// announcement until this side has reported the message as read.
const LARGE_IN_FLIGHT: u32 = 4;

/// A work request in the send queue.
#[derive(Debug)]
struct Sent {
    slot: u32,
    signalled: bool,
    read: Option<u64>,
}

/// A large message of the peer, and the progress of reading it.
#[derive(Debug)]
pub(crate) struct Large {
    descriptor: Descriptor,
    id: Option<u32>,
    pub(crate) requested: u64,
    completed: u64,
    /// The number of bytes that later fragments of this message must still carry. 0 if all
    /// fragments have arrived, or if the connection fetches the message with READs.
    missing: u32,
}

impl Large {
    fn new(descriptor: Descriptor, missing: u32) -> Self {
        Self {
            descriptor,
            id: None,
            requested: 0,
            completed: 0,
            missing,
        }
    }
}

/// The number of messages sent, and the total number that the receiver permits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    pub(crate) used: u32,
    pub(crate) limit: u32,
}

impl Credit {
    fn of(limit: u32) -> Self {
        Self { used: 0, limit }
    }

    fn use_for(&mut self, messages: u32) {
        self.used += messages;
        assert!(self.used <= self.limit, "each message must have a credit");
    }
}

/// A simulated driver, queue pair and device for one connection. The device behaves correctly. The
/// simulation checks every output of the connection.
///
/// The fuzz input determines the behaviour of the connection manager and of the peer. A frame of
/// the peer arrives only if a receive is posted. The device completes work requests in order. If
/// the queue pair enters the error state, the device flushes the pending work requests.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) conn: Connection,
    pub(crate) params: Params,
    pub(crate) now: Instant,
    pub(crate) posted: VecDeque<u32>,
    sending: VecDeque<Sent>,
    /// The posted drain markers that have not completed yet. `None` before the markers are posted.
    markers: Option<Vec<DrainSide>>,
    /// Whether the queue pair is in the error state.
    broken: bool,
    /// The calls to the connection manager that the connection has requested and that are still to
    /// be performed.
    pub(crate) wanted: VecDeque<CmOp>,
    /// Whether the queue pair is connected. If it is not, no frame arrives and no send completes.
    pub(crate) connected: bool,
    established: bool,
    /// Whether the private data of the connection request are sent in a separate frame.
    long: bool,
    /// Whether the connection has asked the application to answer the request.
    requested: bool,
    pub(crate) ended: Option<CloseReason>,
    timer: Option<Instant>,
    /// The received frame in each filled buffer. An entry is removed when the connection delivers
    /// the frame or reposts the buffer.
    filled: HashMap<u32, Vec<u8>>,
    /// The buffers of the messages that the application holds. A buffer with several of these
    /// messages is listed once for each of them.
    pub(crate) kept: VecDeque<u32>,
    /// The lengths in bytes of the large messages that the application holds.
    pub(crate) large: VecDeque<u64>,
    /// The large messages that the peer has started to send or has announced, and that the
    /// connection has not delivered yet. The oldest message is first.
    pub(crate) inbound: VecDeque<Large>,
    /// The number of large messages that the peer has announced.
    announced: u32,
    /// Whether the peer has violated the protocol or has aborted. From then on, the connection
    /// delivers no messages.
    disowned: bool,
    /// The number of large messages that this side has read completely.
    taken: u32,
    /// The number of messages that were released, either by the application or by the connection
    /// (with `Output::Release`).
    released: u32,
    /// The counters that this side last sent to the peer: first the grant, then the number of large
    /// messages read.
    reported: (u32, u32),
    /// The number of the next frame that this side receives, modulo 2¹⁶.
    frames_received: u16,
    /// The kind of each frame that this side has sent.
    pub(crate) sent_kinds: Vec<u8>,
    /// The messages of this side, except control messages.
    pub(crate) credit: Credit,
    /// The number of large messages that this side has announced, and the number of these messages
    /// that the peer has read.
    pub(crate) exposed: (u32, u32),
    /// The control messages that the connection has accepted from the application.
    pub(crate) control: Credit,
    /// The number of control messages that this side has posted.
    control_posted: u32,
    /// The control messages of the peer.
    pub(crate) control_received: Credit,
    /// The number of control messages that the application holds.
    pub(crate) untaken: u32,
    /// The number of messages that the application holds back, to send several of them in one
    /// frame. They must be sent before all other messages.
    held: u32,
    lengths: VecDeque<u64>,
    /// Whether the application has finished sending.
    finished: bool,
    pub(crate) peer_finished: bool,
    peer_leaves: bool,
}

impl Device {
    pub(crate) fn new(
        conn: Connection,
        params: Params,
        window: u16,
        long: bool,
        now: Instant,
    ) -> Self {
        let mut this = Self {
            conn,
            now,
            posted: VecDeque::new(),
            sending: VecDeque::new(),
            markers: None,
            broken: false,
            wanted: VecDeque::new(),
            connected: false,
            established: false,
            long,
            requested: false,
            ended: None,
            timer: None,
            filled: HashMap::new(),
            kept: VecDeque::new(),
            large: VecDeque::new(),
            inbound: VecDeque::new(),
            announced: 0,
            disowned: false,
            taken: 0,
            released: 0,
            reported: (params.window.into(), 0),
            frames_received: 0,
            sent_kinds: Vec::new(),
            credit: Credit::of(window.into()),
            exposed: (0, 0),
            control: Credit::of(2),
            control_posted: 0,
            control_received: Credit::of(2),
            untaken: 0,
            held: 0,
            lengths: VecDeque::new(),
            finished: false,
            peer_finished: false,
            peer_leaves: false,
            params,
        };
        this.perform_outputs();
        this
    }

    /// Performs the outputs of the connection, and checks that each output is permitted.
    pub(crate) fn perform_outputs(&mut self) {
        let mut outputs = 0;
        let mut bad = false;
        while let Some(output) = self.conn.poll_output() {
            assert_eq!(
                self.ended, None,
                "no output may follow the end of the connection: {output:?}"
            );
            outputs += 1;
            assert!(outputs < 1000, "the connection must stop producing outputs");
            match output {
                Output::Cm(op) => self.wanted.push_back(op),
                Output::Post(transmit) => {
                    assert!(
                        !matches!(transmit.header[0], 1 | 10 | 13 | 14 | 16..=18),
                        "a frame without payload must be a control frame"
                    );
                    self.post(&transmit, 0);
                }
                Output::PostWithPayload(transmit, message) => {
                    assert!(matches!(transmit.header[0], 10 | 13 | 14));
                    self.post(&transmit, message.len() as u32);
                }
                Output::Repost(buffer) => {
                    let frame = self.take_filled(buffer);
                    // The connection may repost the buffer of a message or of immediate data only
                    // if the connection closes. An assertion below checks this. The connection may
                    // always repost the buffers of other frames.
                    bad |= frame.first().is_none_or(|kind| matches!(kind, 1 | 16..=18));
                    self.repost(buffer);
                }
                Output::Release(buffer) => {
                    let frame = self.take_filled(buffer);
                    assert!(
                        matches!(frame[0], 16 | 18),
                        "the buffer must belong to a large message"
                    );
                    self.released += 1;
                    self.repost(buffer);
                    self.conn.release(self.now);
                }
                Output::Begin { id, len } => self.begin(id, len),
                Output::Prepare { len, .. } => self.conn.handle_prepared(len, self.now),
                Output::Read(read) => self.read(&read),
                Output::Copy(copy) => self.copy(&copy),
                Output::Nudge { .. } => unreachable!("a nudge must be posted only on iWARP"),
                Output::PostDrainMarkers => {
                    self.broken = true;
                    let markers = vec![DrainSide::Recv, DrainSide::Send];
                    assert_eq!(
                        self.markers.replace(markers),
                        None,
                        "the drain markers must be posted only once"
                    );
                }
                Output::Timer => self.timer = self.conn.next_timeout(),
                Output::Event(event) => self.event(event),
                Output::Note(_) => {}
            }
        }
        if self.ended.is_none() {
            assert_eq!(
                self.timer,
                self.conn.next_timeout(),
                "the connection must report each new deadline"
            );
        } else {
            assert_eq!(self.conn.next_timeout(), None);
            assert_eq!(self.ended.as_ref(), self.conn.close_reason());
        }
        self.disowned = matches!(
            self.conn.close_reason(),
            Some(CloseReason::ProtocolViolation(_) | CloseReason::PeerAborted(_))
        );
        assert!(
            !bad || self.conn.close_reason().is_some(),
            "an open connection must not discard a message"
        );
        if self.established && self.conn.close_reason().is_none() {
            assert!(self.announced - self.reported.1 <= LARGE_IN_FLIGHT);
        }
        let statistics = self.conn.statistics();
        assert_eq!(
            statistics.large_bytes_exposed,
            self.lengths.iter().sum::<u64>()
        );
        let begun = self.inbound.iter().filter(|large| large.id.is_some());
        let held: Vec<u64> = begun
            .map(|large| large.descriptor.len)
            .chain(self.large.iter().copied())
            .collect();
        assert!(held.len() <= self.params.window.into());
        assert!(held.len() == 1 || held.iter().sum::<u64>() <= self.params.large_memory);
        if self.ended.is_none() {
            assert_eq!(statistics.large_bytes_held, held.iter().sum::<u64>());
        }
    }

    fn event(&mut self, event: Event) {
        if !matches!(
            event,
            Event::Established
                | Event::Requested
                | Event::Answered
                | Event::Disconnected { .. }
                | Event::Writable
        ) {
            assert!(self.established, "{event:?}");
        }
        let is_over = self.disowned || self.peer_finished;
        assert!(!is_over || !matches!(event, Event::Arrived(_)), "{event:?}");
        match event {
            Event::Established => assert!(!std::mem::replace(&mut self.established, true)),
            Event::Requested => {
                assert!(self.long && !self.established);
                assert!(!std::mem::replace(&mut self.requested, true));
            }
            Event::Arrived(Arrival::Message {
                buffer,
                offset,
                len,
            }) => {
                let frame = self.take_filled(buffer);
                assert_eq!(frame[0], 1);
                assert_eq!((offset, len as usize), (16, frame.len() - 16));
                assert!(len <= self.params.eager_size);
                self.kept.push_back(buffer);
            }
            Event::Arrived(Arrival::Batch { buffer, len, count }) => {
                let frame = self.take_filled(buffer);
                assert_eq!((frame[0], len as usize), (17, frame.len() - 16));
                assert!(len <= self.params.eager_size && count > 0);
                let parts: Vec<_> = parts(&frame[16..]).collect();
                assert_eq!(parts.len(), count as usize);
                let lens: u32 = parts.iter().map(|(_, len)| 4 + len).sum();
                assert_eq!(lens, len, "the batch must contain only whole messages");
                self.kept.extend(parts.iter().map(|_| buffer));
            }
            Event::Arrived(Arrival::Immediate { buffer, .. }) => {
                let frame = self.take_filled(buffer);
                assert!(frame.is_empty());
                self.kept.push_back(buffer);
            }
            Event::Arrived(Arrival::Large { id, len }) => {
                let large = self
                    .inbound
                    .pop_front()
                    .expect("a large message must be announced");
                assert_eq!(
                    (large.id, large.descriptor.len, large.completed),
                    (Some(id), len, len)
                );
                self.large.push_back(len);
            }
            Event::Arrived(Arrival::Finish) => self.peer_finished = true,
            Event::Taken(count) => {
                assert!(count > 0);
                self.lengths.drain(..count as usize);
                self.exposed.1 += count;
            }
            Event::ControlMessage { buffer, len } => {
                // The connection reposts the buffer after this event.
                let frame = self.filled.get(&buffer).expect("the buffer must be filled");
                assert_eq!((frame[0], len as usize), (10, frame.len() - 16));
                assert!(len <= self.params.eager_size.min(256));
                assert_eq!(
                    word(frame, 12),
                    self.control_received.used,
                    "control messages must be in order, without repetition"
                );
                self.control_received.use_for(1);
                self.untaken += 1;
                assert!(self.untaken <= 2);
            }
            Event::PeerLeaving => assert!(!std::mem::replace(&mut self.peer_leaves, true)),
            Event::Answered | Event::Writable => {}
            Event::Disconnected { reason, delivered } => {
                assert!(
                    !delivered || self.lengths.is_empty(),
                    "if `delivered` is set, the peer must have taken all large messages"
                );
                self.ended = Some(reason);
            }
        }
    }
}
