//! The stream of one connection. The queue pair, the completion queue and the connection manager
//! share it.
//!
//! The stream has three locks. A thread that needs several of them takes them in this order:
//!
//! 1. `receiver`: held by a thread that polls. A thread that waits in a receive call holds this
//!    lock for seconds, or longer if the scheduler deschedules the thread. So other polling threads
//!    do not wait for the lock: a poll that finds it locked takes no bytes ([`Polled::Held`]). The
//!    holder takes all bytes when it runs next, and the engine's thread polls again later.
//! 2. `send`: held by a thread that posts, and by a thread that polls while it queues or sends an
//!    answer. No call blocks while this lock is held.
//! 3. That of `placement`: held for a few instructions.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
};

use super::{
    connection_manager::Watch,
    memory_region::Domain,
    receive_queue::ReceiveQueue,
    receiver::{Fault, Parts, Placement, Receiver},
    send_queue::{Acks, AnswerAborted, SendQueue},
    socket::{Socket, Span},
};
use crate::{
    os::{Guard, lock_hot, try_lock},
    poll::Answers,
    proto::MovedBytes,
    status::OsError,
    transport::queues::{BATCH, Done, Frame, SendOp, WorkId},
};

/// The stream of one connection: see the top of this file.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    pub(super) domain: Domain,
    receives: Arc<ReceiveQueue>,
    /// Whether the receive queue belongs to this connection only.
    own_receives: bool,
    receiver: Mutex<Incoming>,
    placement: Placement,
    send: Mutex<SendQueue>,
    phase: AtomicU8,
    /// The number of bytes received in answers to this side's READs. Written only while `receiver`
    /// is locked.
    read: AtomicU64,
    /// The registration with which the engine's thread detects space in the socket's send buffer.
    /// Set after the setup.
    watch: OnceLock<Watch>,
}

/// The number of bytes acknowledged by the peer's kernel that count as one sign of life. The kernel
/// acknowledges pings even while the peer's process is stopped. But acknowledged pings alone do not
/// count as a sign of life, because all pings between two checks amount to far fewer bytes.
const ACKNOWLEDGED: u64 = 4 << 10;

/// The receiver, and its completions.
#[derive(Debug)]
struct Incoming {
    receiver: Receiver,
    done: VecDeque<Done>,
    /// True if the last wait of a thread added completions to `done` and no poll has followed.
    fresh: bool,
}

/// The state of the received bytes after a [poll](Stream::poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The poll took all bytes that had arrived.
    All,
    /// Bytes or completions may remain. They may already be in the memory of this process, and then
    /// epoll does not report the socket as readable.
    Some,
    /// The socket is readable, but the poll took no bytes, because another thread is receiving.
    Held,
}

/// The phase of a stream. A stream passes through the phases in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Phase {
    /// The connection manager uses the socket.
    SettingUp,
    /// The queue pair uses the stream.
    Open,
    /// The queue pair is in the error state: posted work requests are flushed.
    Failed,
    /// The queue pair is destroyed. The memory of its work requests may have been freed.
    Destroyed,
}

