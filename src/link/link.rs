use std::{
    fmt,
    net::SocketAddr,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    time::Instant,
};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{
    completion::{Completion, Ended},
    core::{Core, Recipient},
    deferred::{Deferred, DeferredAction},
    message::{MessageOwner, Place},
    outbox::Taker,
    release::Ring,
    session::{LinkSession, Side},
    stall,
    ways::{Route, Way},
};
use crate::{
    config::{Config, Label},
    error::Error,
    os::{
        Process,
        foreign::{self, ForeignCall, PendingWork, Target},
        lock,
    },
    poll::{Awaited, Line, Mailbox, Notice, NoticeKind, Poller, Polling, Readiness, Reliance},
    proto::{CloseReason, Connection, Note, Topic},
    tally,
    transport::{Allocator, PollSide, TransportParts, WorkQueues},
    transport_choice::Transport,
};

/// The peer's Finish was delivered.
const FINISHED: u8 = 1;
/// `Core::ended` is set.
const OVER: u8 = 2;

/// One connection, as its handles and the engine's thread share it.
///
/// Three locks, always taken in this order, each held for a short time and never while sleeping:
///
/// 1. `poll`: polling the completion queue and acting on completions, so that they are acted on in
///    their order;
/// 2. `core`: the state machine and the work queues; the outputs of the state machine are carried
///    out before the lock is released, so that frames are posted in the order in which the state
///    machine made them;
/// 3. the locks inside of [`Poller`], of the fds and of the allocator.
///
/// Foreign code, such as a task's waker or the logger, runs with none of these locks held, in
/// [`Link::run_deferred`].
///
/// Only the engine's thread calls the connection manager. The link queues the calls that the state
/// machine requests in `core`, and notifies the engine.
pub(crate) struct Link {
    /// The connection's number in its process.
    pub(crate) key: u64,
    /// The label of the connector or of the listener.
    configured_label: Label,
    /// The label that the program gave the connection when it accepted the request.
    own_label: OnceLock<Label>,
    /// Whether threads that wait for room check for stalls, because the engine checks too seldom.
    pub(super) checks_stalls: bool,
    /// Whether the statistics of the process include the connection.
    is_counted: bool,
    /// The way of the first connection, and the local address of that connection.
    pub(super) first: Way,
    first_local: OnceLock<SocketAddr>,
    /// The way and the local address of the present or last connection. No other lock is taken
    /// under this one.
    route: Arc<Mutex<Route>>,
    /// Whether the present connection or attempt is over TCP.
    over_tcp: AtomicBool,
    /// Whether a session was offered.
    resumes: AtomicBool,
    pub(super) poll: Mutex<Option<PollSide>>,
    core: Mutex<Core>,
    /// Decides which thread polls, and wakes waiting threads.
    pub(crate) poller: Poller,
    pub(super) line: Line,
    /// Allocates memory for the application's messages. `None` without a transport.
    allocator: Mutex<Option<Arc<Allocator>>>,
    /// The number of completions that a `recv` took from the channel and set aside.
    pub(crate) set_aside: Arc<AtomicUsize>,
    /// Whether the connection's own channel may have completions. It is a hint for calls that look
    /// into the channel later in any case.
    pub(crate) may_have_unread: AtomicBool,
    /// The thread that takes completions from the connection's own channel.
    pub(crate) taker: Taker,
    /// Whether the engine was notified and has not driven the connection since.
    drive_wanted: AtomicBool,
    /// Whether the engine's thread waits for the lock of `poll`.
    pub(super) engine_waits: AtomicBool,
    /// Whether the last handle has been dropped.
    abandoned: AtomicBool,
    /// Bits of [`FINISHED`] and [`OVER`], the reasons for which no message can follow. Threads read
    /// them without the lock of `core`.
    ends: AtomicU8,
    /// The fds for event loops: see [`Endpoint::event_fd`](crate::Endpoint::event_fd).
    pub(super) readable: Readiness,
    /// Readable unless a `try_send` was refused and there has been no room since.
    pub(super) writable: Readiness,
    /// Work with foreign code that the engine's thread deferred.
    pending_work: PendingWork<Deferred>,
    /// The process that created the connection.
    process: Process,
}

