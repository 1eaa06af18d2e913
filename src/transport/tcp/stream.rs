//! One connection's stream, which its queue pair, its completion queue and the connection manager
//! share.
//!
//! Two locks, always taken in this order:
//!
//! 1. `receiver`: a thread that polls holds it. A thread that waits in a call that receives holds
//!    it for seconds, and longer if the thread does not run. No other thread waits for this lock: a
//!    poll that finds it held takes nothing ([`Polled::Held`]), because the holder takes all bytes
//!    when it runs next, and the engine's thread polls again later.
//! 2. `send`: a thread that posts holds it, and a thread that polls while it notes an answer or
//!    sends one. No call under it blocks.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use super::{
    connection_manager::Watch,
    memory_region::Domain,
    receive_queue::ReceiveQueue,
    receiver::{Fault, Parts, Receiver},
    send_queue::{Acks, AnswerAborted, SendQueue},
    socket::{Socket, Span},
};
use crate::{
    os::{Unshared, lock, try_lock},
    poll::Answers,
    proto::MovedBytes,
    status::OsError,
    transport::queues::{BATCH, Done, Frame, SendOp, WorkId},
};

/// The stream of one connection, as described at the top of this file.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    pub(super) domain: Domain,
    receives: Arc<ReceiveQueue>,
    /// Whether the receive queue belongs to this connection only.
    own_receives: bool,
    receiver: Mutex<Incoming>,
    send: Mutex<SendQueue>,
    phase: AtomicU8,
    /// The number of arrived bytes of answers to this side's READs. Written under the lock of
    /// `receiver`.
    read: AtomicU64,
    /// Lets the engine's thread report room, after the setup.
    watch: OnceLock<Watch>,
}

/// The number of bytes that the peer's kernel must acknowledge for a sign of life. The kernel also
/// acknowledges pings to a stopped process, but those are far fewer bytes between two checks.
const ACKNOWLEDGED: u64 = 4 << 10;

/// The receiver, and its completions.
#[derive(Debug)]
struct Incoming {
    receiver: Receiver,
    done: VecDeque<Done>,
    /// Whether `done` holds the completions of all bytes that had arrived when a thread last
    /// waited.
    fresh: bool,
}

/// The result of a [poll](Stream::poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The call took all bytes that had arrived.
    All,
    /// The call took some bytes. The rest may be in the receive buffer of this process already, so
    /// epoll may not report the socket as readable.
    Some,
    /// The call took no bytes from the socket, because another thread is receiving.
    Held,
}

/// The phase of a stream. Phases follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Phase {
    /// The connection manager uses the socket.
    SettingUp,
    /// The queue pairs use the stream.
    Open,
    /// Posted work requests are flushed.
    Failed,
    /// The queue pair is destroyed, and the memory of its work requests may no longer exist.
    Destroyed,
}