impl Stream {
    pub(super) fn new(
        socket: Socket,
        domain: Domain,
        receives: Arc<ReceiveQueue>,
        own_receives: bool,
    ) -> Arc<Self> {
        let executed = Arc::<AtomicU32>::default();
        Arc::new(Self {
            socket,
            domain,
            receives,
            own_receives,
            receiver: Mutex::new(Incoming {
                receiver: Receiver::new(Arc::clone(&executed)),
                done: VecDeque::new(),
                fresh: false,
            }),
            placement: Placement::default(),
            send: Mutex::new(SendQueue::new(executed)),
            phase: AtomicU8::new(Phase::SettingUp as u8),
            read: AtomicU64::new(0),
            watch: OnceLock::new(),
        })
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::SettingUp,
            1 => Phase::Open,
            2 => Phase::Failed,
            _ => Phase::Destroyed,
        }
    }

    /// Moves to `phase`, unless the stream is already in this or a later phase. Returns whether it
    /// moved.
    fn reach(&self, phase: Phase) -> bool {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8
    }

    // Functions that the connection manager calls.

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hands the established stream to the queue pair. The peer serves at most `reads` READs and
    /// atomic operations at a time.
    pub(super) fn open(&self, watch: Watch, reads: u8) {
        self.watch.get_or_init(|| watch);
        self.reach(Phase::Open);
        let mut send = lock_hot(&self.send);
        send.limit_reads(reads);
        self.send_more(&mut send, Acks::Alone);
    }

    /// Returns whether the connection manager's epoll instance contains the socket of an
    /// established stream.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.get().is_some_and(Watch::is_registered)
    }

    /// Sends more bytes, after epoll has reported space in the socket's send buffer.
    pub(super) fn has_room(&self) {
        let mut send = lock_hot(&self.send);
        send.forget_room_wanted();
        if self.phase() == Phase::Open {
            self.send_more(&mut send, Acks::Alone);
        }
    }

    /// Ends the stream. Bytes that were sent before this call still reach the peer if the peer
    /// sends nothing more. Otherwise they may be lost, because the kernel resets the connection.
    pub(super) fn disconnect(&self) {
        self.socket.shut_down();
    }

    // Functions that the queue pair calls.

    pub(super) fn receives(&self) -> &ReceiveQueue {
        &self.receives
    }

    pub(super) fn post_send(&self, id: WorkId, op: SendOp, memory: Span, signalled: bool) {
        let mut send = lock_hot(&self.send);
        send.post(id, op, memory, signalled);
        if self.phase() == Phase::Open && !send.is_blocked() {
            self.send_more(&mut send, Acks::Alone);
        }
    }

    /// Posts a frame. `slot` returns the address of the memory for bytes of the frame that cannot
    /// be sent immediately. If `slot` fails, the frame is not posted, and the stream fails if a
    /// part of the frame may have been sent.
    ///
    /// # Safety
    ///
    /// The memory at the address that `slot` returns has the length of the frame. Only the queue
    /// pair accesses this memory until the request completes.
    pub(super) unsafe fn post_frame(
        &self,
        id: WorkId,
        frame: Frame<'_>,
        slot: impl FnOnce() -> Result<*mut u8, OsError>,
        signalled: bool,
    ) -> Result<(), OsError> {
        let mut send = lock_hot(&self.send);
        let open = self.phase() == Phase::Open;
        if open && send.is_idle() && frame.payload.len() <= 1 {
            // SAFETY: the caller guarantees the conditions on the slot.
            let sent = unsafe { send.send_frame(id, frame, slot, signalled, &self.socket) };
            // The stream must fail while the lock is held, so that no bytes follow an incomplete
            // frame.
            sent.inspect_err(|_| self.fail())?;
        } else {
            let memory = Span {
                start: slot()?,
                len: frame.len,
            };
            // SAFETY: as above.
            unsafe { frame.copy_to(memory.start) };
            send.post(id, SendOp::Send, memory, signalled);
        }
        if open && !send.is_blocked() && send.is_waiting() {
            self.send_more(&mut send, Acks::Alone);
        } else {
            self.watch_room(&mut send);
        }
        Ok(())
    }

    /// Sets the memory for the rest of a message in fragments. Further fragments of the message are
    /// received directly into this memory, and complete as [`Done::ReceivedInPlace`]. `number` is
    /// the number of messages in fragments that the peer began to send before this message. Has no
    /// effect if the last fragment has already begun to arrive.
    ///
    /// # Safety
    ///
    /// Until all fragments of the message have completed or the queue pair is destroyed, the memory
    /// stays mapped, and only the queue pair accesses the bytes of fragments that begin after this
    /// call.
    pub(super) unsafe fn place_fragments(&self, number: u32, memory: Span) {
        self.placement.set(number, memory);
    }

    /// Posts the frames of one message in the same way as [`post_frame`](Self::post_frame).
    ///
    /// # Safety
    ///
    /// The conditions of [`post_frame`](Self::post_frame) hold for each frame.
    pub(super) unsafe fn post_frames(
        &self,
        frames: &[(WorkId, Frame<'_>, bool)],
        slot: impl Fn(usize) -> Result<*mut u8, OsError>,
    ) -> Result<(), OsError> {
        let mut send = lock_hot(&self.send);
        let open = self.phase() == Phase::Open;
        if open && send.is_idle() {
            // SAFETY: the caller guarantees the conditions on the slots.
            let sent = unsafe { send.send_frames(frames, slot, &self.socket) };
            // The stream must fail while the lock is held, so that no bytes follow an incomplete
            // frame.
            sent.inspect_err(|_| self.fail())?;
        } else {
            for (number, &(id, frame, signalled)) in frames.iter().enumerate() {
                let memory = Span {
                    start: slot(number)?,
                    len: frame.len,
                };
                // SAFETY: as above.
                unsafe { frame.copy_to(memory.start) };
                send.post(id, SendOp::Send, memory, signalled);
            }
        }
        if open && !send.is_blocked() && send.is_waiting() {
            self.send_more(&mut send, Acks::Alone);
        } else {
            self.watch_room(&mut send);
        }
        Ok(())
    }

    /// Moves the stream to the error state.
    pub(super) fn fail(&self) {
        if self.reach(Phase::Failed) {
            // The shutdown makes the socket readable, so that a waiting thread polls and flushes
            // all work requests.
            self.socket.shut_down();
        }
    }

    /// Returns the byte counters and the state of retransmissions. Bytes that are still in the
    /// socket's receive buffer count as signs of life.
    pub(super) fn moved(&self) -> MovedBytes {
        let acknowledged = self.socket.acknowledged();
        let (retransmits_in, retransmissions) = self.socket.repetitions();
        MovedBytes {
            signs: self.socket.arrived() + acknowledged / ACKNOWLEDGED,
            read: self.read.load(Ordering::Relaxed),
            acknowledged,
            retransmits_in,
            retransmissions,
        }
    }

    /// Moves an open stream to the error state. Returns true if the queue pair can be destroyed
    /// now, because no thread is receiving into its memory. If the result is false, the end of the
    /// stream makes the receiving thread return, and no other thread starts to receive.
    pub(super) fn try_release(&self) -> bool {
        if self.phase() == Phase::Open {
            self.fail();
        }
        self.receiver().is_some()
    }

    /// Ends all access to the memory of the queue pair. Called when the queue pair is destroyed.
    ///
    /// If [`try_release`](Self::try_release) has returned `true`, this call does not wait long for
    /// the receiver's lock.
    pub(super) fn destroy(&self) {
        // During the setup the socket stays open, because the connection manager may have to send a
        // rejection.
        let before = self
            .phase
            .fetch_max(Phase::Destroyed as u8, Ordering::AcqRel);
        if before != Phase::SettingUp as u8 {
            // Ends the receive call in which another thread may be waiting.
            self.socket.shut_down();
        }
        lock_hot(&self.receiver).receiver.forget();
        self.placement.forget();
        let mut none = VecDeque::new();
        lock_hot(&self.send).flush(&mut none);
    }

    // Functions that the polling thread calls.

    /// Returns the socket's descriptor. It is readable while the socket has received bytes or the
    /// stream has ended.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns true if the stream has failed, or if the peer has ended it and all received bytes
    /// were processed. The socket then stays readable until it is closed. While another thread is
    /// receiving from an open stream, returns false.
    pub(super) fn has_ended(&self) -> bool {
        match self.phase() {
            Phase::SettingUp => false,
            Phase::Open => {
                let incoming = self.receiver();
                incoming.is_some_and(|incoming| incoming.receiver.has_ended())
            }
            Phase::Failed | Phase::Destroyed => true,
        }
    }

    /// Returns true if the stream has failed and the next poll will complete work requests as
    /// flushed.
    pub(super) fn has_flushes(&self) -> bool {
        self.phase() == Phase::Failed
            && (lock_hot(&self.send).has_requests()
                || self.own_receives && self.receives.has_marker())
    }

    /// Receives and sends bytes, and fills `batch` with at most [`BATCH`] completions. If there are
    /// completions, the acknowledgements wait until the next frame is posted or
    /// [`answer`](Self::answer) is called.
    pub(super) fn poll(&self, batch: &mut Vec<Done>, answers: Answers) -> Polled {
        batch.clear();
        let Some(mut incoming) = self.receiver() else {
            return if self.socket.is_readable() {
                Polled::Held
            } else {
                Polled::All
            };
        };
        let Incoming {
            receiver,
            done,
            fresh,
        } = &mut *incoming;
        // After a wait, `done` already contains the completions of the received bytes, so the poll
        // of the thread that waited needs no receive call.
        let fresh = std::mem::take(fresh) && answers == Answers::MayWait;
        if done.len() < BATCH {
            match self.phase() {
                Phase::SettingUp | Phase::Destroyed => {}
                Phase::Open => {
                    if !fresh {
                        self.progress(receiver, done, Receiver::receive);
                    }
                    let acks = if done.is_empty() {
                        Acks::Alone
                    } else {
                        Acks::WaitForCompany
                    };
                    self.send_more(&mut lock_hot(&self.send), acks);
                }
                Phase::Failed => self.flush(receiver, done),
            }
        }
        let count = done.len().min(BATCH);
        for _ in 0..count {
            batch.extend(done.pop_front());
        }
        if done.is_empty() && !receiver.has_stopped() {
            Polled::All
        } else {
            Polled::Some
        }
    }

    /// Locks the receiver. Returns `None` if another thread is receiving.
    fn receiver(&self) -> Option<Guard<'_, Incoming>> {
        try_lock(&self.receiver)
    }

    /// Sends a delayed acknowledgement, if there is one, without waiting for the next PDU.
    pub(super) fn answer(&self) {
        if self.phase() == Phase::Open {
            let mut send = lock_hot(&self.send);
            if send.is_waiting() && !send.is_blocked() {
                self.send_more(&mut send, Acks::Alone);
            }
        }
    }

    /// Locks the receiver for the calling thread, which is about to wait for bytes. Returns `None`
    /// if the thread must not wait: the stream is not open, bytes may have arrived already, another
    /// thread is receiving, or the destination of the current payload is exposed memory. If the
    /// socket cannot be made blocking, fails the stream and returns `None`.
    pub(super) fn reserve(&self) -> Option<Reserved<'_>> {
        let incoming = self.receiver()?;
        let open = self.phase() == Phase::Open;
        let may_wait = open && incoming.done.is_empty() && incoming.receiver.may_wait();
        if may_wait && let Err(errno) = self.socket.allow_waiting() {
            error_elsewhere!(
                Connection,
                "a connection ends, because its TCP socket cannot be made blocking: {errno}"
            );
            self.fail();
            return None;
        }
        may_wait.then_some(Reserved {
            stream: self,
            incoming,
        })
    }

    fn progress(
        &self,
        receiver: &mut Receiver,
        done: &mut VecDeque<Done>,
        receive: impl FnOnce(&mut Receiver, &mut Parts<'_>, usize) -> Result<(), Fault>,
    ) {
        let mut parts = Parts {
            socket: &self.socket,
            send: &self.send,
            receives: &self.receives,
            keys: &self.domain.keys,
            placement: &self.placement,
            read: &self.read,
            done,
        };
        match receive(receiver, &mut parts, BATCH) {
            Ok(()) if receiver.has_new_end() => done.push_back(Done::Disconnected),
            Ok(()) => {}
            Err(Fault::Refused) => {
                self.send_more(&mut lock_hot(&self.send), Acks::Alone);
                self.fail();
                self.flush(receiver, done);
            }
            Err(Fault::Violation(violation)) => done.push_back(Done::Violated(Box::new(violation))),
            Err(Fault::OutOfMemory(error)) => done.push_back(Done::OutOfMemory(Box::new(error))),
        }
    }

    fn flush(&self, receiver: &mut Receiver, done: &mut VecDeque<Done>) {
        lock_hot(&self.send).flush(done);
        receiver.flush(self.own_receives.then_some(&*self.receives), done);
        if receiver.report_end() {
            done.push_back(Done::Disconnected);
        }
    }

    fn send_more(&self, send: &mut SendQueue, acks: Acks) {
        if let Err(AnswerAborted) = send.send(&self.socket, acks) {
            self.fail();
        }
        self.watch_room(send);
    }

    fn watch_room(&self, send: &mut SendQueue) {
        if let (Some(true), Some(watch)) = (send.room_wanted(), self.watch.get()) {
            watch.await_room(&self.socket);
        }
    }
}

