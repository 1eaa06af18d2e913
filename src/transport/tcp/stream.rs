//! One connection's stream, as its queue pair, its completion queue and the connection manager
//! share it.
//!
//! Two locks, always taken in this order: `receiver`, by whoever polls; and `send`, by whoever
//! posts, and by whoever polls for as long as it takes to note an answer or to send one. A thread
//! that waits in a call that receives holds the first of them meanwhile: others that poll leave all
//! that comes to it.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, TryLockError,
        atomic::{AtomicU8, Ordering},
    },
};

use super::{
    memory_region::Domain,
    receive_queue::ReceiveQueue,
    receiver::{Fault, Parts, Receiver},
    send_queue::{Acks, Broken, SendQueue},
    socket::{Socket, Span},
    watch::Watch,
};
use crate::{
    sync::lock,
    transport::queues::{Answers, BATCH, Done, Frame, SendOp, WorkId},
};

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    pub(super) domain: Domain,
    receives: Arc<ReceiveQueue>,
    /// Whether the receives are this connection's own.
    own_receives: bool,
    receiver: Mutex<Polled>,
    send: Mutex<SendQueue>,
    phase: AtomicU8,
    /// Has the engine's thread tell of room, from the end of the setup on.
    watch: OnceLock<Watch>,
}

/// What is received, and what came of it.
#[derive(Debug)]
struct Polled {
    receiver: Receiver,
    done: VecDeque<Done>,
    /// Whether `done` holds all that had come when a thread last waited.
    fresh: bool,
}

/// How far the stream is: it is never less far than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Phase {
    /// The connection manager uses the socket.
    SettingUp,
    /// The queue pairs speak.
    Open,
    /// What is posted comes back.
    Failed,
    /// The queue pair is destroyed, and the memory of its work requests may be gone.
    Destroyed,
}

