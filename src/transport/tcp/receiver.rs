//! What a queue pair receives: the peer's requests, which it carries out, and answers to its own.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    ops::Range,
    ptr::{self, NonNull},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    keys::{ExposedPart, Keys, Right},
    pdu::{Cause, Change, Pdu, RemoteSpan},
    receive_queue::{Receive, ReceiveQueue},
    send_queue::SendQueue,
    socket::{Moved, Socket, Span},
};
use crate::{
    memory::SharedBytes,
    proto::{DrainSide, Violation},
    status::WcStatus,
    sync::lock,
    transport::queues::{Done, WorkId},
};

/// What is received at a time beside payload that goes straight to its place.
const STAGED: usize = 16 << 10;

/// How many calls are made in a row, so that a peer which keeps sending holds up nobody.
const MOST_CALLS: usize = 16;

/// The receiving end of a stream.
#[derive(Debug)]
pub(super) struct Receiver {
    /// What was received and not looked at yet lies at `unread`.
    staged: Box<[u8]>,
    unread: Range<usize>,
    /// The PDU whose payload is coming.
    coming: Option<Coming>,
    /// How many of the peer's requests were carried out.
    requests: u32,
    /// How much of a write in several parts has come.
    written: u32,
    /// Whether nothing more is to be expected.
    ended: bool,
}

/// Payload on its way to its place.
#[derive(Debug)]
struct Coming {
    left: usize,
    to: Place,
}

#[derive(Debug)]
enum Place {
    /// The front receive.
    Receive {
        receive: Receive,
        len: u32,
        signalled: bool,
    },
    /// Memory that the peer may write to; at last with immediate data, for which there is a
    /// receive.
    Exposed {
        part: Option<ExposedPart>,
        last: bool,
        signalled: bool,
        imm: Option<(Receive, u32)>,
    },
    /// Where a READ of this side's wants it.
    Answer { to: Span, len: u32, last: bool },
}

// SAFETY: `to` is memory of a work request, which is the queue pair's until it completes, in
// whichever thread.
unsafe impl Send for Place {}

/// How many bytes a call had room for: in their place, and in the stage.
struct Room {
    straight: usize,
    stage: usize,
}

/// What the stream's parts are, for carrying out what comes.
pub(super) struct Parts<'a> {
    pub(super) socket: &'a Socket,
    pub(super) send: &'a Mutex<SendQueue>,
    pub(super) receives: &'a ReceiveQueue,
    pub(super) keys: &'a Keys,
    pub(super) done: &'a mut VecDeque<Done>,
}

