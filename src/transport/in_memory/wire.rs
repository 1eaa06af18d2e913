//! The in-memory connection between two queue pairs.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{
    connection_manager::ConnectionManager,
    copy::{copy_frame, copy_shared},
};
use crate::{
    os::lock_hot,
    poll::{Mailbox, Notice, NoticeKind},
    proto::{DrainSide, tcp::Change},
    status::{OsError, WcStatus},
    transport::{
        queues::{BATCH, Done, Frame, RemoteAddr, SendOp, WorkId},
        tcp::{ExposedPart, Keys, Receive, ReceiveQueue, Request, Right, apply},
    },
};

/// An in-memory connection. A thread that holds the lock of `state` takes no further lock except
/// those of `ReceiveQueue`, of `Keys` and of the mailbox.
#[derive(Debug)]
pub(super) struct Wire {
    state: Mutex<State>,
}

/// One of the two sides of a connection, used as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The side that connects.
    Active,
    /// The side that accepts.
    Passive,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    ends: [Option<End>; 2],
    /// For each side, whether a test delays the work requests of this side.
    held: [bool; 2],
}

/// The stage of a connection. A connection never returns to an earlier stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    SettingUp,
    /// The queue pairs exchange frames.
    Open,
    /// The connection has ended. The code that sets this stage reports the end to each side that
    /// still uses the connection.
    Over,
}

/// The queues of one side.
#[derive(Debug)]
pub(super) struct End {
    /// The key of this side's connection. The two sides have different keys.
    key: u64,
    notices: Arc<Mailbox<Notice>>,
    receives: Arc<ReceiveQueue>,
    /// Whether the receives belong to this connection alone.
    own_receives: bool,
    keys: Arc<Keys>,
    phase: Phase,
    /// Posted requests that have not been carried out, oldest first.
    requests: VecDeque<Request>,
    done: VecDeque<Done>,
    /// Whether a notice was sent to the engine after the last poll of `done`.
    has_notice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    /// The queue pair is in the error state: posted work requests complete as flushed.
    Failed,
    /// The queue pair is destroyed. The memory of its work requests may have been freed.
    Destroyed,
}

/// The reason why a request failed.
enum Fault {
    /// The request completes with this status, and both queue pairs enter the error state.
    Refused(WcStatus),
    /// The operating system has no memory for a receive of the peer. The request stays in the
    /// queue, and the peer's queue pair enters the error state.
    OutOfMemory(OsError),
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}

impl End {
    pub(super) fn new(
        (key, notices): (u64, Arc<Mailbox<Notice>>),
        receives: Arc<ReceiveQueue>,
        own_receives: bool,
        keys: Arc<Keys>,
    ) -> Self {
        Self {
            key,
            notices,
            receives,
            own_receives,
            keys,
            phase: Phase::Working,
            requests: VecDeque::new(),
            done: VecDeque::new(),
            has_notice: false,
        }
    }

    /// Sends the engine a notice to poll the queue, if no such notice is pending.
    fn notify_engine(&mut self) {
        if !self.has_notice {
            self.has_notice = true;
            self.notices.send(Notice {
                key: self.key,
                kind: NoticeKind::Poll,
            });
        }
    }

    /// Adds the completion of a request that was carried out. An unsignalled request has a
    /// completion, too, because a signalled request may never follow.
    fn finish(&mut self, id: WorkId) {
        if let WorkId::Send(slot) = id {
            self.done.push_back(Done::Sent { slot });
            self.notify_engine();
        }
    }

    /// Moves the queue pair to the error state.
    fn fail(&mut self) {
        if self.phase == Phase::Working {
            self.phase = Phase::Failed;
        }
        self.notify_engine();
    }

    /// Completes all posted requests as flushed. Also completes the posted receives as flushed,
    /// unless other connections share them.
    fn flush(&mut self) {
        let requests = self.requests.drain(..);
        self.done
            .extend(requests.filter_map(|request| request.failure(WcStatus::WR_FLUSH_ERR)));
        if !self.own_receives {
            return;
        }
        while let Some(Receive { id, .. }) = self.receives.take_back() {
            match id {
                WorkId::Recv(buffer) => self.done.push_back(Done::ReceiveFailed {
                    buffer,
                    status: WcStatus::WR_FLUSH_ERR,
                    vendor_err: 0,
                }),
                WorkId::DrainRecv => self.done.push_back(Done::Drained(DrainSide::Recv)),
                WorkId::Send(_) | WorkId::DrainSend | WorkId::Invalidation => {}
            }
        }
    }