/// The locked receiver of a thread that is about to wait.
pub(crate) struct Reserved<'a> {
    stream: &'a Stream,
    incoming: Guard<'a, Incoming>,
}

impl Reserved<'_> {
    /// Waits until bytes arrive or the stream ends, but for less than [`WAITS_FOR`]. Receives the
    /// bytes. The next poll returns their completions. If only a part of a long payload has
    /// arrived, waits again while `may_continue` returns `true`.
    ///
    /// [`WAITS_FOR`]: super::socket::WAITS_FOR
    pub(crate) fn wait(mut self, may_continue: impl Fn() -> bool) {
        let Incoming {
            receiver,
            done,
            fresh,
        } = &mut *self.incoming;
        let wait = |receiver: &mut Receiver, parts: &mut Parts<'_>, enough| {
            receiver.wait(parts, enough, may_continue)
        };
        self.stream.progress(receiver, done, wait);
        *fresh = !done.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, os::unix::net::UnixStream};

    use super::*;
    use crate::{os::Unshared, proto::HEADER_LEN};

    #[test]
    fn stream_fails_without_memory_for_rest_of_frame() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let stream = Stream::new(
            Socket::of_connect(Unshared::new(socket.into())),
            Domain::default(),
            Arc::default(),
            true,
        );
        stream.reach(Phase::Open);
        let payload = vec![7; 4 << 20];
        let frame = Frame {
            header: &[0; HEADER_LEN],
            payload: &[IoSlice::new(&payload)],
            len: HEADER_LEN + payload.len(),
        };
        let no_memory = || Err(OsError::new("mmap", libc::ENOMEM));
        // SAFETY: `no_memory` returns no memory.
        let posted = unsafe { stream.post_frame(WorkId::Send(0), frame, no_memory, true) };
        assert_eq!(posted, Err(OsError::new("mmap", libc::ENOMEM)));
        assert_eq!(stream.phase(), Phase::Failed);
        let mut completions = Vec::new();
        stream.poll(&mut completions, Answers::AtOnce);
        assert!(
            matches!(completions[..], [Done::Disconnected]),
            "{completions:?}"
        );
    }
}