impl Stream {
    /// Creates a stream on a nonblocking socket, for a queue pair of this depth.
    pub(super) fn new(
        fd: Unshared<OwnedFd>,
        domain: Domain,
        receives: Arc<ReceiveQueue>,
        own_receives: bool,
        depth: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            socket: Socket::new(fd),
            domain,
            receives,
            own_receives,
            receiver: Mutex::new(Incoming {
                receiver: Receiver::new(),
                done: VecDeque::new(),
                fresh: false,
            }),
            send: Mutex::new(SendQueue::new(depth)),
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

    /// Moves to `phase`, unless the stream has reached it or a later one. Returns whether it moved.
    fn reach(&self, phase: Phase) -> bool {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8
    }

    // Calls of the connection manager.

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hands the established stream to the queue pair, and watches its end and room in it. The peer
    /// serves `reads` READs at a time.
    pub(super) fn open(&self, watch: Watch, reads: u8) {
        let watch = self.watch.get_or_init(|| watch);
        watch.set(&self.socket, false);
        self.reach(Phase::Open);
        if let Err(errno) = self.socket.allow_waiting() {
            error!(
                Connection,
                "conn {}: ends, because its TCP socket cannot be made blocking: {errno}",
                watch.key()
            );
            self.fail();
        }
        let mut send = lock(&self.send);
        send.limit_reads(reads);
        self.send_more(&mut send, Acks::Alone);
    }

    /// Handles that the socket has room again.
    pub(super) fn has_room(&self) {
        let mut send = lock(&self.send);
        send.forget_room_wanted();
        let open = self.phase() == Phase::Open;
        if open {
            self.send_more(&mut send, Acks::Alone);
        }
        if !(open && send.is_blocked())
            && let Some(watch) = self.watch.get()
        {
            watch.set(&self.socket, false);
        }
    }

    /// Ends the stream. Earlier bytes still arrive, unless the peer continues to send.
    pub(super) fn disconnect(&self) {
        self.socket.shut_down();
    }

    // Calls of the queue pair.

    pub(super) fn receives(&self) -> &ReceiveQueue {
        &self.receives
    }

    pub(super) fn post_send(&self, id: WorkId, op: SendOp, memory: Span, signalled: bool) {
        let mut send = lock(&self.send);
        send.post(id, op, memory, signalled);
        if self.phase() == Phase::Open && !send.is_blocked() {
            self.send_more(&mut send, Acks::Alone);
        }
    }

    /// Posts a frame. It copies the part that the socket does not take at once to the memory at the
    /// address that `slot` returns. If `slot` fails, the frame is not posted, and the stream fails
    /// because a part of the frame may have been sent.
    ///
    /// # Safety
    ///
    /// The memory has the frame's length, and only the queue pair accesses it until the request
    /// completes.
    pub(super) unsafe fn post_frame(
        &self,
        id: WorkId,
        frame: Frame<'_>,
        slot: impl FnOnce() -> Result<*mut u8, OsError>,
        signalled: bool,
    ) -> Result<(), OsError> {
        let mut send = lock(&self.send);
        let open = self.phase() == Phase::Open;
        if open && send.is_idle() && frame.payload.len() <= 1 {
            // SAFETY: the caller guarantees the conditions on the slot.
            let sent = unsafe { send.send_frame(id, frame, slot, signalled, &self.socket) };
            // The stream fails while the lock is held, so that no bytes follow the part of the
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
        if open && !send.is_blocked() {
            self.send_more(&mut send, Acks::Alone);
        } else {
            self.watch_room(&mut send);
        }
        Ok(())
    }

    /// Posts frames, of one message, as [`post_frame`](Self::post_frame) does.
    ///
    /// # Safety
    ///
    /// As for [`post_frame`](Self::post_frame), for each frame.
    pub(super) unsafe fn post_frames(
        &self,
        frames: &[(WorkId, Frame<'_>, bool)],
        slot: impl Fn(usize) -> Result<*mut u8, OsError>,
    ) -> Result<(), OsError> {
        let mut send = lock(&self.send);
        let open = self.phase() == Phase::Open;
        if open && send.is_idle() {
            // SAFETY: the caller guarantees the conditions on the slots.
            let sent = unsafe { send.send_frames(frames, slot, &self.socket) };
            // The stream fails while the lock is held, so that no bytes follow the part of a frame.
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
        if open && !send.is_blocked() {
            self.send_more(&mut send, Acks::Alone);
        } else {
            self.watch_room(&mut send);
        }
        Ok(())
    }

    /// Moves to the error state.
    pub(super) fn fail(&self) {
        if self.reach(Phase::Failed) {
            // The shutdown makes the socket readable, so that the waiting thread polls and flushes
            // all work requests.
            self.socket.shut_down();
        }
    }

    /// Returns the counters of bytes. Bytes that wait in the socket have arrived, even if the
    /// thread that receives does not run.
    pub(super) fn moved(&self) -> MovedBytes {
        let acknowledged = self.socket.acknowledged();
        let (repeats_in, repeated) = self.socket.repetitions();
        MovedBytes {
            signs: self.socket.arrived() + acknowledged / ACKNOWLEDGED,
            read: self.read.load(Ordering::Relaxed),
            acknowledged,
            repeats_in,
            repeated,
        }
    }

    /// Ends an open stream, so that its queue pair can be destroyed. Returns whether it can be
    /// destroyed now. Otherwise another thread is receiving into the queue pair's memory; the end
    /// of the stream makes that thread return, and no other thread starts to receive.
    pub(super) fn is_released(&self) -> bool {
        if self.phase() == Phase::Open {
            self.fail();
        }
        self.receiver().is_some()
    }

    /// Ends all access to the memory of the queue pair, which is being destroyed.
    ///
    /// After [`is_released`](Self::is_released) returned `true` no thread holds the receiver for
    /// long.
    pub(super) fn destroy(&self) {
        // During the setup the connection manager owns the socket, because it may have to send a
        // rejection.
        let before = self
            .phase
            .fetch_max(Phase::Destroyed as u8, Ordering::AcqRel);
        if before != Phase::SettingUp as u8 {
            // Ends the call in which a thread may be waiting.
            self.socket.shut_down();
        }
        lock(&self.receiver).receiver.forget();
        let mut none = VecDeque::new();
        lock(&self.send).flush(&mut none);
    }

    // Calls of the polling thread.

    /// Returns the fd that is readable when polling may return a completion.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the socket stays readable until it is closed, because the peer has ended the stream
    /// or it has failed. Returns `false` while another thread is receiving the end.
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

    /// Takes completions, up to the length of `batch`.
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
        // The thread that waited polls now. `done` is up to date, so the poll skips the receiving
        // call.
        let fresh = std::mem::take(fresh) && answers == Answers::MayWait;
        if done.len() < BATCH && !fresh {
            match self.phase() {
                Phase::SettingUp | Phase::Destroyed => {}
                Phase::Open => {
                    self.progress(receiver, done, Receiver::receive);
                    let acks = match answers {
                        Answers::AtOnce => Acks::Alone,
                        Answers::MayWait if done.is_empty() => Acks::Alone,
                        Answers::MayWait => Acks::WaitForCompany,
                    };
                    self.send_more(&mut lock(&self.send), acks);
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

    /// Locks the receiver, unless another thread is receiving.
    fn receiver(&self) -> Option<MutexGuard<'_, Incoming>> {
        try_lock(&self.receiver)
    }

    /// Sends an acknowledgement that waited for other PDUs.
    pub(super) fn answer(&self) {
        if self.phase() == Phase::Open {
            let mut send = lock(&self.send);
            if send.is_waiting() {
                self.send_more(&mut send, Acks::Alone);
            }
        }
    }

    /// Reserves the receiver for this thread, which is about to wait for bytes. Returns `None` if
    /// bytes may have arrived already.
    pub(super) fn reserve(&self) -> Option<Reserved<'_>> {
        let incoming = self.receiver()?;
        let open = self.phase() == Phase::Open;
        let may_wait = open && incoming.done.is_empty() && incoming.receiver.may_wait();
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
            read: &self.read,
            done,
        };
        match receive(receiver, &mut parts, BATCH) {
            Ok(()) => {}
            Err(Fault::Refused) => {
                self.send_more(&mut lock(&self.send), Acks::Alone);
                self.fail();
                self.flush(receiver, done);
            }
            Err(Fault::Violation(violation)) => done.push_back(Done::Violated(Box::new(violation))),
            Err(Fault::OutOfMemory(error)) => done.push_back(Done::OutOfMemory(Box::new(error))),
        }
    }

    fn flush(&self, receiver: &mut Receiver, done: &mut VecDeque<Done>) {
        lock(&self.send).flush(done);
        receiver.flush(self.own_receives.then_some(&*self.receives), done);
    }

    fn send_more(&self, send: &mut SendQueue, acks: Acks) {
        if let Err(AnswerAborted) = send.send(&self.socket, acks) {
            self.fail();
        }
        self.watch_room(send);
    }

    fn watch_room(&self, send: &mut SendQueue) {
        if let (Some(true), Some(watch)) = (send.room_wanted(), self.watch.get()) {
            watch.set(&self.socket, true);
        }
    }
}

/// The receiver, reserved by a waiting thread.
pub(crate) struct Reserved<'a> {
    stream: &'a Stream,
    incoming: MutexGuard<'a, Incoming>,
}

impl Reserved<'_> {
    /// Waits until bytes arrive or the stream ends, for less than [`WAITS_FOR`], and receives the
    /// bytes. The next poll returns their completions. After a part of a long payload it waits
    /// again, if `may_continue` returns `true`.
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
    use crate::proto::HEADER_LEN;

    #[test]
    fn stream_fails_without_memory_for_rest_of_frame() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let stream = Stream::new(
            Unshared::new(socket.into()),
            Domain::default(),
            Arc::default(),
            true,
            4,
        );
        stream.reach(Phase::Open);
        let payload = vec![7; 4 << 20];
        let frame = Frame {
            header: &[0; HEADER_LEN],
            payload: &[IoSlice::new(&payload)],
            len: HEADER_LEN + payload.len(),
        };
        let no_memory = || Err(OsError::new("mmap", libc::ENOMEM));
        // SAFETY: there is no memory.
        let posted = unsafe { stream.post_frame(WorkId::Send(0), frame, no_memory, true) };
        assert_eq!(posted, Err(OsError::new("mmap", libc::ENOMEM)));
        assert_eq!(stream.phase(), Phase::Failed);
        let mut completions = Vec::new();
        stream.poll(&mut completions, Answers::AtOnce);
        assert!(completions.is_empty(), "{completions:?}");
    }
}