    fn take_receive(&self) -> Result<Receive, Fault> {
        if let Some(receive) = self.receives.take() {
            return Ok(receive);
        }
        match self.receives.take_another() {
            Ok(Some(receive)) => Ok(receive),
            Ok(None) => Err(Fault::Refused(WcStatus::RNR_RETRY_EXC_ERR)),
            Err(error) => Err(Fault::OutOfMemory(error)),
        }
    }

    /// Takes a receive for a frame of `len` bytes. Fails if no receive is available, or if the
    /// receive is too short.
    fn receive_for(&mut self, len: usize) -> Result<Receive, Fault> {
        let receive = self.take_receive()?;
        if len <= receive.to.len {
            return Ok(receive);
        }
        if let WorkId::Recv(buffer) = receive.id {
            self.done.push_back(Done::ReceiveFailed {
                buffer,
                status: WcStatus::LOC_LEN_ERR,
                vendor_err: 0,
            });
        }
        Err(Fault::Refused(WcStatus::REM_INV_REQ_ERR))
    }

    /// Completes the receive into which a frame was copied.
    fn received(&mut self, receive: Receive, len: usize) {
        if let WorkId::Recv(buffer) = receive.id {
            // The cast is lossless, because a frame is far shorter than 4 GiB.
            let len = len as u32;
            self.done.push_back(Done::Received { buffer, len });
            self.notify_engine();
        }
    }

    /// Returns the memory to which the peer's request refers. Returns `None` for a request of 0
    /// bytes, which needs no access right, as over RDMA.
    fn exposed(
        &self,
        at: RemoteAddr,
        len: usize,
        right: Right,
    ) -> Result<Option<ExposedPart>, Fault> {
        if len == 0 {
            return Ok(None);
        }
        // The cast is lossless, because an operation is shorter than 4 GiB.
        let part = self.keys.find(at.rkey, at.addr, len as u32, right);
        part.map(Some)
            .ok_or(Fault::Refused(WcStatus::REM_ACCESS_ERR))
    }
}

impl State {
    fn pair(&mut self, side: Side) -> Option<(&mut End, &mut End)> {
        let [active, passive] = &mut self.ends;
        let (active, passive) = (active.as_mut()?, passive.as_mut()?);
        Some(match side {
            Side::Active => (active, passive),
            Side::Passive => (passive, active),
        })
    }

    fn end(&mut self, side: Side) -> Option<&mut End> {
        self.ends[side as usize].as_mut()
    }

    /// Returns the queues of `side` and of its peer. Returns `None` if the requests of `side`
    /// cannot be carried out now.
    fn open_pair(&mut self, side: Side) -> Option<(&mut End, &mut End)> {
        if self.stage != Stage::Open || self.held[side as usize] {
            return None;
        }
        let pair = self.pair(side);
        pair.filter(|(own, peer)| own.phase == Phase::Working && peer.phase == Phase::Working)
    }

    /// Carries out the posted requests of one side.
    fn run(&mut self, side: Side) {
        while let Some((own, peer)) = self.open_pair(side) {
            let Some(request) = own.requests.pop_front() else {
                return;
            };
            let fault = match execute(&request, peer) {
                Ok(()) => {
                    own.finish(request.id);
                    continue;
                }
                Err(fault) => fault,
            };
            match fault {
                Fault::Refused(status) => {
                    own.done.extend(request.failure(status));
                    own.fail();
                }
                Fault::OutOfMemory(error) => {
                    own.requests.push_front(request);
                    peer.done.push_back(Done::OutOfMemory(Box::new(error)));
                }
            }
            peer.fail();
        }
    }
}