/// Why nothing more can be received.
#[derive(Debug)]
pub(super) enum Fault {
    /// The peer broke the rules of the stream.
    Violation(Violation),
    /// A request of the peer's failed, which it is told.
    Refused,
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            staged: vec![0; STAGED].into(),
            unread: 0..0,
            coming: None,
            requests: 0,
            written: 0,
            ended: false,
        }
    }

    /// Receives what there is, until `enough` completions wait to be taken.
    pub(super) fn receive(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        if self.ended {
            return Ok(());
        }
        let result = self.receive_some(parts, enough);
        // Nothing that comes behind a fault counts.
        self.ended |= result.is_err();
        result
    }

    fn receive_some(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        for _ in 0..MOST_CALLS {
            self.take_staged(parts, enough)?;
            if self.ended || parts.done.len() >= enough {
                return Ok(());
            }
            let (moved, room) = self.fill(parts.socket);
            match moved {
                Moved::Some(count) => {
                    self.came(count, room.straight, parts)?;
                    if count < room.straight + room.stage {
                        // There is no more, for now. What comes later makes the socket readable.
                        return self.take_staged(parts, enough);
                    }
                }
                Moved::Blocked => return Ok(()),
                Moved::Ended => self.ended = true,
            }
        }
        // The rest makes the socket readable; what is staged would not.
        self.take_staged(parts, enough)
    }

    /// Looks at what is staged, until a PDU is not whole.
    fn take_staged(&mut self, parts: &mut Parts<'_>, enough: usize) -> Result<(), Fault> {
        while parts.done.len() < enough {
            if let Some(coming) = &mut self.coming {
                let staged = &self.staged[self.unread.clone()];
                let count = staged.len().min(coming.left);
                if count > 0 {
                    coming.copy(&staged[..count]);
                    self.unread.start += count;
                    self.payload_came(count, parts)?;
                    continue;
                }
                if coming.left > 0 {
                    return Ok(());
                }
                self.payload_came(0, parts)?;
                continue;
            }
            match Pdu::parse(&self.staged[self.unread.clone()])? {
                Some((pdu, len)) => {
                    self.unread.start += len;
                    self.begin(pdu, parts)?;
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Receives into the place of what is coming, and behind it into the stage.
    fn fill(&mut self, socket: &Socket) -> (Moved, Room) {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.start > 0 {
            self.staged.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let end = self.unread.end;
        let stage = Span {
            // In bounds, or one behind.
            start: self.staged.as_mut_ptr().wrapping_add(end),
            len: self.staged.len() - end,
        };
        let receive = |rest: Option<Span>| {
            let spans = [rest.unwrap_or(stage), stage];
            let spans = if rest.is_some() {
                &spans[..]
            } else {
                &spans[1..]
            };
            let room = Room {
                straight: rest.map_or(0, |rest| rest.len),
                stage: stage.len,
            };
            // SAFETY: the stage is this object's, without a reference to it during the call. The
            // place is a work request's memory, which is the queue pair's until it completes, or
            // exposed memory, whose lock is held.
            (unsafe { socket.receive(spans) }, room)
        };
        match &self.coming {
            None => receive(None),
            // Where the key has ended, what comes is refused when it is looked at.
            Some(coming) => coming.with_rest(receive),
        }
    }

    /// So many bytes came, the first of them to their place as far as there was room.
    fn came(&mut self, count: usize, straight: usize, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let placed = count.min(straight);
        self.unread.end += count - placed;
        if placed > 0 {
            self.payload_came(placed, parts)?;
        }
        Ok(())
    }

    /// A PDU begins.
    fn begin(&mut self, pdu: Pdu, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let left = pdu.payload() as usize;
        let to = match pdu {
            Pdu::Send { signalled, len } => {
                let Some(receive) = parts.receives.take() else {
                    return Err(self.refuse(Cause::NoReceive, parts));
                };
                if left > receive.to.len {
                    if let WorkId::Recv(buffer) = receive.id {
                        parts.done.push_back(Done::ReceiveFailed {
                            buffer,
                            status: WcStatus::LOC_LEN_ERR,
                            vendor_err: 0,
                        });
                    }
                    return Err(self.refuse(Cause::TooLong, parts));
                }
                Place::Receive {
                    receive,
                    len,
                    signalled,
                }
            }
            Pdu::Write {
                signalled,
                last,
                at,
            } => Place::Exposed {
                part: self.exposed(at, Right::Write, parts)?,
                last,
                signalled,
                imm: None,
            },
            Pdu::WriteWithImm {
                signalled,
                at,
                imm_data,
            } => {
                let part = self.exposed(at, Right::Write, parts)?;
                let Some(receive) = parts.receives.take() else {
                    return Err(self.refuse(Cause::NoReceive, parts));
                };
                Place::Exposed {
                    part,
                    last: true,
                    signalled,
                    imm: Some((receive, imm_data)),
                }
            }
            Pdu::Read { at } => {
                let part = self.exposed(at, Right::Read, parts)?;
                lock(parts.send).answer_read(part)?;
                self.requests = self.requests.wrapping_add(1);
                return Ok(());
            }
            Pdu::Atomic { addr, rkey, change } => {
                let at = RemoteSpan { addr, rkey, len: 8 };
                let old = match self.exposed(at, Right::Atomic, parts)? {
                    Some(part) => apply(change, &part),
                    None => None,
                };
                let Some(old) = old else {
                    return Err(self.refuse(Cause::Access, parts));
                };
                lock(parts.send).answer_atomic(old)?;
                self.requests = self.requests.wrapping_add(1);
                return Ok(());
            }
            Pdu::Ack { requests } => {
                lock(parts.send).acknowledge(requests)?;
                lock(parts.send).complete(parts.done);
                return Ok(());
            }
            Pdu::ReadPart { last, len } => Place::Answer {
                to: lock(parts.send).read_target(len, last)?,
                len,
                last,
            },
            Pdu::Old { value } => {
                let to = lock(parts.send).atomic_target()?;
                let value = value.to_ne_bytes();
                let len = value.len().min(to.len);
                // SAFETY: the work request's memory, which is the queue pair's until it completes.
                unsafe { copy_shared(&value[..len], to.start) };
                lock(parts.send).answer_oldest();
                lock(parts.send).complete(parts.done);
                return Ok(());
            }
            Pdu::Nak { requests, cause } => {
                lock(parts.send).refused(requests, cause, parts.done)?;
                self.ended = true;
                return Err(Fault::Refused);
            }
        };
        self.coming = Some(Coming { left, to });
        Ok(())
    }

    /// So much of the payload is in its place. Behind the last of it the PDU is carried out.
    fn payload_came(&mut self, count: usize, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let Some(coming) = &mut self.coming else {
            return Ok(());
        };
        if !coming.is_open() {
            // A receive that it may have stays with it, to come back with the others.
            return Err(self.refuse(Cause::Access, parts));
        }
        coming.left -= count;
        if coming.left > 0 {
            return Ok(());
        }
        let Some(Coming { to, .. }) = self.coming.take() else {
            return Ok(());
        };
        match to {
            Place::Receive {
                receive,
                len,
                signalled,
            } => {
                if let WorkId::Recv(buffer) = receive.id {
                    parts.done.push_back(Done::Received { buffer, len });
                }
                self.carried_out(signalled, parts);
            }
            Place::Exposed {
                part,
                last,
                signalled,
                imm,
            } => {
                let len = part.map_or(0, |part| part.len()) as u32;
                let len = self.written.saturating_add(len);
                self.written = if last { 0 } else { len };
                if let Some((
                    Receive {
                        id: WorkId::Recv(buffer),
                        ..
                    },
                    imm_data,
                )) = imm
                {
                    parts.done.push_back(Done::Immediate {
                        buffer,
                        imm_data,
                        len,
                    });
                }
                if last {
                    self.carried_out(signalled, parts);
                }
            }
            Place::Answer { len, last, .. } => {
                lock(parts.send).read_moved(len, last);
                lock(parts.send).complete(parts.done);
            }
        }
        Ok(())
    }

    /// A request of the peer's is carried out.
    fn carried_out(&mut self, signalled: bool, parts: &mut Parts<'_>) {
        self.requests = self.requests.wrapping_add(1);
        if signalled {
            lock(parts.send).acknowledge_peer(self.requests);
        }
    }

    /// The memory that the peer names. Of no bytes it needs no right, as over RDMA.
    fn exposed(
        &mut self,
        at: RemoteSpan,
        right: Right,
        parts: &mut Parts<'_>,
    ) -> Result<Option<ExposedPart>, Fault> {
        if at.len == 0 {
            return Ok(None);
        }
        match parts.keys.find(at.rkey, at.addr, at.len, right) {
            Some(part) => Ok(Some(part)),
            None => Err(self.refuse(Cause::Access, parts)),
        }
    }

    /// The peer's next request fails, and with it the connection.
    fn refuse(&mut self, cause: Cause, parts: &mut Parts<'_>) -> Fault {
        self.ended = true;
        lock(parts.send).refuse_peer(self.requests, cause);
        Fault::Refused
    }

    /// What was posted for receiving comes back: of `receives`, where they are this connection's
    /// own, and the one that a frame has begun to fill.
    pub(super) fn flush(&mut self, receives: Option<&ReceiveQueue>, done: &mut VecDeque<Done>) {
        self.ended = true;
        let began = match self.coming.take().map(|coming| coming.to) {
            Some(Place::Receive { receive, .. }) => Some(receive),
            Some(Place::Exposed {
                imm: Some((receive, _)),
                ..
            }) => Some(receive),
            Some(Place::Exposed { imm: None, .. } | Place::Answer { .. }) | None => None,
        };
        let posted = std::iter::from_fn(|| receives.and_then(ReceiveQueue::take));
        for receive in began.into_iter().chain(posted) {
            match receive.id {
                WorkId::Recv(buffer) => done.push_back(Done::ReceiveFailed {
                    buffer,
                    status: WcStatus::WR_FLUSH_ERR,
                    vendor_err: 0,
                }),
                WorkId::DrainRecv => done.push_back(Done::Drained(DrainSide::Recv)),
                WorkId::Send(_) | WorkId::DrainSend => {}
            }
        }
    }

    /// Forgets what was coming: its memory may be gone.
    pub(super) fn forget(&mut self) {
        self.ended = true;
        self.coming = None;
    }
}

impl Coming {
    /// Whether the place is still there.
    fn is_open(&self) -> bool {
        match &self.to {
            Place::Exposed {
                part: Some(part), ..
            } => part.start().is_some(),
            Place::Exposed { part: None, .. } | Place::Receive { .. } | Place::Answer { .. } => {
                true
            }
        }
    }

    /// Calls `f` with what is left of the place, while nobody can take it away; with `None` if it
    /// has been.
    fn with_rest<T>(&self, f: impl FnOnce(Option<Span>) -> T) -> T {
        let rest = |start: *mut u8, len: usize| Span {
            start: start.wrapping_add(len - self.left),
            len: self.left,
        };
        match &self.to {
            Place::Receive { receive, len, .. } => f(Some(rest(receive.to.start, *len as usize))),
            Place::Answer { to, .. } => f(Some(rest(to.start, to.len))),
            Place::Exposed {
                part: Some(part), ..
            } => match part.start() {
                Some(start) => f(Some(rest(start.get().as_ptr(), part.len()))),
                None => f(None),
            },
            Place::Exposed { part: None, .. } => f(Some(Span {
                start: NonNull::dangling().as_ptr(),
                len: 0,
            })),
        }
    }

    /// Copies bytes to their place, if it is still there.
    fn copy(&self, bytes: &[u8]) {
        self.with_rest(|rest| {
            if let Some(rest) = rest {
                let count = bytes.len().min(rest.len);
                let bytes = &bytes[..count];
                if let Place::Receive { .. } = self.to {
                    // SAFETY: the receive's memory is the queue pair's alone until it completes.
                    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), rest.start, count) };
                } else {
                    // SAFETY: the place is a work request's memory, which is the queue pair's until
                    // it completes, or exposed memory, whose lock is held.
                    unsafe { copy_shared(bytes, rest.start) };
                }
            }
        });
    }
}

/// Copies bytes to memory that other threads may look at meanwhile.
///
/// # Safety
///
/// There are so many bytes at `to`, in whole pages of a [`Mapping`](crate::memory::Mapping), and
/// there is no reference to them.
unsafe fn copy_shared(bytes: &[u8], to: *mut u8) {
    // Whole words: so `SharedBytes` treats each as the memory's owner does, whose pages are made of
    // them.
    let before = to.addr() % size_of::<u64>();
    let len = (before + bytes.len()).next_multiple_of(size_of::<u64>());
    let Some(start) = NonNull::new(to.wrapping_sub(before)) else {
        return;
    };
    // SAFETY: the words lie in the pages that the caller vouches for.
    let words = unsafe { SharedBytes::new(start, len) };
    words.write(before, bytes);
}

/// Changes a word of exposed memory, and returns what it was.
fn apply(change: Change, part: &ExposedPart) -> Option<u64> {
    let start = part.start()?;
    let word = start.get().cast::<u64>().as_ptr();
    // SAFETY: eight bytes of mapped memory, aligned as `find` checked. Other threads of this
    // program access it as atomic words, too (`SharedBytes`).
    let word = unsafe { AtomicU64::from_ptr(word) };
    Some(match change {
        Change::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
        Change::CompareSwap { compare, swap } => word
            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|old| old),
    })
}
