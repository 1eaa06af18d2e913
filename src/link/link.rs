use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    time::Instant,
};

use super::{
    completion::{Completion, Ended},
    core::Core,
    deferred::{Deferred, DeferredAction},
    destination::Taker,
    inbox::{Inbox, Inlet, inbox},
    message::{MessageOwner, Storage},
    owners::Ring,
    receive::Recipient,
    session::{LinkSession, PeerPath, Route, Side},
    stall,
};
use crate::{
    addresses::Shown,
    config::{Config, Label},
    os::{
        Process,
        foreign::{self, ForeignCall, PendingWork, Target},
        lock_hot,
    },
    poll::{
        Awaited, Mailbox, Notice, NoticeKind, NoticeSender, Poller, Polling, Readiness, Reliance,
    },
    proto::{CloseReason, Connection, Note, Topic},
    tally,
    transport::{Allocator, PollSide},
    transport_choice::Transport,
};

/// The bit of `Link::ends` that is set after the peer's Finish has arrived.
const FINISHED: u8 = 1;
/// The bit of `Link::ends` that is set after `Core::ended` was set.
const OVER: u8 = 2;

/// One connection, shared by its handles and the engine's thread.
///
/// The connection has three kinds of locks, which are always taken in the order of the list below.
/// Each lock is held for a short time, and never while the holder sleeps:
///
/// 1. `poll`: held to poll the completion queue and to handle the completions, so that they are
///    handled in the order in which they were polled;
/// 2. `core`: protects the state machine and the work queues. The holder carries out the outputs of
///    the state machine before it releases the lock, so that frames are posted in the order in
///    which the state machine created them;
/// 3. the internal locks of [`Poller`], of the fds and of the allocator.
///
/// Foreign code, such as a task's waker or the logger, runs in [`Link::run_deferred`] while none of
/// these locks is held.
///
/// Only the engine calls the connection manager. The link queues the operations that the
/// state machine requests in `core`, and notifies the engine.
pub(crate) struct Link {
    /// The link itself, for methods that get `&self` but need an `Arc`.
    pub(super) this: Weak<Self>,
    /// The connection's number in its process.
    pub(crate) key: u64,
    /// The label from the configuration of the connector or listener.
    configured_label: Label,
    /// The label that the program set when it accepted the request.
    own_label: OnceLock<Label>,
    /// Whether threads that wait for room check for stalls themselves. They do if the engine checks
    /// too rarely.
    pub(super) checks_stalls: bool,
    /// Whether the statistics of the process include the connection.
    is_counted: bool,
    /// The path of the first connection.
    pub(super) first: PeerPath,
    /// The local address of the first connection. Empty until a connection is established.
    first_local: OnceLock<SocketAddr>,
    /// The peer's address, the transport, and the local address of the current or last connection.
    /// No other lock is taken while this lock is held.
    route: Arc<Mutex<Route>>,
    /// Whether the current connection or attempt uses TCP.
    over_tcp: AtomicBool,
    /// Whether this side has offered a session.
    resumes: AtomicBool,
    pub(super) poll: Mutex<Option<PollSide>>,
    core: Mutex<Core>,
    /// Decides which thread polls, and wakes waiting threads.
    pub(crate) poller: Poller,
    pub(super) line: NoticeSender,
    /// The allocator of memory for the application's messages. `None` without a transport.
    pub(super) allocator: Mutex<Option<Arc<Allocator>>>,
    /// The number of completions that `recv` took from the queue and set aside for later calls.
    pub(crate) set_aside: Arc<AtomicUsize>,
    /// Whether the connection's own queue may contain completions. This is only a hint: calls
    /// that need certainty check the queue.
    pub(crate) may_have_unread: AtomicBool,
    /// The last thread that took completions from the connection's own queue.
    pub(crate) taker: Taker,
    /// Whether the engine was notified and has not driven the connection since then.
    drive_wanted: AtomicBool,
    /// Whether the engine's thread waits for the lock of `poll`.
    pub(super) engine_waits: AtomicBool,
    /// Whether the last handle has been dropped.
    abandoned: AtomicBool,
    /// The bits [`FINISHED`] and [`OVER`]. If either bit is set, no further message can follow.
    /// Threads read the bits without the lock of `core`.
    ends: AtomicU8,
    /// The readable state for event loops: see [`Endpoint::event_fd`](crate::Endpoint::event_fd).
    pub(super) readable: Readiness,
    /// The writable state for event loops. The fd of this state is initially readable. A refused
    /// `try_send` makes the fd unreadable until the window has room.
    pub(super) writable: Readiness,
    /// Deferred work that may run foreign code. A thread that collects foreign calls adds such work
    /// here, and does it later.
    pending_work: PendingWork<Deferred>,
    /// The process that created the connection.
    pub(super) process: Process,
}

