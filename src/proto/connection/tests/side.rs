//! One side of a [`Pair`](super::pair::Pair).

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use crate::{
    proto::{
        Account, Arrival, CONTROL_RECEIVES, CONTROL_SENDS, CloseReason, Connection, DrainSide,
        Params, READS, Read, Transmit, Work,
        frame::{Descriptor, Kind},
    },
    status::WcStatus,
};

/// Something the device reports.
#[derive(Debug)]
pub(super) enum Completion {
    Recv { buffer: u32, frame: Vec<u8> },
    Sent { slot: u32 },
    Read { slot: u32 },
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

/// A work request on its way, with what its sender is to learn of it.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) slot: u32,
    pub(super) signalled: bool,
    pub(super) what: What,
}

/// What a work request does.
#[derive(Debug)]
pub(super) enum What {
    Frame(Vec<u8>),
    Read(Read),
}

impl InFlight {
    pub(super) fn work(&self) -> Work {
        match (&self.what, self.slot) {
            (What::Frame(_), slot) => Work::Send { slot },
            (What::Read(_), slot) => Work::Read { slot },
        }
    }
}

/// A large message that is being read.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) id: u32,
    pub(super) number: u32,
    pub(super) len: u64,
    pub(super) has_memory: bool,
    /// Bytes for which reads were posted.
    pub(super) asked: u64,
    /// Bytes that have come.
    pub(super) come: u64,
}

/// Receives that a side's connection shares with others, of which one stranger stands for all.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) account: Arc<Account>,
    /// What the stranger's peers may still use.
    pub(super) promised: u32,
    /// What the stranger has.
    pub(super) taken: VecDeque<u32>,
}

/// Something that the application has not let go of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    Buffer(u32),
    Large(u64),
}

