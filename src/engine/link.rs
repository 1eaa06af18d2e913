//! One connection, as its handles and the engine's thread share it.
//!
//! Three locks, always taken in this order, each held for a short time and never while sleeping:
//!
//! 1. `poll`: taking completions from the completion queue and acting on them, so that they are acted on in their order;
//! 2. `core`: the state machine and the rings; everything it wants done is done before the lock is released, so that frames are
//!    posted in the order in which it made them;
//! 3. those inside of [`Waiting`].
//!
//! Connection manager calls are not made here: only the engine's thread touches the `CmId`. What the state machine wants of
//! it is queued in `core`, and the engine is told.

use std::{
    fmt, hint,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use crossbeam_channel::Sender;

use super::{
    core::{Aftermath, Core, SystemClock},
    hand::Hand,
    waiting::Waiting,
};
use crate::{
    completion::Completion,
    config::Polling,
    error::Error,
    interest::Interest,
    proto::{CloseReason, Connection, DrainSide, Flush, SendRefused, Statistics},
    status::OsError,
    sync::{Mailbox, Notice, NoticeKind, Readiness, lock},
    transport::rdma::{BATCH, DeviceCounters, Done, Memory, PollSide, Transport},
};

/// How many batches are taken in a row, so that a connection on which much comes holds up no other.
const BATCHES: usize = 4;

/// One connection. See the top of this file for its locks.
pub(crate) struct Link {
    /// The connection's number in its engine; the `context` of its `CmId`.
    pub(super) key: u64,
    peer: SocketAddr,
    pub(super) polling: Polling,
    pub(super) mailbox: Arc<Mailbox<Notice>>,
    pub(super) poll: Mutex<Option<PollSide>>,
    core: Mutex<Core>,
    pub(super) waiting: Waiting,
    /// What memory is made of, while there is a transport.
    memory: Mutex<Option<Arc<Memory>>>,
    /// How many completions were taken from the channel and put aside, because they were not what was looked for.
    pub(crate) aside: Arc<AtomicUsize>,
    /// Counts polls by threads other than the engine's, which takes the queue over when they stop:
    /// see `reactor::polling`.
    pub(super) polls: AtomicU64,
    /// Whether threads of the application poll, so that the engine's thread keeps away.
    pub(super) hot: AtomicBool,
    /// Whether the engine was told to look at this connection and has not yet.
    service_wanted: AtomicBool,
    /// Whether the last handle is gone.
    abandoned: AtomicBool,
    /// Whether `Core::ended` is set: for those who ask often.
    over: AtomicBool,
    /// The fds for event loops: see [`Endpoint::event_fd`](crate::Endpoint::event_fd).
    readable: Readiness,
    /// Readable unless a `try_send` was refused and no room came since.
    writable: Readiness,
}

/// What a look into the completion queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It was empty.
    Nothing,
    /// It is empty now.
    Some,
    /// There may be more, for which no event will be raised: look again.
    More,
}

impl Link {
    pub(super) fn new(
        key: u64,
        peer: SocketAddr,
        polling: Polling,
        mailbox: Arc<Mailbox<Notice>>,
        conn: Connection,
        completions: Sender<Completion>,
        most_ids: usize,
    ) -> Arc<Self> {
        let aside = Arc::new(AtomicUsize::new(0));
        Arc::new(Self {
            key,
            peer,
            polling,
            mailbox,
            poll: Mutex::new(None),
            core: Mutex::new(Core::new(conn, completions, Arc::clone(&aside), most_ids)),
            waiting: Waiting::new(),
            memory: Mutex::new(None),
            aside,
            polls: AtomicU64::new(0),
            hot: AtomicBool::new(false),
            service_wanted: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            over: AtomicBool::new(false),
            readable: Readiness::default(),
            writable: Readiness::default(),
        })
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The private data that the peer's program sent along with its hello.
    pub(crate) fn peer_data(&self) -> Vec<u8> {
        lock(&self.core).conn.peer_data().to_vec()
    }

    /// The largest message in bytes that can be sent; 0 before the connection is established and after it ended.
    pub(crate) fn send_limit(&self) -> u64 {
        let core = lock(&self.core);
        match (&core.ended, core.conn.negotiated()) {
            (None, Some(negotiated)) => negotiated.send_limit,
            (_, _) => 0,
        }
    }

    /// What both hellos came to.
    pub(crate) fn negotiated(&self) -> Option<crate::proto::Negotiated> {
        lock(&self.core).conn.negotiated()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        lock(&self.core).conn.statistics()
    }

    /// Whether a large message is being read, by either side.
    pub(super) fn expects_soon(&self) -> bool {
        lock(&self.core).conn.transfers_large()
    }

    /// How the connection ended, once it has.
    pub(crate) fn ended(&self) -> Option<(CloseReason, bool)> {
        if !self.over.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.core).ended.clone()
    }