impl Link {
    pub(crate) fn new(
        (key, config): (u64, &Config),
        path: PeerPath,
        polling: Polling,
        notices: Arc<Mailbox<Notice>>,
        conn: Connection,
        completions: Inlet,
        max_ids: usize,
    ) -> Arc<Self> {
        let set_aside = Arc::new(AtomicUsize::new(0));
        let core = Core::new(conn, completions, Arc::clone(&set_aside), max_ids);
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            key,
            configured_label: config.label.clone(),
            own_label: OnceLock::new(),
            checks_stalls: stall::checks(config),
            is_counted: tally::is_enabled(),
            first: path,
            first_local: OnceLock::new(),
            route: Arc::new(Mutex::new(Route::new(path, None))),
            over_tcp: AtomicBool::new(path.transport == Transport::Tcp),
            resumes: AtomicBool::new(false),
            poll: Mutex::new(None),
            core: Mutex::new(core),
            poller: Poller::new(polling, NoticeSender::new(key, Arc::clone(&notices))),
            line: NoticeSender::new(key, notices),
            allocator: Mutex::new(None),
            set_aside,
            may_have_unread: AtomicBool::new(false),
            taker: Taker::default(),
            drive_wanted: AtomicBool::new(false),
            engine_waits: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            ends: AtomicU8::new(0),
            readable: Readiness::default(),
            writable: Readiness::default(),
            pending_work: PendingWork::default(),
            process: Process::this(),
        })
    }

    /// Returns a placeholder for the connections that a child process inherits, and the
    /// placeholder's inbox. The placeholder has ended with [`CloseReason::Forked`].
    pub(crate) fn forked() -> (Arc<Self>, Inbox) {
        let (inlet, completions) = inbox();
        let (nowhere, transport) = (SocketAddr::from(([0; 4], 0)), Transport::Tcp);
        let config = Config::default();
        let params = config.params(transport);
        let link = Self::new(
            (0, &config),
            PeerPath::new(nowhere, transport),
            Polling::default(),
            Mailbox::closed(),
            Connection::connect(params, 0, b"", Instant::now()),
            inlet,
            0,
        );
        link.with_core(|core| core.cut_off(CloseReason::Forked));
        // Removes the `Disconnected` completion, because each call of the endpoint reports the end
        // itself.
        while completions.take().is_some() {}
        (link, completions)
    }

    // Properties of the connection.

    /// Returns the route of the current or last connection. In a child process that inherited the
    /// connection, takes no lock, and returns the route of the first connection.
    fn route(&self) -> Route {
        if self.is_inherited() {
            Route::new(self.first, self.first_local.get().copied())
        } else {
            *lock_hot(&self.route)
        }
    }

    /// Records the local address of an established connection.
    pub(crate) fn set_local_addr(&self, local: SocketAddr) {
        self.first_local.get_or_init(|| local);
        lock_hot(&self.route).local = local;
    }

    /// Returns whether the statistics of the process include the connection. They include it if
    /// they were enabled before the connection was created.
    pub(crate) fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Returns the label of the connection.
    pub(crate) fn label(&self) -> &Label {
        self.own_label.get().unwrap_or(&self.configured_label)
    }

    /// Sets a label that replaces the listener's label. Only the first call has an effect.
    pub(crate) fn set_label(&self, label: Label) {
        // A request is accepted only once, so the label is not yet set.
        let _ = self.own_label.set(label);
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.route().path.address
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.route().local
    }

    pub(crate) fn transport(&self) -> Transport {
        self.route().path.transport
    }

    /// Returns whether the current connection or attempt uses TCP. Takes no lock.
    pub(super) fn is_over_tcp(&self) -> bool {
        self.over_tcp.load(Ordering::Acquire)
    }

    /// Returns the reason for the end of the connection, and whether all messages arrived. Returns
    /// `None` before the end.
    pub(crate) fn ended(&self) -> Option<Ended> {
        if !self.is_over() {
            return None;
        }
        self.core().ended.clone()
    }

    /// Returns whether the connection was lost and its session has no new connection yet.
    pub(crate) fn is_suspended(&self) -> bool {
        self.core().is_suspended()
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.load(Ordering::Acquire) & OVER != 0
    }

    /// Returns whether the peer's Finish was delivered. If so, all messages of the peer are in the
    /// queue.
    pub(crate) fn peer_has_finished(&self) -> bool {
        self.ends.load(Ordering::Acquire) & FINISHED != 0
    }

    /// Returns whether more messages may arrive in the connection's own queue. This is the case
    /// until the connection ends, the peer finishes, or the connection joins a group.
    pub(crate) fn is_receiving(&self) -> bool {
        self.ends.load(Ordering::Acquire) == 0 && !self.may_be_grouped()
    }

    /// Returns whether completions may go to a group.
    pub(super) fn may_be_grouped(&self) -> bool {
        self.poller.relies(Reliance::Group)
    }

    /// Records whether completions may go to a group. The caller holds the lock of `core`.
    pub(super) fn set_grouped(&self, grouped: bool) {
        if grouped {
            self.poller.rely(Reliance::Group);
        } else if self.may_be_grouped() {
            self.poller.stop_relying(Reliance::Group);
        }
    }

    // Functions for the drop of the last handle.

    /// Closes the connection in the background after its last handle was dropped. From now on the
    /// engine polls the connection's completion queue.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.poller.leave_runtime();
        self.with_core(|core| {
            core.close(Instant::now());
            // Later completions have no receiver and are dropped at once. If they were kept, they
            // would occupy memory that later large messages need.
            let completions = core.reports.destination.take();
            core.deferred
                .later
                .extend(completions.map(Box::new).map(DeferredAction::Close));
        });
        self.poller.leave_group();
        self.poller.call_engine();
    }

    /// Returns whether the last handle was dropped. If so, no call can report the connection's end.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    // Messages that the application has dropped.

    /// Reclaims the buffer and credit of a dropped message. `generation` identifies the connection
    /// over which the message arrived.
    #[inline(always)]
    pub(super) fn reclaim_from(&self, storage: Storage, generation: u32) {
        let mut core = self.core();
        if !core.reclaim(storage, generation) {
            self.conclude_release(core);
        }
    }

    /// Carries out the state machine's outputs after the application has dropped a message. Unlocks
    /// `core`.
    #[inline(never)]
    fn conclude_release(&self, core: MutexGuard<'_, Core>) {
        // The message holds a reference to the link, so the upgrade succeeds.
        if let Some(link) = self.this.upgrade() {
            link.conclude(core);
        }
    }

    // Access to the state machine.

    /// Locks the state machine. A caller that changes it must carry out its outputs before it
    /// releases the lock.
    #[inline(always)]
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock_hot(&self.core)
    }

    /// Calls `f` with the state machine, and carries out the resulting outputs. Notifies the
    /// engine's thread if there are outputs that need that thread.
    pub(crate) fn with_core<T>(self: &Arc<Self>, f: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core();
        let result = f(&mut core);
        self.conclude(core);
        result
    }

    /// Carries out the outputs of the state machine after the calling thread has changed it, and
    /// releases the lock.
    pub(super) fn conclude(self: &Arc<Self>, core: MutexGuard<'_, Core>) {
        if let Some(deferred) = self.carry_out(core) {
            self.notify_engine(deferred.drive);
            self.run_deferred(deferred);
        }
    }

    /// Does the same as [`with_core`](Self::with_core) in the engine's thread, which drives the
    /// connection afterwards and needs no notice.
    pub(crate) fn in_engine<T>(self: &Arc<Self>, f: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core();
        let result = f(&mut core);
        if let Some(deferred) = self.carry_out(core) {
            self.run_deferred(deferred);
        }
        result
    }

    /// Carries out the outputs of the state machine, wakes waiting threads, and releases the lock.
    /// Returns the deferred work, which the caller passes to [`run_deferred`](Self::run_deferred)
    /// when it no longer holds the lock of `poll`.
    #[inline]
    pub(super) fn carry_out(self: &Arc<Self>, mut core: MutexGuard<'_, Core>) -> Option<Deferred> {
        core.apply_outputs(&Recipient {
            owner: self,
            handoff: None,
        });
        self.settle(core)
    }

    /// Completes [`carry_out`](Self::carry_out) after the outputs were carried out.
    #[inline(always)]
    pub(super) fn settle(&self, mut core: MutexGuard<'_, Core>) -> Option<Deferred> {
        let deferred = core.deferred.take()?;
        Some(self.wake_after(core, deferred))
    }

    #[inline(never)]
    fn wake_after(&self, mut core: MutexGuard<'_, Core>, mut deferred: Deferred) -> Deferred {
        if deferred.wake {
            self.report_ends(&mut core, &mut deferred);
            if deferred.arrived {
                self.may_have_unread.store(true, Ordering::Relaxed);
                self.announce_readable(&core);
            }
            if deferred.room {
                self.writable.announce(|| true);
            }
        }
        drop(core);
        if deferred.wake {
            // The threads are woken here, while the caller may still hold the lock of `poll`:
            // `Completions::receive` relies on a wake before that lock is released. `Poller::wake`
            // runs no foreign code.
            self.poller.wake();
        }
        deferred
    }

    /// Reports the peer's Finish and the end of the connection, if they have just occurred. Sets
    /// the bits of `ends` before the completions become visible, so that a thread that takes such a
    /// completion also finds the bit.
    fn report_ends(&self, core: &mut Core, deferred: &mut Deferred) {
        // `put` fails if the application has dropped its side of the queue, which is not an error
        // here.
        if deferred.finished {
            self.ends.fetch_or(FINISHED, Ordering::Release);
            let reports = &mut core.reports;
            let last = reports.last_destination.as_mut();
            if let Some(completions) = last.or(reports.destination.as_mut()) {
                let _ = completions.put(Completion::Finished);
            }
            deferred.arrived = true;
        }
        // Several threads may find that the connection has ended. Only the thread that sets the bit
        // reports the end.
        if let Some(ended) = &core.ended
            && self.ends.fetch_or(OVER, Ordering::Release) & OVER == 0
        {
            if self.is_counted && core.was_established() {
                tally::count_end(&ended.reason);
            }
            if let Some(mut completions) = core.reports.last_destination.take() {
                let _ = completions.put(Completion::Disconnected(ended.reason.clone()));
                let close = DeferredAction::Close(Box::new(completions));
                deferred.later.push(close);
            }
            // The connection has left its group, because the end was reported to the group.
            self.set_grouped(false);
            deferred.arrived = true;
            deferred.room = true;
        }
    }

    /// Does the deferred work: wakes tasks, drops messages without a receiver, and writes log
    /// lines. If this thread collects foreign calls, this function only queues the work. Foreign
    /// code of the connection runs only in deferred work and in [`wake_tasks`](Self::wake_tasks).
    ///
    /// The caller holds no lock of any connection, because foreign code may call methods of any
    /// connection.
    pub(super) fn run_deferred(self: &Arc<Self>, mut deferred: Deferred) {
        if !foreign::collects() {
            return self.run_deferred_here(deferred);
        }
        let happened = Awaited::happened(deferred.arrived, deferred.room);
        deferred.wake &= self.poller.tasks.is_awaited(happened);
        if deferred.is_left()
            && self
                .pending_work
                .add(|pending_work| pending_work.add(deferred))
        {
            foreign::defer(Arc::<Self>::clone(self));
        }
    }

    fn run_deferred_here(self: &Arc<Self>, deferred: Deferred) {
        if deferred.wake {
            self.wake_tasks(Awaited::happened(deferred.arrived, deferred.room));
        }
        for later in deferred.later {
            match later {
                DeferredAction::Close(completions) => drop(completions),
                DeferredAction::Drop(completion) => drop(completion),
                #[cfg(feature = "tokio")]
                DeferredAction::EnterRuntime => self.enter_runtime_again(),
                DeferredAction::Log(Note { level, topic, text }) => match topic {
                    None => foreign::log(level, Target::Connection, format_args!("{self}: {text}")),
                    Some(Topic::Violation) => warn_sparsely!(Connection, "{self}: {text}"),
                    Some(Topic::UnexpectedEvent) => warn_sparsely!(Connection, "{self}: {text}"),
                },
            }
        }
    }

    /// Wakes the tasks that wait for an event in `happened`. If a waker panics, the connection
    /// ends.
    pub(super) fn wake_tasks(self: &Arc<Self>, happened: u8) {
        if self.poller.tasks.wake(happened).is_err() {
            self.handle_waker_panic();
        }
    }

    /// Ends the connection after the waker of one of its tasks has panicked.
    pub(crate) fn handle_waker_panic(self: &Arc<Self>) {
        self.with_core(|core| core.conn.handle_waker_panic(Instant::now()));
    }

    pub(super) fn announce_readable(&self, core: &Core) {
        self.readable.announce(|| {
            let unread = core
                .reports
                .destination
                .as_ref()
                .is_none_or(|c| !c.is_empty());
            unread || self.is_ready()
        });
    }

    /// Returns whether the connection has ended, or completions were set aside.
    pub(super) fn is_ready(&self) -> bool {
        self.is_over() || self.set_aside.load(Ordering::Relaxed) > 0
    }

    /// If `drive` is true, notifies the engine's thread to drive the connection. If the engine has
    /// no thread, the calling thread does the engine's work. The caller holds no lock of any
    /// connection.
    pub(super) fn notify_engine(&self, drive: bool) {
        if drive {
            if !self.drive_wanted.swap(true, Ordering::AcqRel) {
                self.notify(NoticeKind::Drive);
            }
            self.line.serve();
        }
    }

    /// Records that the engine's thread begins to drive the connection. Later outputs must notify
    /// the thread again.
    pub(crate) fn drive_begins(&self) {
        self.drive_wanted.store(false, Ordering::Release);
    }

    /// Sends the engine's thread a notice about this connection.
    pub(super) fn notify(&self, kind: NoticeKind) {
        self.line.send(kind);
    }

    /// Returns the mailbox for this connection's notices.
    pub(crate) fn notices(&self) -> &Arc<Mailbox<Notice>> {
        self.line.notices()
    }

    /// Removes the fd of the completion events from all epoll instances.
    pub(crate) fn end_watch(&self) {
        if let Err(error) = self.poller.unregister() {
            error!(
                Connection,
                "{self}: released its transport, but cannot remove the transport's descriptor from \
                 an epoll instance: {error}"
            );
        }
    }

    // Sessions.

    /// Offers a session to the peer. Called before the connection is established.
    pub(crate) fn offer_session(&self, side: Side, config: &Config) {
        self.resumes.store(true, Ordering::Relaxed);
        let session = LinkSession::new(side, config, Arc::clone(&self.route));
        self.core().session = Some(Box::new(session));
    }

    /// Returns whether this side has offered a session. If so, the transport can change when the
    /// session resumes.
    pub(super) fn resumes(&self) -> bool {
        self.resumes.load(Ordering::Relaxed)
    }

    /// Begins an attempt to resume the session over `path`, with the new state machine `conn`.
    pub(crate) fn attempt(self: &Arc<Self>, conn: Connection, path: PeerPath) {
        // It is safe to switch between TCP and RDMA here, because the link has no transport
        // installed at this point.
        let over_tcp = path.transport == Transport::Tcp;
        self.over_tcp.store(over_tcp, Ordering::Release);
        self.in_engine(|core| {
            let (link, generation) = (Arc::clone(self), core.generation());
            core.recovery()
                .attempt(conn, path, Arc::new(Ring { link, generation }));
        });
    }

    /// Resends kept messages that the peer has not received, until the window is full.
    pub(crate) fn send_again(self: &Arc<Self>) {
        let allocator = self.allocator();
        while self.in_engine(|core| core.recovery().send_again(allocator.as_deref())) {}
    }
}