impl Stream {
    /// Takes a socket that does not block, for a queue pair of this depth.
    pub(super) fn new(
        fd: OwnedFd,
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
            receiver: Mutex::new(Polled {
                receiver: Receiver::new(),
                done: VecDeque::new(),
                fresh: false,
            }),
            send: Mutex::new(SendQueue::new(depth)),
            phase: AtomicU8::new(Phase::SettingUp as u8),
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

    /// Goes on to this phase, unless it is further. Returns whether it was not.
    fn reach(&self, phase: Phase) -> bool {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8
    }

    // By the connection manager.

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The connection is set up: from here on the stream is the queue pairs'. Its end and room in
    /// it are watched. The peer serves so many READs at a time.
    pub(super) fn open(&self, watch: Watch, reads: u8) {
        let watch = self.watch.get_or_init(|| watch);
        watch.set(&self.socket, false);
        self.reach(Phase::Open);
        if let Err(errno) = self.socket.allow_waiting() {
            error!("engine: fcntl: {errno}");
            self.fail();
        }
        let mut send = lock(&self.send);
        send.limit_reads(reads);
        self.send_more(&mut send, Acks::Alone);
    }

    /// The socket takes some again.
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

    /// Ends the stream. What was sent before still arrives, unless the peer goes on sending.
    pub(super) fn disconnect(&self) {
        self.socket.shut_down();
    }

    // By the queue pair.

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

    /// Posts a frame. What the socket does not take at once is copied to `slot`.
    ///
    /// # Safety
    ///
    /// The slot is as long as the frame, and the queue pair's alone until the request completes.
    pub(super) unsafe fn post_frame(
        &self,
        id: WorkId,
        frame: Frame<'_>,
        slot: Span,
        signalled: bool,
    ) {
        let mut send = lock(&self.send);
        let open = self.phase() == Phase::Open;
        if open && send.is_idle() && frame.payload.len() <= 1 {
            // SAFETY: the caller vouches for the slot.
            unsafe { send.send_frame(id, frame, slot, signalled, &self.socket) };
        } else {
            // SAFETY: as above.
            unsafe { frame.copy_to(slot.start) };
            send.post(id, SendOp::Send, slot, signalled);
        }
        if open && !send.is_blocked() {
            self.send_more(&mut send, Acks::Alone);
        } else {
            self.watch_room(&mut send);
        }
    }

    /// Moves to the error state.
    pub(super) fn fail(&self) {
        if self.reach(Phase::Failed) {
            // Which makes it readable: whoever waits polls, and so has everything come back.
            self.socket.shut_down();
        }
    }

    /// The queue pair is gone: touches none of its memory any more.
    pub(super) fn destroy(&self) {
        // Until all is set up the socket is the connection manager's, which may have to tell the
        // peer that it comes to nothing.
        let before = self
            .phase
            .fetch_max(Phase::Destroyed as u8, Ordering::AcqRel);
        if before != Phase::SettingUp as u8 {
            // Ends the call of whoever waits in one.
            self.socket.shut_down();
        }
        let mut polled = lock(&self.receiver);
        polled.receiver.forget();
        let mut none = VecDeque::new();
        lock(&self.send).flush(&mut none);
    }

    // By whoever polls.

    /// What is readable when polling may bring something.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether it stays readable from now on, because the peer has ended it or it has failed.
    pub(super) fn has_ended(&self) -> bool {
        match self.phase() {
            Phase::SettingUp => false,
            Phase::Open => {
                let polled = self.receiver();
                polled.is_some_and(|polled| polled.receiver.has_ended())
            }
            Phase::Failed | Phase::Destroyed => true,
        }
    }

    /// Takes what has completed, up to the length of `batch`. Returns whether there may be more,
    /// for which nothing becomes readable.
    pub(super) fn poll(&self, batch: &mut Vec<Done>, answers: Answers) -> bool {
        batch.clear();
        let Some(mut polled) = self.receiver() else {
            return false;
        };
        let Polled {
            receiver,
            done,
            fresh,
        } = &mut *polled;
        // The thread that waited is back: a look costs a call.
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
        !done.is_empty() || receiver.has_stopped()
    }

    /// What is received: nothing where another thread waits for it, and nothing has come.
    fn receiver(&self) -> Option<MutexGuard<'_, Polled>> {
        match self.receiver.try_lock() {
            Ok(polled) => Some(polled),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            // That thread is being woken.
            Err(TryLockError::WouldBlock) if self.socket.is_readable() => {
                Some(lock(&self.receiver))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sends what may have waited for company.
    pub(super) fn answer(&self) {
        if self.phase() == Phase::Open {
            let mut send = lock(&self.send);
            if send.is_waiting() {
                self.send_more(&mut send, Acks::Alone);
            }
        }
    }

    /// From now on all that comes is this thread's to take, which is about to wait for it; unless
    /// something may be there already.
    pub(super) fn reserve(&self) -> Option<Reserved<'_>> {
        let polled = self.receiver.try_lock().ok()?;
        let open = self.phase() == Phase::Open;
        let may_wait = open && polled.done.is_empty() && polled.receiver.may_wait();
        may_wait.then_some(Reserved {
            stream: self,
            polled,
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
        }
    }

    fn flush(&self, receiver: &mut Receiver, done: &mut VecDeque<Done>) {
        lock(&self.send).flush(done);
        receiver.flush(self.own_receives.then_some(&*self.receives), done);
    }

    fn send_more(&self, send: &mut SendQueue, acks: Acks) {
        if let Err(Broken) = send.send(&self.socket, acks) {
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

/// What is received, while a thread waits for it.
pub(crate) struct Reserved<'a> {
    stream: &'a Stream,
    polled: MutexGuard<'a, Polled>,
}

impl Reserved<'_> {
    /// Waits until something comes or the stream ends, for some seconds, and receives it. The next
    /// to poll finds it.
    pub(crate) fn wait(mut self) {
        let Polled {
            receiver,
            done,
            fresh,
        } = &mut *self.polled;
        self.stream.progress(receiver, done, Receiver::wait);
        *fresh = !done.is_empty();
    }
}
