//! One connection's stream, as its queue pair, its completion queue and the connection manager
//! share it.
//!
//! Two locks, always taken in this order: `receiver`, by whoever polls; and `send`, by whoever
//! posts, and by whoever polls for as long as it takes to note an answer or to send one.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::{
    memory_region::Domain,
    receive_queue::ReceiveQueue,
    receiver::{Fault, Parts, Receiver},
    send_queue::{Broken, SendQueue},
    socket::{Socket, Span},
};
use crate::{
    status::OsError,
    sync::lock,
    transport::queues::{BATCH, Done, SendOp, WorkId},
};

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    /// Readable when there is something to do: the socket has bytes, or takes some again.
    ready: Epoll,
    pub(super) domain: Domain,
    receives: Arc<ReceiveQueue>,
    /// Whether the receives are this connection's own.
    own_receives: bool,
    receiver: Mutex<Polled>,
    send: Mutex<SendQueue>,
    phase: AtomicU8,
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
    ) -> Result<Arc<Self>, OsError> {
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| OsError::new("epoll_create1", errno as i32))?;
        let socket = Socket::new(fd);
        // In the setup nobody is to be woken by what the connection manager reads.
        ready
            .add(&socket, EpollEvent::new(EpollFlags::empty(), 0))
            .map_err(|errno| OsError::new("epoll_ctl", errno as i32))?;
        Ok(Arc::new(Self {
            socket,
            ready,
            domain,
            receives,
            own_receives,
            receiver: Mutex::new(Polled {
                receiver: Receiver::new(),
                done: VecDeque::new(),
            }),
            send: Mutex::new(SendQueue::new(depth)),
            phase: AtomicU8::new(Phase::SettingUp as u8),
        }))
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

    /// The connection is set up: from here on the stream is the queue pairs'.
    pub(super) fn open(&self) {
        self.reach(Phase::Open);
        self.watch(false);
        self.send_more(&mut lock(&self.send));
    }

    /// Ends the stream. What was sent before still arrives.
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
            self.socket.shut_down();
            // Whoever waits polls, and so has everything come back.
            self.watch(false);
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
        self.ready.0.as_fd()
    }

    /// Takes what has completed, up to the length of `batch`.
    pub(super) fn poll(&self, batch: &mut Vec<Done>) {
        batch.clear();
        let mut polled = lock(&self.receiver);
        let Polled { receiver, done } = &mut *polled;
        if done.is_empty() {
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
        if self.own_receives {
            receiver.flush(&self.receives, done);
        } else {
            receiver.forget();
        }
    }

    fn send_more(&self, send: &mut SendQueue) {
        if let Err(Broken) = send.send(&self.socket) {
            self.fail();
        }
        if let Some(room_wanted) = send.room_wanted() {
            self.watch(room_wanted);
        }
    }

    /// Has `ready` tell of bytes, and of room where it is wanted.
    fn watch(&self, room_wanted: bool) {
        let mut flags = EpollFlags::EPOLLIN;
        if room_wanted {
            flags |= EpollFlags::EPOLLOUT;
        }
        let mut event = EpollEvent::new(flags, 0);
        if let Err(errno) = self.ready.modify(&self.socket, &mut event) {
            log::error!("epoll_ctl: {errno}");
        }
    }
}