/// Where the large message of this number lies in its sender's memory.
pub(super) fn lent(number: u32, len: u64) -> Descriptor {
    Descriptor {
        addr: u64::from(number) << 32,
        len,
        rkey: number,
    }
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
    /// Sends that have arrived, which this side's device has not been told yet. Answers to them may
    /// come earlier than that.
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
    /// Messages the application has not let go of.
    pub(super) kept: VecDeque<Kept>,
    /// Large messages that the peer may be reading, oldest first.
    pub(super) lent: VecDeque<Descriptor>,
    /// The peer's large messages that are being read, oldest first.
    pub(super) pulls: VecDeque<Pull>,
    /// Numbers of the messages received.
    pub(super) received: u32,
    pub(super) ended: Option<(CloseReason, bool)>,
    /// Whether a sender was told that it may go on, since it was refused.
    pub(super) writable: bool,
    /// Where receives are shared: the account, and who else draws on it.
    pub(super) shared: Option<Shared>,
    /// Pings that the peer has answered.
    pub(super) answered: u64,
    /// Whether the system has no memory for large messages.
    pub(super) starving: bool,
    /// How often it was asked for some in vain.
    pub(super) starved: u32,
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
            lent: VecDeque::new(),
            pulls: VecDeque::new(),
            received: 0,
            ended: None,
            writable: true,
            shared: None,
            answered: 0,
            starving: false,
            starved: 0,
        }
    }

    pub(super) fn post(&mut self, transmit: Transmit, payload: &[u8]) {
        let kind = transmit.header[0];
        if kind == Kind::Data.number() || kind == Kind::Rendezvous.number() {
            assert!(
                self.slots.len() < self.params.send_slots as usize,
                "data leaves the slots for reads and control frames alone"
            );
        }
        let what = What::Frame([&transmit.header[..], payload].concat());
        self.posted(InFlight {
            slot: transmit.slot,
            signalled: transmit.signalled,
            what,
        });
    }

    /// The application gets something.
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
            Arrival::Large { id, len } => {
                let pull = self.pulls.pop_front().expect("it was begun");
                assert_eq!((pull.id, pull.len, pull.come), (id, len, len));
                self.kept.push_back(Kept::Large(len));
                pull.number
            }
            Arrival::Immediate { .. } => panic!("nobody sends it here"),
        };
        assert_eq!(number, self.received, "in order, none twice, none lost");
        self.received += 1;
    }

    /// Starts looking for memory.
    pub(super) fn begin(&mut self, id: u32, len: u64) {
        self.pulls.push_back(Pull {
            id,
            number: u32::MAX,
            len,
            has_memory: false,
            asked: 0,
            come: 0,
        });
        let held = self.held() + self.pulls.iter().map(|pull| pull.len).sum::<u64>();
        assert!(
            held <= self.params.large_memory || held == len,
            "no more is held than allowed"
        );
    }

    /// The large message for which memory is being looked for.
    pub(super) fn begun(&self) -> Option<u32> {
        self.pulls
            .iter()
            .find(|pull| !pull.has_memory)
            .map(|pull| pull.id)
    }

    /// Makes memory ready for a chunk, or now and then for a part of it: says for how much.
    pub(super) fn prepare(&mut self, id: u32, offset: u64, len: u64) -> u64 {
        let pull = self.pulls.back().expect("it was begun");
        assert!(pull.has_memory && len > 0 && len <= self.params.longest_chunk);
        assert_eq!((pull.id, pull.asked), (id, offset));
        if offset > 0 && len > 4096 && offset.is_multiple_of(3) {
            len - 4096
        } else {
            len
        }
    }

    /// Posts a read of the peer's memory.
    pub(super) fn read(&mut self, read: Read) {
        let pull = self.pulls.back_mut().expect("it was begun");
        assert!(pull.has_memory);
        pull.number = read.rkey;
        assert_eq!((pull.id, pull.asked), (read.id, read.offset));
        assert!(read.len > 0 && pull.asked + read.len <= pull.len);
        pull.asked += read.len;
        let slot = read.slot;
        self.posted(InFlight {
            slot,
            signalled: true,
            what: What::Read(read),
        });
    }

    /// The oldest read is done.
    pub(super) fn read_came(&mut self, read: &Read) {
        let pull = self
            .pulls
            .iter_mut()
            .find(|pull| pull.come < pull.len)
            .expect("it was begun");
        assert_eq!((pull.id, pull.come), (read.id, read.offset));
        pull.come += read.len;
    }

    /// A completion covers everything that was posted before it.
    pub(super) fn slots_are_free_up_to(&mut self, slot: u32) {
        while self.slots.pop_front().is_some_and(|done| done != slot) {}
    }

    /// Bytes of large messages that the application holds.
    fn held(&self) -> u64 {
        let large = |kept: &Kept| match kept {
            Kept::Buffer(_) => 0,
            Kept::Large(len) => *len,
        };
        self.kept.iter().map(large).sum()
    }

    /// The connection has ended, and its queue pair is gone: whatever it was promised is free
    /// again, no more and no less.
    pub(super) fn release_account(&mut self) {
        let kept = |kept: &&Kept| matches!(kept, Kept::Buffer(_));
        let kept = self.kept.iter().filter(kept).count() as u32;
        self.conn.release_account(kept);
        if let Some(shared) = &self.shared {
            let strangers = shared.promised + shared.taken.len() as u32;
            assert_eq!(
                shared.account.free() + strangers + kept,
                shared.account.total(),
                "the account is whole"
            );
        }
    }

    /// The stranger is promised more, as far as there is some.
    pub(super) fn stranger_wants(&mut self, count: u32) {
        if let Some(shared) = &mut self.shared {
            shared.promised += shared.account.trade(0, count);
        }
    }

    /// A peer of the stranger's sends.
    pub(super) fn stranger_receives(&mut self) {
        if let Some(shared) = &mut self.shared
            && shared.promised > 0
        {
            shared.promised -= 1;
            let buffer = self.posted.pop_front();
            shared
                .taken
                .push_back(buffer.expect("a receive is posted for every frame of the stranger's"));
        }
    }

    /// The stranger lets go of a message.
    pub(super) fn stranger_releases(&mut self) {
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

    fn posted(&mut self, in_flight: InFlight) {
        let slot = in_flight.slot;
        let depth = self.params.send_slots + READS + CONTROL_SENDS;
        assert!(slot < depth, "the slot exists");
        assert!(
            !self.slots.contains(&slot),
            "the slot is not the device's: {in_flight:?}"
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
                && !self
                    .kept
                    .iter()
                    .any(|kept| matches!(kept, Kept::Buffer(kept) if *kept == buffer)),
            "the buffer is free"
        );
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

    /// The queue pair goes to its error state: everything that it has comes back, in order.
    pub(super) fn break_down(&mut self) {
        self.broken = true;
        // Shared receives are there for others.
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

    /// The device gives up on this side's oldest send, if it has one.
    pub(super) fn give_up(&mut self, status: WcStatus) {
        let oldest = self.unacknowledged.front().or_else(|| self.sending.front());
        if let Some(in_flight) = oldest {
            let work = in_flight.work();
            self.cq.push_back(Completion::Failed(work, status));
            self.break_down();
        }
    }
}