impl Link {
    pub(crate) fn new(
        (key, config): (u64, &Config),
        way: Way,
        polling: Polling,
        notices: Arc<Mailbox<Notice>>,
        conn: Connection,
        completions: Sender<Completion>,
        max_ids: usize,
    ) -> Arc<Self> {
        let set_aside = Arc::new(AtomicUsize::new(0));
        let core = Core::new(conn, completions, Arc::clone(&set_aside), max_ids);
        Arc::new(Self {
            key,
            configured_label: config.label.clone(),
            own_label: OnceLock::new(),
            checks_stalls: stall::checks(config),
            is_counted: tally::is_enabled(),
            first: way,
            first_local: OnceLock::new(),
            route: Arc::new(Mutex::new(Route::new(way, None))),
            over_tcp: AtomicBool::new(way.transport == Transport::Tcp),
            resumes: AtomicBool::new(false),
            poll: Mutex::new(None),
            core: Mutex::new(core),
            poller: Poller::new(polling, Line::new(key, Arc::clone(&notices))),
            line: Line::new(key, notices),
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

    /// Returns the stand-in for the connections that a child inherits, with the receiver of its
    /// completions. It has ended with [`CloseReason::Forked`].
    pub(crate) fn forked() -> (Arc<Self>, Receiver<Completion>) {
        let (sender, completions) = bounded(1);
        let (nowhere, transport) = (SocketAddr::from(([0; 4], 0)), Transport::Tcp);
        let config = Config::default();
        let params = config.params(transport);
        let link = Self::new(
            (0, &config),
            Way::new(nowhere, transport),
            Polling::default(),
            Mailbox::closed(),
            Connection::connect(params, 0, b"", Instant::now()),
            sender,
            0,
        );
        link.with_core(|core| {
            core.cut_off(CloseReason::Forked);
            core.completions = None;
        });
        // The endpoint keeps its end, so each call returns it again.
        while completions.try_recv().is_ok() {}
        (link, completions)
    }

    // Facts about the connection.

    /// Returns the way and the local address of the present or last connection. A child that
    /// inherits the connection takes no lock, and gets those of the first connection.
    fn route(&self) -> Route {
        if self.is_inherited() {
            Route::new(self.first, self.first_local.get().copied())
        } else {
            *lock(&self.route)
        }
    }

    /// Records the local address of the connection, which has been established.
    pub(crate) fn set_local_addr(&self, local: SocketAddr) {
        self.first_local.get_or_init(|| local);
        lock(&self.route).local = local;
    }

    /// Whether the statistics of the process include the connection, because it began after they
    /// were enabled.
    pub(crate) fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Returns the name that the program gave the connection.
    pub(crate) fn label(&self) -> &Label {
        self.own_label.get().unwrap_or(&self.configured_label)
    }

    /// Names the connection, instead of its listener's label. Only the first call has an effect.
    pub(crate) fn set_label(&self, label: Label) {
        // A request is accepted once, so no other label exists.
        let _ = self.own_label.set(label);
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.route().way.address
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.route().local
    }

    pub(crate) fn transport(&self) -> Transport {
        self.route().way.transport
    }

    /// Whether the present connection or attempt is over TCP. Takes no lock.
    pub(super) fn is_over_tcp(&self) -> bool {
        self.over_tcp.load(Ordering::Acquire)
    }

    /// How the connection ended, once it has.
    pub(crate) fn ended(&self) -> Option<Ended> {
        if !self.is_over() {
            return None;
        }
        self.core().ended.clone()
    }

    /// Whether the connection is lost and its session waits for the next one.
    pub(crate) fn is_suspended(&self) -> bool {
        self.core().is_suspended()
    }

    /// Whether the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.load(Ordering::Acquire) & OVER != 0
    }

    /// Whether the peer has finished. Its messages are in the channel.
    pub(crate) fn peer_has_finished(&self) -> bool {
        self.ends.load(Ordering::Acquire) & FINISHED != 0
    }

    /// Whether more messages may arrive for the connection's own calls: neither the connection nor
    /// the peer's messages have ended, and the connection is in no group.
    pub(crate) fn is_receiving(&self) -> bool {
        self.ends.load(Ordering::Acquire) == 0 && !self.may_be_grouped()
    }

    /// Whether a group may get the completions.
    pub(super) fn may_be_grouped(&self) -> bool {
        self.poller.relies(Reliance::Group)
    }

    /// Records whether a group may get the completions. The caller holds the lock of `core`.
    pub(super) fn set_grouped(&self, grouped: bool) {
        if grouped {
            self.poller.rely(Reliance::Group);
        } else if self.may_be_grouped() {
            self.poller.stop_relying(Reliance::Group);
        }
    }

    // The last handle.

    /// Closes a connection without handles in the background. The engine begins to watch the queue.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.poller.leave_runtime();
        self.with_core(|core| {
            core.close(Instant::now());
            // The sending end is dropped, so that the channel drops its unread completions. They
            // hold memory that later large messages need.
            let completions = core.completions.take();
            core.deferred
                .later
                .extend(completions.map(DeferredAction::Close));
        });
        self.poller.call_engine();
    }

    /// Whether the connection has no handle whose calls could report its end.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    // The state machine.

    /// Reads the state machine without changing it.
    #[inline(always)]
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Runs `f` on the state machine and carries out its outputs. Notifies the engine's thread of
    /// the outputs that only that thread can carry out.
    pub(crate) fn with_core<T>(self: &Arc<Self>, f: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core();
        let result = f(&mut core);
        self.conclude(core);
        result
    }

    /// Carries out the outputs of the state machine after a change by the calling thread, and
    /// releases the lock.
    pub(super) fn conclude(self: &Arc<Self>, core: MutexGuard<'_, Core>) {
        if let Some(deferred) = self.carry_out(core) {
            self.notify_engine(deferred.drive);
            self.run_deferred(deferred);
        }
    }

    /// As [`with_core`](Self::with_core), for the engine's thread, which drives the connection
    /// next.
    pub(crate) fn in_engine<T>(self: &Arc<Self>, f: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core();
        let result = f(&mut core);
        if let Some(deferred) = self.carry_out(core) {
            self.run_deferred(deferred);
        }
        result
    }

    /// Carries out the outputs of the state machine, wakes waiting threads, and releases the lock.
    /// Returns the deferred work, for [`run_deferred`](Self::run_deferred): the caller may hold the
    /// lock of `poll`.
    #[inline]
    pub(super) fn carry_out(self: &Arc<Self>, mut core: MutexGuard<'_, Core>) -> Option<Deferred> {
        core.apply_outputs(&Recipient {
            owner: self,
            handoff: None,
        });
        self.settle(core)
    }

    /// As [`carry_out`](Self::carry_out), after the outputs were carried out.
    #[inline(always)]
    pub(super) fn settle(&self, mut core: MutexGuard<'_, Core>) -> Option<Deferred> {
        let deferred = core.deferred.take()?;
        Some(self.wake_after(core, deferred))
    }

    #[inline(never)]
    fn wake_after(&self, core: MutexGuard<'_, Core>, mut deferred: Deferred) -> Deferred {
        if deferred.finished {
            self.ends.fetch_or(FINISHED, Ordering::Release);
        }
        if deferred.wake {
            // The end is reported once.
            if let Some(ended) = &core.ended
                && self.ends.fetch_or(OVER, Ordering::Release) & OVER == 0
            {
                if self.is_counted && core.was_established() {
                    tally::count_end(&ended.reason);
                }
                // The outbox has left the group, because its end was reported there.
                self.set_grouped(false);
                deferred.arrived = true;
                deferred.room = true;
            }
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
            // The caller still holds the lock of `poll`, because `Completions::receive` relies on
            // this wake before the lock is free. The call runs no foreign code.
            self.poller.wake();
        }
        deferred
    }

    /// Does the deferred work: wakes tasks, drops messages that have no receiver, and writes log
    /// lines. All foreign code that the connection runs is run here and in
    /// [`wake_tasks`](Self::wake_tasks).
    ///
    /// The caller holds no lock of this or another connection, because foreign code may call back
    /// into either.
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
            foreign::leave(Arc::<Self>::clone(self));
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

    /// Wakes the tasks that await an event in `happened`. A waker that panics ends the connection.
    pub(super) fn wake_tasks(self: &Arc<Self>, happened: u8) {
        if self.poller.tasks.wake(happened).is_err() {
            self.handle_waker_panic();
        }
    }

    /// The waker of a task that waits on this connection panicked: ends the connection.
    pub(crate) fn handle_waker_panic(self: &Arc<Self>) {
        self.with_core(|core| core.conn.handle_waker_panic(Instant::now()));
    }

    pub(super) fn announce_readable(&self, core: &Core) {
        self.readable.announce(|| {
            let unread = core.completions.as_ref().is_none_or(|c| !c.is_empty());
            unread || self.is_ready()
        });
    }

    /// Whether the connection has ended, or a completion was set aside.
    pub(super) fn is_ready(&self) -> bool {
        self.is_over() || self.set_aside.load(Ordering::Relaxed) > 0
    }

    /// Notifies the engine's thread if `drive`, so that it drives the connection. Without such a
    /// thread, the calling thread does the engine's work. It holds no lock of a connection.
    pub(super) fn notify_engine(&self, drive: bool) {
        if drive {
            if !self.drive_wanted.swap(true, Ordering::AcqRel) {
                self.notify(NoticeKind::Drive);
            }
            self.line.serve();
        }
    }

    /// The engine's thread is about to drive the connection. Later outputs need a new notice.
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

    /// Removes the completion events from all epolls.
    pub(crate) fn end_watch(&self) {
        if let Err(error) = self.poller.unregister() {
            error!(
                Connection,
                "{self}: released its transport, but cannot remove its descriptor from an epoll \
                 instance: {error}"
            );
        }
    }

    // Sessions.

    /// Offers a session, before the connection is established.
    pub(crate) fn offer_session(&self, side: Side, config: &Config) {
        self.resumes.store(true, Ordering::Relaxed);
        let session = LinkSession::new(side, config, Arc::clone(&self.route));
        self.core().session = Some(Box::new(session));
    }

    /// Whether a session was offered, so that the transport may change.
    pub(super) fn resumes(&self) -> bool {
        self.resumes.load(Ordering::Relaxed)
    }

    /// Begins an attempt to resume the session over this way, with this state machine.
    pub(crate) fn attempt(self: &Arc<Self>, conn: Connection, way: Way) {
        // The change of transport is safe, because no transport is installed now.
        let over_tcp = way.transport == Transport::Tcp;
        self.over_tcp.store(over_tcp, Ordering::Release);
        self.in_engine(|core| {
            let (link, generation) = (Arc::clone(self), core.generation());
            core.attempt(conn, way, Arc::new(Ring { link, generation }));
        });
    }

    /// Sends the kept messages again that the peer has not received, while there is room.
    pub(crate) fn send_again(self: &Arc<Self>) {
        let allocator = self.allocator();
        while self.in_engine(|core| core.send_again(allocator.as_deref())) {}
    }

    // The transport.

    /// Takes a transport into use. From now on threads may poll it.
    pub(crate) fn install(&self, transport: TransportParts) {
        let TransportParts {
            queues,
            share,
            poll_side,
            allocator,
        } = transport;
        {
            let mut core = self.core();
            if let Some(share) = &share {
                core.conn.use_account(Arc::clone(share.account()));
            }
            core.share = share;
            core.queues = Some(queues);
        }
        *lock(&self.allocator) = Some(allocator);
        *lock(&self.poll) = Some(poll_side);
    }

    /// Returns whether no thread of the application uses the transport, so that
    /// [`uninstall`](Self::uninstall) need not wait. Otherwise moves the queue pair to its error
    /// state, so that such threads leave their calls soon.
    pub(crate) fn is_released(&self) -> bool {
        if self.try_lock_poll().is_none() {
            return false;
        }
        let core = self.core();
        core.queues.as_ref().is_none_or(WorkQueues::is_released)
    }

    /// Releases all objects of the device: the queue pair first, then the completion queue.
    pub(crate) fn uninstall(&self) {
        // After the poll side was taken, no other thread can poll, and no runtime can register the
        // connection.
        let mut side = lock(&self.poll).take();
        if self.is_over() {
            self.poller.leave_runtime();
        } else {
            self.poller.pause_runtime();
        }
        let mut failed = None;
        let queues = {
            let mut core = self.core();
            if let (Some(share), Some(queues), Some(side)) = (&core.share, &core.queues, &mut side)
            {
                // In the error state the queue pair takes no further shared receives, even if it is
                // not drained. The receives that it has taken are counted before the queue pair is
                // destroyed, because a driver may then remove their completions.
                failed = queues.fail().err();
                share.take_all(side);
            }
            core.queues.take()
        };
        if let Some(error) = failed {
            debug!(
                Connection,
                "{self}: cannot move its queue pair to the error state: {error}"
            );
        }
        if let Some(queues) = queues {
            queues.destroy();
        }
        if let Some(allocator) = lock(&self.allocator).take() {
            allocator.close();
        }
        self.release_share(side);
    }

    /// Returns the promised and the taken shared receives, after the queue pair was destroyed.
    fn release_share(&self, side: Option<PollSide>) {
        let settled = {
            let mut core = self.core();
            let Core { share, conn, .. } = &mut *core;
            let Some(share) = share else { return };
            if let Some(mut side) = side {
                // Completions that arrived in between, if the driver kept them.
                share.take_all(&mut side);
            }
            share.restore_receives(conn)
        };
        if let Err(error) = settled {
            error!(
                Connection,
                "{self}: released its transport, but cannot return its buffers to the shared \
                 receive queue: {error}"
            );
        }
    }

    /// Allocates memory for the application's messages. `None` without a transport.
    pub(super) fn allocator(&self) -> Option<Arc<Allocator>> {
        lock(&self.allocator).clone()
    }

    /// Returns the error of a call that needs a transport, while there is none.
    pub(super) fn disconnected(&self) -> Error {
        Error::Disconnected(self.core().reason())
    }
}

impl ForeignCall for Link {
    fn run(self: Arc<Self>) {
        while let Some(deferred) = self.pending_work.next() {
            self.run_deferred_here(deferred);
        }
    }
}

impl MessageOwner for Link {
    fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }

    fn give_back(self: Arc<Self>, place: Place) {
        self.take_back(place, 0);
    }
}

/// The application's side of an established connection. Dropping it closes the connection in the
/// background.
pub(crate) struct Owner(Arc<Link>);

impl Owner {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self(link)
    }
}

impl Deref for Owner {
    type Target = Arc<Link>;

    fn deref(&self) -> &Arc<Link> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.0.is_inherited() {
            self.0.abandon();
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn link() -> (Arc<Link>, Receiver<Completion>) {
        let (sender, completions) = bounded(1);
        let config = Config::default();
        let params = config.params(Transport::Rdma);
        let link = Link::new(
            (16, &config),
            Way::new(SocketAddr::from(([10, 8, 0, 1], 7471)), Transport::Rdma),
            Polling::default(),
            Mailbox::new().unwrap(),
            Connection::connect(params, 1, b"", Instant::now()),
            sender,
            1,
        );
        (link, completions)
    }

    #[test]
    fn wait_for_the_taker_begins_at_a_report() {
        let (link, completions) = link();
        link.taker.note_taking_thread();
        let is_to_come = |since: &mut Option<Instant>| {
            thread::scope(|scope| {
                let other = scope.spawn(|| link.may_gain_place(since));
                other.join().unwrap()
            })
        };
        let long_ago = Instant::now() - Taker::TIME_LIMIT;
        let mut since = Some(long_ago);
        assert!(is_to_come(&mut since));
        assert_eq!(since, None, "no report waits");
        let put = link
            .core()
            .completions
            .as_mut()
            .unwrap()
            .put(Completion::Sent(1));
        put.unwrap();
        assert!(is_to_come(&mut since));
        assert!(since.is_some_and(|since| since > long_ago));
        since = Some(long_ago);
        assert!(!is_to_come(&mut since));
        completions.recv().unwrap();
        assert!(is_to_come(&mut since));
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
            ends.recv(),
            Ok(Completion::Disconnected(CloseReason::LocallyAborted))
        ));
    }
}