    /// Has the peer asked how far it has come.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<Flush, Error> {
        self.with_core(|core| core.conn.flush())
            .map_err(|refused| match refused {
                SendRefused::Closed(reason) => Error::Disconnected(reason),
                // A handle exists only once the connection is established.
                SendRefused::Blocked | SendRefused::TooLong { .. } => {
                    Error::Disconnected(CloseReason::LocallyClosed)
                }
            })
    }

    /// Whether the peer has everything from before `flush`, or never will.
    pub(crate) fn is_flushed(&self, flush: &Flush) -> Option<Result<(), Error>> {
        let core = lock(&self.core);
        if core.conn.is_flushed(flush) {
            return Some(Ok(()));
        }
        core.ended
            .as_ref()
            .map(|(reason, _)| Err(Error::Disconnected(reason.clone())))
    }

    /// Stops sending and starts the exchange that closes the connection.
    pub(crate) fn close(self: &Arc<Self>) {
        self.with_core(|core| core.conn.close(Instant::now()));
    }

    /// Ends the connection without waiting for anything.
    pub(crate) fn abort(self: &Arc<Self>, code: u32) {
        self.with_core(|core| core.conn.abort(code, Instant::now()));
    }

    /// The last handle is gone: closes in the background, and has the engine watch the queue from now on.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.with_core(|core| {
            core.conn.close(Instant::now());
            // What nobody reads goes with the channel. As long as there was a sender the channel would keep it, and with it the
            // memory that large messages behind it need to be read.
            core.aftermath.hang_up = core.completions.take();
        });
        self.notify(NoticeKind::Watch);
    }

    /// Whether nobody is left whom a call could tell what became of the connection.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// A message was dropped: its buffer goes back to the device, and its credit to the peer.
    pub(crate) fn release(self: &Arc<Self>, buffer: u32) {
        self.with_core(|core| core.release(buffer));
    }

    /// A message of `len` bytes that had a buffer of its own was dropped.
    pub(crate) fn release_large(self: &Arc<Self>, len: u64) {
        self.with_core(|core| core.conn.release_large(len, SystemClock));
    }

    /// Looks into the completion queue once, and leaves it to whoever watches it otherwise.
    pub(crate) fn look(self: &Arc<Self>) {
        self.progress();
    }

    /// Looks into the completion queue once, for callers that are likely to look again soon.
    pub(crate) fn poll(self: &Arc<Self>) {
        self.keep_engine_away();
        self.progress();
    }

    /// Takes some of what is in the completion queue and acts on it.
    pub(super) fn progress(self: &Arc<Self>) -> Progress {
        self.progress_within(1, None)
    }

    /// As [`progress`](Self::progress), looking up to so many times while there is nothing. The first message may go into the `hand`.
    pub(super) fn progress_within(
        self: &Arc<Self>,
        mut looks: u32,
        hand: Option<&Hand>,
    ) -> Progress {
        let mut progress = Progress::Nothing;
        let mut side = lock(&self.poll);
        let Some(side) = side.as_mut() else {
            return Progress::Nothing;
        };
        for _ in 0..BATCHES {
            let count = loop {
                match side.poll() {
                    Ok(0) if looks > 1 => {
                        looks -= 1;
                        hint::spin_loop();
                    }
                    Ok(count) => break count,
                    Err(error) => {
                        log::error!("{self}: {error}");
                        self.with_core(|core| core.conn.handle_post_failure(error, Instant::now()));
                        break 0;
                    }
                }
            };
            looks = 1;
            if count > 0 {
                progress = Progress::Some;
                self.act(side, count, hand);
            }
            if count < BATCH {
                if side.is_drained() {
                    self.with_core(|core| core.conn.handle_drained(DrainSide::Recv));
                }
                return progress;
            }
        }
        Progress::More
    }

    /// Acts on the first `count` of what was polled last.
    fn act(self: &Arc<Self>, side: &mut PollSide, count: usize, hand: Option<&Hand>) {
        let drains_when_empty = self.with_core(|core| {
            let before = core.conn.peer_activity();
            let mut drains = false;
            for done in side.done(count) {
                drains |= matches!(done, Done::Drained(DrainSide::Send));
                core.handle_done(self, done, hand);
                core.settle(self, hand);
            }
            if let Some(life) = &core.life {
                life.add(before, core.conn.peer_activity());
            }
            drains && core.share.is_some()
        });
        if drains_when_empty {
            side.drains_when_empty();
        }
    }

    /// Takes all that is in the completion queue now, and not what keeps coming meanwhile.
    pub(super) fn catch_up(self: &Arc<Self>) {
        let places = lock(&self.poll).as_ref().map_or(0, |side| side.capacity());
        let looks = places.div_ceil(BATCH * BATCHES);
        for _ in 0..looks {
            if self.progress() != Progress::More {
                break;
            }
        }
    }

    /// Runs `f` on the state machine, does what it then wants done, and passes on what is not done under the lock.
    pub(super) fn with_core<T>(self: &Arc<Self>, f: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = lock(&self.core);
        let result = f(&mut core);
        core.settle(self, None);
        if core.aftermath.is_nothing() {
            return result;
        }
        let aftermath = std::mem::take(&mut core.aftermath);
        if aftermath.wake {
            self.publish(&core, &aftermath);
        }
        drop(core);
        if aftermath.service {
            self.want_service();
        }
        if aftermath.wake {
            self.waiting.wake();
        }
        drop(aftermath.hang_up);
        result
    }

    /// Shows what has come to those who look without the lock, and through the fds.
    fn publish(&self, core: &Core, aftermath: &Aftermath) {
        // Told once: nothing comes after it.
        let ended = core.ended.is_some() && !self.over.swap(true, Ordering::Release);
        if aftermath.arrived || ended {
            self.announce_readable(core);
        }
        if aftermath.room || ended {
            self.writable.announce(|| true);
        }
    }

    fn announce_readable(&self, core: &Core) {
        self.readable.announce(|| {
            let unread = core.completions.as_ref().is_none_or(|c| !c.is_empty());
            unread || self.is_ready()
        });
    }

    /// The fd for event loops. While there is one, the engine's thread watches the queue at all times.
    pub(crate) fn event_fd(&self, interest: Interest) -> Result<BorrowedFd<'_>, OsError> {
        let signal = match interest {
            Interest::Readable => &self.readable,
            Interest::Writable => &self.writable,
        };
        let watched_before = self.is_watched();
        let first = !signal.is_wanted();
        let fd = signal.fd()?;
        if !watched_before {
            self.notify(NoticeKind::Watch);
        }
        if first {
            // Under the lock: whoever put something there before this did not know of the fd.
            let core = self.core();
            match interest {
                Interest::Readable => self.announce_readable(&core),
                // That there is none is known from a `try_send`, which did not know of the fd
                // either.
                Interest::Writable => signal.announce(|| true),
            }
        }
        Ok(fd)
    }

    /// Whether an event loop watches one of the fds, so that the engine's thread is to watch the
    /// queue.
    pub(super) fn is_watched(&self) -> bool {
        self.readable.is_wanted() || self.writable.is_wanted()
    }

    /// Makes the fd show whether there is anything to take: something `unread`, or the end.
    pub(crate) fn show(&self, unread: impl FnOnce() -> bool) {
        self.readable.update(|| unread() || self.is_ready());
    }

    fn is_ready(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.aside.load(Ordering::Relaxed) > 0
    }

    /// A send that does not wait was refused, and another try follows. If that is refused as well,
    /// the fd tells when there is room: what comes between the two may be overlooked, and what
    /// comes later is not.
    pub(crate) fn want_room(&self) {
        self.writable.update(|| self.over.load(Ordering::Acquire));
    }

    /// The other try was not refused.
    pub(crate) fn need_no_room(&self) {
        self.writable.update(|| true);
    }

    /// Looks at the state machine without changing it.
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Asks the engine's thread to do something for this connection.
    pub(super) fn notify(&self, kind: NoticeKind) {
        self.mailbox.send(Notice {
            key: self.key,
            kind,
        });
    }

    /// Has the engine's thread reject the request that this connection is.
    pub(crate) fn reject(&self) {
        self.notify(NoticeKind::Reject);
    }

    /// Has the engine's thread look at this connection.
    fn want_service(&self) {
        if !self.service_wanted.swap(true, Ordering::AcqRel) {
            self.notify(NoticeKind::Drive);
        }
    }

    /// The engine's thread is about to look: whatever comes from now on needs a new request.
    pub(super) fn service_begins(&self) {
        self.service_wanted.store(false, Ordering::Release);
    }

    /// Takes a transport into use. From now on threads may poll it.
    pub(super) fn install(&self, transport: Transport) {
        let Transport {
            rings,
            share,
            poll_side,
            memory,
        } = transport;
        {
            let mut core = lock(&self.core);
            if let Some(share) = &share {
                core.conn.use_account(Arc::clone(share.account()));
            }
            core.share = share;
            core.rings = Some(rings);
        }
        *lock(&self.memory) = Some(memory);
        *lock(&self.poll) = Some(poll_side);
    }

    /// What makes memory, while there is a transport.
    pub(super) fn memory(&self) -> Option<Arc<Memory>> {
        lock(&self.memory).clone()
    }

    /// What a call comes to that needs a transport when there is none.
    pub(super) fn has_ended(&self) -> Error {
        Error::Disconnected(self.core().reason())
    }

    /// What the device counts.
    pub(crate) fn device_counters(&self) -> DeviceCounters {
        self.memory()
            .map_or_else(DeviceCounters::default, |memory| memory.device_counters())
    }

    /// Gives everything that belongs to the device back: the queue pair first, then the completion
    /// queue.
    pub(super) fn uninstall(&self) {
        // From here on nobody else polls.
        let mut side = lock(&self.poll).take();
        let rings = {
            let mut core = lock(&self.core);
            if let (Some(share), Some(rings), Some(side)) = (&core.share, &core.rings, &mut side) {
                // The queue pair, drained or not, is to take no more of shared receives; and which
                // it took is noted while its completions are there to tell: a driver may remove
                // those of a queue pair that is destroyed.
                if let Err(error) = rings.fail() {
                    log::debug!("{self}: {error}");
                }
                share.take_all(side);
            }
            core.rings.take()
        };
        if let Some(rings) = rings {
            rings.destroy();
        }
        if let Some(memory) = lock(&self.memory).take() {
            memory.close();
        }
        self.release_share(side);
    }

    /// The queue pair is gone, or there was none: what was promised of shared receives, and what
    /// was taken, goes back.
    fn release_share(&self, side: Option<PollSide>) {
        let mut core = lock(&self.core);
        let Core { share, conn, .. } = &mut *core;
        let Some(share) = share else { return };
        if let Some(mut side) = side {
            // What came in between, where the driver left it.
            share.take_all(&mut side);
        }
        if let Err(error) = share.settle(conn) {
            log::error!("{self}: {error}");
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {} to {}", self.key, self.peer)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("key", &self.key)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use crossbeam_channel::bounded;

    use super::*;
    use crate::{config::Config, engine::Outgoing, error::TrySendError};

    #[test]
    fn a_connection_that_was_cut_off_says_so_in_every_call() {
        let (completions, ends) = bounded(1);
        let params = Config::default().params();
        let link = Link::new(
            16,
            SocketAddr::from(([10, 8, 0, 1], 7471)),
            Polling::default(),
            Mailbox::new().unwrap(),
            Connection::connect(params, 1, b"", Instant::now()),
            completions,
            1,
        );
        assert_eq!(link.ended(), None);
        link.with_core(Core::cut_off);
        assert_eq!(link.ended(), Some((CloseReason::LocallyAborted, false)));
        let parts = [IoSlice::new(b"late")];
        assert!(matches!(
            link.try_send(&mut Outgoing::new(&parts, None)),
            Err(TrySendError::Failed(Error::Disconnected(
                CloseReason::LocallyAborted
            )))
        ));
        assert!(matches!(
            ends.recv(),
            Ok(Completion::Disconnected(CloseReason::LocallyAborted))
        ));
    }
}
