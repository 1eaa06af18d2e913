//! One connection's stream, as its queue pair, its completion queue and the connection manager
//! share it.
//!
//! Two locks, always taken in this order: `receiver`, by whoever polls; and `send`, by whoever
//! posts, and by whoever polls for as long as it takes to note an answer or to send one.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

use super::{
    memory_region::Domain,
    receive_queue::ReceiveQueue,
    receiver::{Fault, Parts, Receiver},
    send_queue::{Broken, SendQueue},
    socket::{Socket, Span},
    watch::Watch,
};
use crate::{
    sync::lock,
    transport::queues::{BATCH, Done, SendOp, WorkId},
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
        let mut send = lock(&self.send);
        send.limit_reads(reads);
        self.send_more(&mut send);
    }

    /// The socket takes some again.
    pub(super) fn has_room(&self) {
        let mut send = lock(&self.send);
        send.forget_room_wanted();
        let open = self.phase() == Phase::Open;
        if open {
            self.send_more(&mut send);
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
            self.send_more(&mut send);
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
        self.reach(Phase::Destroyed);
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

    /// Takes what has completed, up to the length of `batch`.
    pub(super) fn poll(&self, batch: &mut Vec<Done>) {
        batch.clear();
        let mut polled = lock(&self.receiver);
        let Polled { receiver, done } = &mut *polled;
        // Less than a batch says that there is no more, so what is staged must not be left behind.
        if done.len() < BATCH {
            match self.phase() {
                Phase::SettingUp | Phase::Destroyed => {}
                Phase::Open => self.progress(receiver, done),
                Phase::Failed => self.flush(receiver, done),
            }
        }
        let count = done.len().min(BATCH);
        batch.extend(done.drain(..count));
    }

    fn progress(&self, receiver: &mut Receiver, done: &mut VecDeque<Done>) {
        let mut parts = Parts {
            socket: &self.socket,
            send: &self.send,
            receives: &self.receives,
            keys: &self.domain.keys,
            done,
        };
        let received = receiver.receive(&mut parts, BATCH);
        self.send_more(&mut lock(&self.send));
        match received {
            Ok(()) => {}
            Err(Fault::Refused) => {
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

    fn send_more(&self, send: &mut SendQueue) {
        if let Err(Broken) = send.send(&self.socket) {
            self.fail();
        }
        if let (Some(true), Some(watch)) = (send.room_wanted(), self.watch.get()) {
            watch.set(&self.socket, true);
        }
    }
}