/// Carries out a request. `peer` is the side that receives the frame or has exposed the memory.
fn execute(request: &Request, peer: &mut End) -> Result<(), Fault> {
    let memory = request.memory;
    match request.op {
        SendOp::Send if request.id == WorkId::DrainSend => {}
        SendOp::Send => {
            let receive = peer.receive_for(memory.len)?;
            // SAFETY: only the queue pairs access the slot and the receive until the send and the
            // receive complete.
            unsafe { copy_frame(memory, receive.to.start) };
            peer.received(receive, memory.len);
        }
        SendOp::Write(at) => write(request, at, peer)?,
        SendOp::WriteWithImm(at, imm_data) => {
            write(request, at, peer)?;
            if let WorkId::Recv(buffer) = peer.take_receive()?.id {
                peer.done.push_back(Done::Immediate {
                    buffer,
                    imm_data,
                    len: memory.len as u32,
                });
                peer.notify_engine();
            }
        }
        SendOp::Read(at) => {
            let part = peer.exposed(at, memory.len, Right::Read)?;
            if let Some(part) = part {
                let start = part.start().ok_or(NO_ACCESS)?;
                // SAFETY: the part stays mapped while `start` is held. The target is the request's
                // own memory. Both are accessed as shared bytes.
                unsafe { copy_shared(start.get().as_ptr(), memory.start, memory.len) };
            }
        }
        SendOp::FetchAdd { remote, add } => {
            change(request, remote, Change::FetchAdd { add }, peer)?;
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => change(request, remote, Change::CompareSwap { compare, swap }, peer)?,
    }
    Ok(())
}

const NO_ACCESS: Fault = Fault::Refused(WcStatus::REM_ACCESS_ERR);

fn write(request: &Request, at: RemoteAddr, peer: &End) -> Result<(), Fault> {
    let memory = request.memory;
    if let Some(part) = peer.exposed(at, memory.len, Right::Write)? {
        let start = part.start().ok_or(NO_ACCESS)?;
        // SAFETY: the part stays mapped while `start` is held. The source is the request's own
        // memory. Both are accessed as shared bytes.
        unsafe { copy_shared(memory.start, start.get().as_ptr(), memory.len) };
    }
    Ok(())
}

/// Changes a word in the peer's memory, and copies the old value into the request's memory.
fn change(request: &Request, at: RemoteAddr, change: Change, peer: &End) -> Result<(), Fault> {
    let part = peer.exposed(at, size_of::<u64>(), Right::Atomic)?;
    let old = part.and_then(|part| apply(change, &part));
    let mut old = old.ok_or(NO_ACCESS)?;
    let len = size_of_val(&old).min(request.memory.len);
    // SAFETY: the source is one aligned word on this function's stack. The target is the request's
    // own memory, which is accessed as shared bytes.
    unsafe { copy_shared((&raw mut old).cast(), request.memory.start, len) };
    Ok(())
}

impl Wire {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock_hot(&self.state)
    }

    // Functions that establish and end the connection.

    /// Adds the queues of one side.
    pub(super) fn join(&self, side: Side, end: End) {
        self.state().ends[side as usize] = Some(end);
    }

    /// Opens the connection after the passive side has accepted it, and carries out the requests
    /// that both sides have posted. Returns the key of the active side; `None` if the active side
    /// has already left the connection.
    pub(super) fn open(&self) -> Option<u64> {
        let mut state = self.state();
        if state.stage != Stage::SettingUp {
            return None;
        }
        let key = state.end(Side::Active)?.key;
        state.stage = Stage::Open;
        state.run(Side::Active);
        state.run(Side::Passive);
        Some(key)
    }

    /// Ends the connection. Returns the previous stage.
    fn end(&self) -> Stage {
        std::mem::replace(&mut self.state().stage, Stage::Over)
    }

    /// Ends the connection and reports the end to both sides.
    pub(super) fn disconnect(&self, manager: &ConnectionManager) {
        if self.end() == Stage::Over {
            return;
        }
        let keys = self.keys();
        for key in keys.into_iter().flatten() {
            manager.disconnected(key);
        }
    }

    /// Ends the connection because `side` has left it. The result identifies the peer that the
    /// caller must notify, and states whether the connection was still being established.
    pub(super) fn leave(&self, side: Side) -> Left {
        let stage = self.end();
        let peer = self.keys()[side.other() as usize];
        match (stage, peer) {
            (Stage::SettingUp, Some(peer)) => Left::Unanswered(peer),
            (Stage::Open, Some(peer)) => Left::Open(peer),
            (_, _) => Left::Nobody,
        }
    }

    fn keys(&self) -> [Option<u64>; 2] {
        let state = self.state();
        [0, 1].map(|side| state.ends[side].as_ref().map(|end| end.key))
    }

    // Functions that one side's queue pair calls.

    pub(super) fn post(&self, side: Side, request: Request) {
        let mut state = self.state();
        if let Some(end) = state.end(side) {
            end.requests.push_back(request);
            if end.phase == Phase::Failed {
                end.notify_engine();
            }
            state.run(side);
        }
    }

    /// Copies a frame directly to a receive of the peer. Returns `false` if no copy is possible
    /// now. The caller then has to post the frame as a request.
    pub(super) fn pass(&self, side: Side, id: WorkId, frame: Frame<'_>) -> bool {
        let mut state = self.state();
        let Some((own, peer)) = state.open_pair(side) else {
            return false;
        };
        if !own.requests.is_empty() {
            return false;
        }
        let Some(receive) = peer.receives.take() else {
            return false;
        };
        if frame.len > receive.to.len {
            peer.receives.post(receive);
            return false;
        }
        // SAFETY: the receive is long enough, and only the queue pair accesses its memory until the
        // receive completes.
        unsafe { frame.copy_to(receive.to.start) };
        peer.received(receive, frame.len);
        own.finish(id);
        true
    }

    /// Moves this side's queue pair to the error state.
    pub(super) fn fail(&self, side: Side) {
        if let Some(end) = self.state().end(side) {
            end.fail();
        }
    }

    /// Drops the posted requests of `side`. Afterwards the memory of these requests and of the
    /// receives of `side` is no longer accessed, so it may be freed. Called when the queue pair of
    /// `side` is destroyed.
    pub(super) fn destroy(&self, side: Side) {
        if let Some(end) = self.state().end(side) {
            end.phase = Phase::Destroyed;
            end.requests.clear();
        }
    }

    // Functions for tests.

    pub(super) fn hold(&self, side: Side) {
        self.state().held[side as usize] = true;
    }

    pub(super) fn release(&self, side: Side) {
        let mut state = self.state();
        state.held[side as usize] = false;
        state.run(side);
    }

    pub(super) fn waiting(&self, side: Side) -> usize {
        self.state().end(side).map_or(0, |end| end.requests.len())
    }

    // Functions that the polling thread calls.

    /// Replaces the content of `batch` with up to [`BATCH`] completions. Returns `true` if the
    /// queue contains more completions.
    pub(super) fn poll(&self, side: Side, batch: &mut Vec<Done>) -> bool {
        batch.clear();
        let mut state = self.state();
        let Some(end) = state.end(side) else {
            return false;
        };
        end.has_notice = false;
        if end.phase == Phase::Failed && end.done.len() < BATCH {
            end.flush();
        }
        let count = end.done.len().min(BATCH);
        batch.extend(end.done.drain(..count));
        !end.done.is_empty()
    }
}