/// Formats the name of a connection for log lines: its number, its label and its peer.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = Shown(self.peer_addr());
        write!(f, "conn {}{} to {peer}", self.key, self.label())
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("key", &self.key)
            .field("label", &self.label().as_str())
            .field("peer", &Shown(self.peer_addr()))
            .finish_non_exhaustive()
    }
}

impl ForeignCall for Link {
    fn run(self: Arc<Self>) {
        while let Some(deferred) = self.pending_work.next() {
            self.run_deferred_here(deferred);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::error::Error;

    pub(in crate::link) fn link() -> (Arc<Link>, Inbox) {
        let (inlet, completions) = inbox();
        let config = Config::default();
        let params = config.params(Transport::Rdma);
        let link = Link::new(
            (16, &config),
            PeerPath::new(SocketAddr::from(([10, 8, 0, 1], 7471)), Transport::Rdma),
            Polling::default(),
            Mailbox::new().unwrap(),
            Connection::connect(params, 1, b"", Instant::now()),
            inlet,
            1,
        );
        (link, completions)
    }

    #[test]
    fn end_can_be_taken_only_after_the_calls_report_it() {
        let (link, ends) = link();
        let mut core = link.core();
        core.cut_off(CloseReason::LocallyAborted);
        assert!(!link.is_over());
        assert!(ends.is_empty(), "the completion must not be visible yet");
        link.conclude(core);
        assert!(link.is_over());
        assert!(matches!(ends.take(), Some(Completion::Disconnected(_))));
    }

    #[test]
    fn every_call_reports_a_cut_off_connection() {
        let (link, ends) = link();
        assert_eq!(link.ended(), None);
        link.with_core(|core| core.cut_off(CloseReason::LocallyAborted));
        let ended = Ended {
            reason: CloseReason::LocallyAborted,
            delivered: false,
        };
        assert_eq!(link.ended(), Some(ended));
        let core = link.core();
        assert!(matches!(
            core.check_not_ended(),
            Err(Error::Disconnected(CloseReason::LocallyAborted))
        ));
        assert!(matches!(
            ends.take(),
            Some(Completion::Disconnected(CloseReason::LocallyAborted))
        ));
    }
}
