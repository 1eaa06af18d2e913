use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    proto::{
        Arrival, CONTROL_RECEIVES, CONTROL_SENDS, CloseReason, CmCall, CmOp, Connection,
        Descriptor, DrainSide, Event, Output, Params, READS, Read, SendRefused, Transmit, Work,
    },
    status::{OsError, WcStatus},
};

/// The longest piece in which a large message is read.
const PIECE: u64 = 1 << 20;
/// How many large messages of the peer's may have been announced of which it was not told that they were read.
const LARGE_IN_FLIGHT: u32 = 4;

/// A work request of the send queue.
#[derive(Debug)]
struct Sent {
    slot: u32,
    signalled: bool,
    read: Option<u64>,
}

/// A large message of the peer's: what it said of it, and how far it was read.
#[derive(Debug)]
struct Large {
    descriptor: Descriptor,
    id: Option<u32>,
    asked: u64,
    come: u64,
}

/// What drives a connection: an honest device with its queue pair, and the books of what the connection may do with them.
///
/// The connection manager and the peer are not its: they do what they like. But as many frames as find a receive come, no more; work
/// requests complete in their order; and those that are there when the queue pair breaks are flushed.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) conn: Connection,
    pub(crate) params: Params,
    pub(crate) now: Instant,
    posted: VecDeque<u32>,
    sending: VecDeque<Sent>,
    /// The markers that were posted behind everything else and have not come back.
    markers: Option<Vec<DrainSide>>,
    /// Whether the queue pair is in its error state.
    broken: bool,
    /// What the connection wants of the connection manager and was not done.
    pub(crate) wanted: VecDeque<CmOp>,
    /// Whether the peer may have a live queue pair to send to.
    pub(crate) connected: bool,
    established: bool,
    ended: Option<CloseReason>,
    timer: Option<Instant>,
    /// The frame in each buffer that the device has completed and that was not handed on.
    filled: HashMap<u32, Vec<u8>>,
    /// Buffers that the application has.
    kept: VecDeque<u32>,
    /// Large messages that the application has.
    large: VecDeque<u64>,
    /// Large messages that are begun or announced and not delivered, oldest first.
    inbound: VecDeque<Large>,
    /// How many large messages the peer announced.
    announced: u32,
    /// Whether the peer has broken the protocol, or aborted: nothing of it is delivered from then on.
    disowned: bool,
    /// How many large messages of the peer's were read whole.
    read_whole: u32,
    /// How many receives for data were posted again.
    released: u32,
    /// The last grant and count of large messages taken that the peer was told of.
    told: (u32, u32),
    /// Messages sent, in all, and as many as the peer has granted.
    pub(crate) credit: (u32, u32),
    /// Large messages of this side's, in all, and as many as were taken.
    pub(crate) lent: (u32, u32),
    lengths: VecDeque<u64>,
}