/// The peer of a side that has left the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The peer with this key waits for the connection to be established.
    Unanswered(u64),
    /// The connection with the peer was open. The peer has this key.
    Open(u64),
    /// The peer need not be notified. Either the peer has no queues yet, or the connection had
    /// already ended.
    Nobody,
}

/// A handle that injects faults into a connection, for tests. After [`cut`](Self::cut) or
/// [`release`](Self::release), the caller must make the engine handle the connection's notices.
#[derive(Clone, Debug)]
pub(crate) struct WireControl {
    wire: Arc<Wire>,
    side: Side,
    manager: ConnectionManager,
}

impl WireControl {
    pub(super) fn new(wire: &Arc<Wire>, side: Side, manager: &ConnectionManager) -> Self {
        Self {
            wire: Arc::clone(wire),
            side,
            manager: manager.clone(),
        }
    }

    /// Ends the connection for both sides, as if the link had failed.
    pub(crate) fn cut(&self) {
        self.wire.disconnect(&self.manager);
    }

    /// Delays this side's work requests until [`release`](Self::release) is called.
    pub(crate) fn hold(&self) {
        self.wire.hold(self.side);
    }

    /// Carries out the delayed work requests. Later work requests are not delayed.
    pub(crate) fn release(&self) {
        self.wire.release(self.side);
    }

    /// Returns the number of this side's delayed work requests.
    pub(crate) fn held(&self) -> usize {
        self.wire.waiting(self.side)
    }
}