impl Device {
    pub(crate) fn new(conn: Connection, params: Params, window: u16, now: Instant) -> Self {
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
            ended: None,
            timer: None,
            filled: HashMap::new(),
            kept: VecDeque::new(),
            large: VecDeque::new(),
            inbound: VecDeque::new(),
            announced: 0,
            disowned: false,
            read_whole: 0,
            released: 0,
            told: (params.window.into(), 0),
            credit: (0, window.into()),
            lent: (0, 0),
            lengths: VecDeque::new(),
            params,
        };
        this.settle();
        this
    }

    /// Does what the connection wants, and checks that it may.
    pub(crate) fn settle(&mut self) {
        let mut outputs = 0;
        let mut bad = false;
        while let Some(output) = self.conn.poll_output() {
            assert_eq!(self.ended, None, "nothing comes after the end: {output:?}");
            outputs += 1;
            assert!(outputs < 1000, "it comes to rest");
            match output {
                Output::Cm(op) => self.wanted.push_back(op),
                Output::Post(transmit) => {
                    assert!(!matches!(transmit.header[0], 1 | 16), "control frames only");
                    self.post(&transmit, 0);
                }
                Output::Repost(buffer) => {
                    let frame = self.filled.remove(&buffer).expect("it was received");
                    // But for control frames only what breaks the protocol.
                    bad |= frame.first().is_none_or(|kind| matches!(kind, 1 | 16));
                    self.repost(buffer);
                }
                Output::Release(buffer) => {
                    let frame = self.filled.remove(&buffer).expect("it was received");
                    assert_eq!(frame[0], 16, "large messages only");
                    self.released += 1;
                    self.repost(buffer);
                    self.conn.release();
                }
                Output::Begin { id, len } => self.begin(id, len),
                Output::Prepare { len, .. } => self.conn.handle_prepared(len, self.now),
                Output::Read(read) => self.read(&read),
                Output::PostDrainMarkers => {
                    self.broken = true;
                    let markers = vec![DrainSide::Recv, DrainSide::Send];
                    assert_eq!(self.markers.replace(markers), None, "once");
                }
                Output::Timer => self.timer = self.conn.next_timeout(),
                Output::Event(event) => self.event(event),
            }
        }
        if self.ended.is_none() {
            assert_eq!(self.timer, self.conn.next_timeout(), "the deadline is told");
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
            "what is taken is kept"
        );
        if self.established && self.conn.close_reason().is_none() {
            assert!(self.announced - self.told.1 <= LARGE_IN_FLIGHT);
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
            Event::Established | Event::Disconnected { .. } | Event::Writable
        ) {
            assert!(self.established, "{event:?}");
        }
        assert!(
            !self.disowned || !matches!(event, Event::Arrived(_)),
            "{event:?}"
        );
        match event {
            Event::Established => assert!(!std::mem::replace(&mut self.established, true)),
            Event::Arrived(Arrival::Message {
                buffer,
                offset,
                len,
            }) => {
                let frame = self.filled.remove(&buffer).expect("it was received");
                assert_eq!(frame[0], 1);
                assert_eq!((offset, len as usize), (16, frame.len() - 16));
                assert!(len <= self.params.eager_size);
                self.kept.push_back(buffer);
            }
            Event::Arrived(Arrival::Immediate { buffer, .. }) => {
                let frame = self.filled.remove(&buffer).expect("it was received");
                assert!(frame.is_empty());
                self.kept.push_back(buffer);
            }
            Event::Arrived(Arrival::Large { id, len }) => {
                let large = self.inbound.pop_front().expect("it was announced");
                assert_eq!(
                    (large.id, large.descriptor.len, large.come),
                    (Some(id), len, len)
                );
                self.large.push_back(len);
            }
            Event::Taken(count) => {
                assert!(count > 0);
                self.lengths.drain(..count as usize);
                self.lent.1 += count;
            }
            Event::Answered | Event::Writable => {}
            Event::Disconnected { reason, delivered } => {
                assert!(!delivered || self.lengths.is_empty(), "all of it was taken");
                self.ended = Some(reason);
            }
        }
    }

    fn take_slot(&mut self, slot: u32, reserved: u32, signalled: bool, read: Option<u64>) {
        assert!(self.ended.is_none());
        let slots = self.params.send_slots + READS + CONTROL_SENDS;
        assert!(slot < slots, "the slot exists");
        assert!(
            self.sending.iter().all(|sent| sent.slot != slot),
            "the slot is free"
        );
        self.sending.push_back(Sent {
            slot,
            signalled,
            read,
        });
        assert!(self.sending.len() <= (slots - reserved) as usize);
        assert!(
            self.sending.len() < slots as usize || self.sending.iter().any(|sent| sent.signalled),
            "a full ring is heard of again"
        );
    }

    fn post(&mut self, transmit: &Transmit, len: u32) {
        let header = &transmit.header;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let reserved = match header[0] {
            1 | 16 => READS + CONTROL_SENDS,
            2..=8 => 0,
            other => panic!("kind {other}"),
        };
        self.take_slot(transmit.slot, reserved, transmit.signalled, None);
        assert_eq!((header[1], header[2], header[3]), (0, 0, 0));
        assert_eq!(word(8), len);
        // What is granted is posted, and no grant goes back.
        let grant = word(4);
        assert!(grant >= self.told.0 && grant <= self.released + u32::from(self.params.window));
        self.told.0 = grant;
        if !matches!(header[0], 6 | 8) {
            let taken = word(12);
            assert!(taken >= self.told.1 && taken <= self.read_whole);
            self.told.1 = taken;
        }
        if matches!(header[0], 1 | 16) {
            self.credit.0 += 1;
        }
        assert!(self.credit.0 <= self.credit.1, "no message without credit");
    }

    fn begin(&mut self, id: u32, len: u64) {
        let first = self.inbound.iter_mut().find(|large| large.id.is_none());
        let first = first.expect("it was announced");
        assert_eq!(len, first.descriptor.len);
        first.id = Some(id);
        self.conn.handle_memory(id, self.now);
    }

    fn read(&mut self, read: &Read) {
        let first = self
            .inbound
            .iter_mut()
            .find(|large| large.asked < large.descriptor.len)
            .expect("it was announced");
        assert_eq!(read.offset, first.asked, "no byte twice, none left out");
        assert!(read.len > 0 && read.len <= PIECE);
        assert!(read.offset + read.len <= first.descriptor.len);
        assert_eq!(read.remote_addr, first.descriptor.addr + read.offset);
        assert_eq!(read.rkey, first.descriptor.rkey);
        assert_eq!(first.id, Some(read.id));
        first.asked += read.len;
        self.take_slot(read.slot, CONTROL_SENDS, true, Some(read.len));
        let reads = self.sending.iter().filter(|sent| sent.read.is_some());
        assert!(reads.count() <= READS as usize);
    }

    fn repost(&mut self, buffer: u32) {
        let count = u32::from(self.params.window) + CONTROL_RECEIVES;
        assert!(buffer < count, "the buffer exists");
        assert!(!self.posted.contains(&buffer) && !self.kept.contains(&buffer));
        self.posted.push_back(buffer);
    }

    // What the driver does.

    /// Does the next thing that is wanted of the connection manager. Says what it was.
    pub(crate) fn perform(&mut self) -> Option<CmCall> {
        let op = self.wanted.pop_front()?;
        let call = op.call();
        match op {
            CmOp::CreateTransport => {
                let count = u32::from(self.params.window) + CONTROL_RECEIVES;
                self.posted = (0..count).collect();
            }
            CmOp::Connect { .. } | CmOp::Accept { .. } => self.connected = true,
            // Its turn comes at once.
            CmOp::AwaitTurn => self.conn.take_turn(self.now),
            CmOp::Discard => {
                assert!(self.sending.is_empty() && !self.established);
                self.posted.clear();
                self.connected = false;
            }
            CmOp::Disconnect => {
                self.broken = true;
            }
            CmOp::CreateId
            | CmOp::ResolveAddr { .. }
            | CmOp::ResolveRoute { .. }
            | CmOp::Reject { .. }
            | CmOp::SetMinRnrTimer => {}
        }
        Some(call)
    }

    /// The next thing that is wanted of the connection manager cannot be done.
    pub(crate) fn fail_to_perform(&mut self, errno: i32) {
        if let Some(op) = self.wanted.pop_front() {
            let error = OsError::new("rdma_call", errno);
            self.conn.handle_cm_failure(op.call(), error, self.now);
        }
    }

    fn receive(&mut self, frame: &[u8]) -> Option<u32> {
        if !self.connected || self.broken || self.ended.is_some() {
            return None;
        }
        let buffer = self.posted.pop_front()?;
        self.filled.insert(buffer, frame.to_vec());
        Some(buffer)
    }

    /// The peer sends these, as far as there are receives, before anybody looks at one of them.
    pub(crate) fn frames(&mut self, frames: &[Vec<u8>]) {
        let arrived: Vec<_> = frames
            .iter()
            .map_while(|frame| self.receive(frame).map(|buffer| (buffer, frame)))
            .collect();
        for (buffer, frame) in arrived {
            self.frame(buffer, frame);
            self.settle();
        }
    }

    fn frame(&mut self, buffer: u32, frame: &[u8]) {
        // The connection may take it only later, or never: its books of that are compared with what comes of it.
        if let Some(descriptor) = large(frame) {
            self.announced += 1;
            self.inbound.push_back(Large {
                descriptor,
                id: None,
                asked: 0,
                come: 0,
            });
        }
        if frame.len() >= 16 {
            let grant = u32::from_be_bytes(frame[4..8].try_into().unwrap());
            if grant > self.credit.1 && grant - self.credit.0 <= self.window() {
                self.credit.1 = grant;
            }
        }
        self.conn.handle_recv(buffer, frame, self.now);
    }

    /// How far ahead of what was sent a grant may be.
    pub(crate) fn window(&self) -> u32 {
        self.conn
            .negotiated()
            .map_or(0, |negotiated| negotiated.send_window.into())
    }

    /// The peer writes to this side's memory, and says so.
    pub(crate) fn immediate(&mut self, word: u32, len: u32) {
        // Half of them before this side gave out memory to write to.
        if word & 1 == 1 {
            self.conn.allow_immediates();
        }
        if let Some(buffer) = self.receive(&[]) {
            self.conn.handle_immediate(buffer, word, len, self.now);
        }
    }

    /// The oldest work request of the send queue is done, up to the next whose end is told of.
    pub(crate) fn complete(&mut self) {
        if self.broken || !self.connected {
            return;
        }
        let Some(last) = self.sending.iter().position(|sent| sent.signalled) else {
            return;
        };
        let done: Vec<Sent> = self.sending.drain(..=last).collect();
        let Some(Sent { slot, read, .. }) = done.last() else {
            return;
        };
        let Some(piece) = read else {
            self.conn.handle_sent(*slot, self.now);
            return;
        };
        let first = self
            .inbound
            .iter_mut()
            .find(|large| large.come < large.descriptor.len)
            .expect("it is being read");
        first.come += piece;
        self.read_whole += u32::from(first.come == first.descriptor.len);
        self.conn.handle_read(*slot, self.now);
    }

    /// A work request fails, and the queue pair breaks.
    pub(crate) fn fail(&mut self, recv: bool, status: WcStatus) {
        if self.broken || self.ended.is_some() {
            return;
        }
        let work = match (recv, self.posted.front(), self.sending.front()) {
            (true, Some(&buffer), _) => Work::Recv { buffer },
            (false, _, Some(sent)) => work(sent),
            _ => return,
        };
        match work {
            Work::Recv { .. } => drop(self.posted.pop_front()),
            Work::Send { .. } | Work::Read { .. } => drop(self.sending.pop_front()),
        }
        self.broken = true;
        self.conn.handle_work_error(work, status, 0x81, self.now);
    }

    /// The next that comes back of a broken queue pair.
    pub(crate) fn flush(&mut self, recv: bool) {
        if !self.broken || self.ended.is_some() {
            return;
        }
        let side = if recv {
            DrainSide::Recv
        } else {
            DrainSide::Send
        };
        let work = if recv {
            self.posted.pop_front().map(|buffer| Work::Recv { buffer })
        } else {
            self.sending.pop_front().as_ref().map(work)
        };
        if let Some(work) = work {
            let status = WcStatus::WR_FLUSH_ERR;
            self.conn.handle_work_error(work, status, 0x81, self.now);
        } else if let Some(markers) = &mut self.markers
            && let Some(at) = markers.iter().position(|marker| *marker == side)
        {
            markers.swap_remove(at);
            self.conn.handle_drained(side);
        }
    }

    pub(crate) fn send(&mut self, len: usize) {
        let eager = self
            .conn
            .negotiated()
            .map_or(0, |negotiated| negotiated.send_eager);
        let result = if len <= eager as usize {
            self.conn
                .send(len)
                .map(|transmit| self.post(&transmit, len as u32))
        } else {
            let descriptor = Descriptor {
                addr: 1 << 40,
                len: len as u64,
                rkey: 1,
            };
            self.conn.send_large(&descriptor).map(|transmit| {
                self.lengths.push_back(descriptor.len);
                self.lent.0 += 1;
                self.post(&transmit, 24);
            })
        };
        self.check_refusal(result.err());
    }

    pub(crate) fn operate(&mut self, takes_receive: bool) {
        let result = self.conn.operate(takes_receive).map(|slot| {
            self.take_slot(slot, READS + CONTROL_SENDS, true, None);
            self.credit.0 += u32::from(takes_receive);
            assert!(self.credit.0 <= self.credit.1, "no receive without credit");
        });
        self.check_refusal(result.err());
    }

    pub(crate) fn ask(&mut self) {
        let result = self.conn.flush();
        let flushed = result
            .as_ref()
            .is_ok_and(|flush| self.conn.is_flushed(flush));
        assert!(!flushed, "the peer has not answered yet");
        self.check_refusal(result.err());
    }

    fn check_refusal(&self, refused: Option<SendRefused>) {
        match refused {
            Some(SendRefused::Closed(reason)) => {
                assert_eq!(Some(&reason), self.conn.close_reason());
            }
            Some(SendRefused::TooLong { limit }) => {
                let negotiated = self.conn.negotiated().expect("it was established");
                assert_eq!(limit, negotiated.send_limit);
            }
            Some(SendRefused::Blocked) | None => assert_eq!(self.ended, None),
        }
    }

    pub(crate) fn release(&mut self) {
        if let Some(buffer) = self.kept.pop_front()
            && self.conn.accepts_receives()
        {
            self.released += 1;
            self.repost(buffer);
            self.conn.release();
        }
    }

    pub(crate) fn release_large(&mut self) {
        if let Some(len) = self.large.pop_front() {
            self.conn.release_large(len, self.now);
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.conn.handle_timeout(self.now);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

fn work(sent: &Sent) -> Work {
    let slot = sent.slot;
    match sent.read {
        Some(_) => Work::Read { slot },
        None => Work::Send { slot },
    }
}

/// The descriptor of a frame that announces a large message.
fn large(frame: &[u8]) -> Option<Descriptor> {
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().unwrap());
    let whole = frame.len() == 40 && frame[..4] == [16, 0, 0, 0] && word(8) == 24;
    whole.then(|| Descriptor {
        addr: long(16),
        len: long(24),
        rkey: word(32),
    })
}
