//! Establishes TCP connections: listens, connects, exchanges the setup messages, and reports the
//! end of connections.

use std::{
    collections::{HashMap, VecDeque},
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    eventfd::EventFd,
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

use super::{
    event::{Event, EventKind},
    setup::{Arriving, tell},
    setup_message::Kind,
    silent_peers::SilentPeers,
    stream::Stream,
};
use crate::{
    os::{Unshared, failed, lock},
    poll::eventfd,
    proto::ReadDepth,
    status::OsError,
    transport::queues::SharedPools,
};

/// The epoll tokens of the waker and the timer, and the bit that marks tokens of sockets without a
/// key. All other tokens are keys.
const WAKER: u64 = 0;
const TIMER: u64 = 1;
const UNNAMED: u64 = 1 << 63;

/// The interval of the checks for silent peers and paused listeners.
const TICK: Duration = Duration::from_secs(1);
/// The maximum number of epoll events that are taken at a time.
const BATCH: usize = 32;

mod establishing;

/// The connection manager of one engine: see the top of this file. Clones are handles of the same
/// manager.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionManager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    epoll: Arc<Epoll>,
    /// Wakes the thread that waits for reports, if no socket event wakes it.
    waker: EventFd,
    timer: TimerFd,
    state: Mutex<State>,
    shared_pools: SharedPools,
}

#[derive(Debug, Default)]
struct State {
    sockets: HashMap<u64, Watched>,
    silent: SilentPeers,
    reports: VecDeque<Report>,
    /// The tokens of listeners whose last accept failed, usually because no file descriptor was
    /// free, and of silent peers that epoll could not watch. The timer retries both.
    paused: Vec<u64>,
    drawn: u64,
    ticking: bool,
}

/// A watched socket.
#[derive(Debug)]
enum Watched {
    Listener(Unshared<TcpListener>),
    /// A peer has connected and has not sent its request yet.
    Silent {
        listener: u64,
        peer: SocketAddr,
        socket: Unshared<OwnedFd>,
        /// An open descriptor. It reserves the second descriptor that the connection will need.
        reserve: EventFd,
        arriving: Arriving,
    },
    /// A peer's request was reported to the engine.
    Requested,
    /// This side is connecting, and sends a request with this private data once it is connected.
    Connecting {
        stream: Arc<Stream>,
        private_data: Vec<u8>,
    },
    /// This side has sent its request, and waits for the answer.
    Asking {
        stream: Arc<Stream>,
        arriving: Arriving,
    },
    /// The socket belongs to a queue pair. The queue pair is notified when the stream ends, and
    /// when the socket's send buffer has space.
    Open(Weak<Stream>),
}

/// A report of the connection manager.
#[derive(Debug)]
pub(crate) enum Report {
    Request(ConnectRequest),
    Event(Event),
}

/// A peer's connection request. Dropping the request closes its socket.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    token: u64,
    listener: u64,
    peer: SocketAddr,
    private_data: Vec<u8>,
    reads: ReadDepth,
    /// The socket; `None` after the request was answered.
    socket: Option<Unshared<OwnedFd>>,
    reserve: Option<EventFd>,
    manager: ConnectionManager,
}

impl ConnectionManager {
    pub(crate) fn new() -> Result<Self, OsError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))?;
        let waker = eventfd()?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed("timerfd_create"))?;
        let inner = Inner {
            epoll: Arc::new(epoll),
            waker,
            timer,
            state: Mutex::default(),
            shared_pools: SharedPools::default(),
        };
        inner.watch(&inner.waker, WAKER, EpollFlags::EPOLLIN)?;
        inner.watch(&inner.timer, TIMER, EpollFlags::EPOLLIN)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the next report, if there is one.
    pub(crate) fn poll(&self) -> Result<Option<Report>, OsError> {
        let inner = &*self.inner;
        let _ = inner.waker.read();
        {
            let mut state = lock(&inner.state);
            if let Some(report) = inner.next_report(&mut state) {
                return Ok(Some(report));
            }
        }
        let mut ready = [EpollEvent::empty(); BATCH];
        let count = match inner.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::Error::EINTR) => 0,
            Err(errno) => return Err(failed("epoll_wait")(errno)),
        };
        let mut state = lock(&inner.state);
        for event in &ready[..count] {
            match event.data() {
                WAKER => {}
                TIMER => self.tick(&mut state),
                token => self.ready(&mut state, token, event.events()),
            }
        }
        Ok(inner.next_report(&mut state))
    }

    pub(super) fn shared_pools(&self) -> &SharedPools {
        &self.inner.shared_pools
    }

    // Reports that result from a call and not from a socket event.

    fn report(&self, key: u64, what: EventKind) {
        let event = Event { key, what };
        lock(&self.inner.state)
            .reports
            .push_back(Report::Event(event));
        // The write fails only if the counter of the eventfd is full. Then the eventfd is readable
        // anyway.
        let _ = self.inner.waker.write(1);
    }

    /// Reports the address as resolved immediately, because TCP addresses need no resolution.
    pub(super) fn resolved_addr(&self, key: u64) {
        self.report(key, EventKind::AddrResolved);
    }

    /// Reports the route as resolved immediately.
    pub(super) fn resolved_route(&self, key: u64) {
        self.report(key, EventKind::RouteResolved);
    }

    /// Reports that this side cannot connect.
    pub(super) fn failed_to_connect(&self, key: u64, errno: nix::Error) {
        self.report(key, EventKind::failure("connect", errno));
    }

    /// Reports that this side has accepted a request.
    pub(super) fn accepted(&self, key: u64, stream: &Arc<Stream>, reads: u8) {
        stream.open(Watch::new(&self.inner.epoll, key), reads);
        if let Some(watched) = lock(&self.inner.state).sockets.get_mut(&key) {
            *watched = Watched::Open(Arc::downgrade(stream));
        }
        let reads = ReadDepth {
            outgoing: 0,
            incoming: 0,
        };
        let private_data = Vec::new();
        self.report(
            key,
            EventKind::Established {
                private_data,
                reads,
            },
        );
    }

    // Sockets.

    /// Starts to accept connections on a listening socket.
    pub(super) fn listen(&self, key: u64, listener: Unshared<TcpListener>) -> Result<(), OsError> {
        self.inner.watch(&listener, key, EpollFlags::EPOLLIN)?;
        lock(&self.inner.state)
            .sockets
            .insert(key, Watched::Listener(listener));
        Ok(())
    }

    /// Sends a request with `private_data` when the stream's socket has connected. Called while
    /// the socket is connecting.
    pub(super) fn connecting(
        &self,
        key: u64,
        stream: &Arc<Stream>,
        private_data: &[u8],
    ) -> Result<(), OsError> {
        self.inner.watch(stream.fd(), key, EpollFlags::EPOLLOUT)?;
        let watched = Watched::Connecting {
            stream: Arc::clone(stream),
            private_data: private_data.to_vec(),
        };
        lock(&self.inner.state).sockets.insert(key, watched);
        Ok(())
    }

    /// Drops pending reports and requests when the engine ends.
    pub(crate) fn close(&self) {
        let State {
            sockets, reports, ..
        } = std::mem::take(&mut *lock(&self.inner.state));
        drop(sockets);
        drop(reports);
    }

    /// Removes a socket from the epoll. Otherwise its events could be mistaken for those of a later
    /// socket with the same key.
    pub(super) fn unwatch(&self, socket: impl AsFd) {
        // The call fails if the epoll did not watch the socket.
        let _ = self.inner.epoll.delete(socket);
    }

    /// Drops all pending reports of this connection or listener. Its later events are not reported.
    pub(super) fn forget(&self, key: u64) {
        let mut state = lock(&self.inner.state);
        state.sockets.remove(&key);
        state.silent.remove(key);
        state
            .reports
            .retain(|report| !matches!(report, Report::Event(event) if event.key == key));
    }

    /// Assigns this key to the socket of a request.
    fn name(&self, token: u64, key: u64, socket: &Unshared<OwnedFd>) {
        let mut state = lock(&self.inner.state);
        if let Some(watched) = state.sockets.remove(&token) {
            state.sockets.insert(key, watched);
        }
        // The end of the stream may already have been reported with the old token, which the key
        // replaces in the report.
        for report in &mut state.reports {
            if let Report::Event(event) = report
                && event.key == token
            {
                event.key = key;
            }
        }
        drop(state);
        self.inner.change(socket, key, Watch::ENDS);
    }

    /// Starts the timer if there is a silent peer or a paused listener; otherwise stops the timer.
    fn start_timer(&self, state: &mut State) {
        let wanted = !state.silent.is_empty() || !state.paused.is_empty();
        if wanted == state.ticking {
            return;
        }
        state.ticking = wanted;
        let result = if wanted {
            let every = Expiration::Interval(TimeSpec::from_duration(TICK));
            self.inner.timer.set(every, TimerSetTimeFlags::empty())
        } else {
            self.inner.timer.unset()
        };
        if let Err(errno) = result {
            error_sparsely!(
                Tcp,
                "engine: cannot set the timer of the TCP listeners, so paused listeners might not \
                 resume, and silent peers might stay connected: {errno}"
            );
        }
    }

    fn tick(&self, state: &mut State) {
        let _ = self.inner.timer.wait();
        let now = Instant::now();
        while let Some(token) = state.silent.expire(now) {
            state.sockets.remove(&token);
        }
        for token in std::mem::take(&mut state.paused) {
            match state.sockets.get(&token) {
                Some(Watched::Listener(socket)) => {
                    self.inner.change(socket, token, EpollFlags::EPOLLIN);
                }
                Some(Watched::Silent { socket, .. }) => {
                    if self
                        .inner
                        .watch(socket, token, EpollFlags::EPOLLIN)
                        .is_err()
                    {
                        state.paused.push(token);
                    }
                }
                None
                | Some(
                    Watched::Requested
                    | Watched::Connecting { .. }
                    | Watched::Asking { .. }
                    | Watched::Open(_),
                ) => {}
            }
        }
        self.start_timer(state);
    }
}

impl Inner {
    fn next_report(&self, state: &mut State) -> Option<Report> {
        let report = state.reports.pop_front();
        if !state.reports.is_empty() {
            // Wakes the engine for the remaining reports, because no socket event wakes it.
            let _ = self.waker.write(1);
        }
        report
    }

    fn watch(&self, fd: impl AsFd, token: u64, flags: EpollFlags) -> Result<(), OsError> {
        self.epoll
            .add(fd, EpollEvent::new(flags, token))
            .map_err(failed("epoll_ctl"))
    }

    fn change(&self, fd: impl AsFd, token: u64, flags: EpollFlags) {
        if let Err(errno) = self.epoll.modify(fd, &mut EpollEvent::new(flags, token)) {
            error_sparsely!(
                Tcp,
                "cannot change the epoll events of the TCP socket with token {token}: {errno}"
            );
        }
    }
}

impl AsFd for ConnectionManager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.epoll.0.as_fd()
    }
}

impl ConnectRequest {
    /// Returns the key of the listener to which the request was sent.
    pub(crate) fn listener(&self) -> u64 {
        self.listener
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the maximum numbers of concurrent READs that the peer offers, one for each
    /// direction.
    pub(crate) fn reads(&self) -> ReadDepth {
        self.reads
    }

    /// Rejects the request.
    pub(crate) fn reject(self, private_data: &[u8]) {
        if let Some(socket) = &self.socket
            && let Err(errno) = tell(socket, Kind::Reject, private_data)
        {
            debug!(
                Tcp,
                "engine: cannot send a rejection to {}: {errno}", self.peer
            );
        }
    }

    /// Takes the socket of the request. Later events of the connection contain `key`.
    pub(super) fn adopt(
        mut self,
        key: u64,
    ) -> (
        Option<Unshared<OwnedFd>>,
        Option<EventFd>,
        ConnectionManager,
    ) {
        let (socket, reserve) = (self.socket.take(), self.reserve.take());
        if let Some(socket) = &socket {
            self.manager.name(self.token, key, socket);
        }
        (socket, reserve, self.manager.clone())
    }
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if self.socket.is_some() {
            self.manager.forget(self.token);
        }
    }
}

/// The engine's epoll registration of one established socket. It reports the end of the stream.
/// While a send waits for space in the socket's send buffer, it also reports when there is space.
/// It is one-shot: it must be armed again after each report.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Arc<Epoll>,
    token: u64,
}

impl Watch {
    /// The epoll flags to report the end of a connection once.
    pub(super) const ENDS: EpollFlags = EpollFlags::EPOLLRDHUP.union(EpollFlags::EPOLLONESHOT);

    /// Creates the object for a socket that `epoll` already contains. The token is the key of the
    /// connection.
    pub(super) fn new(epoll: &Arc<Epoll>, token: u64) -> Self {
        Self {
            epoll: Arc::clone(epoll),
            token,
        }
    }

    /// Returns the key of the connection.
    pub(super) fn key(&self) -> u64 {
        self.token
    }

    /// Arms the registration: it reports the end of the stream and, if `room_wanted`, space in the
    /// socket's send buffer.
    pub(super) fn set(&self, socket: impl AsFd, room_wanted: bool) {
        let flags = if room_wanted {
            Self::ENDS | EpollFlags::EPOLLOUT
        } else {
            Self::ENDS
        };
        let mut event = EpollEvent::new(flags, self.token);
        match self.epoll.modify(socket, &mut event) {
            // ENOENT means that `unwatch` has removed the socket.
            Ok(()) | Err(nix::Error::ENOENT) => {}
            Err(errno) => error_sparsely!(
                Connection,
                "conn {}: cannot watch its TCP socket, so it may detect the peer's end late: \
                 {errno}",
                self.token
            ),
        }
    }

    /// Returns whether an event reports the end of the stream, and not only space in the send
    /// buffer.
    pub(super) fn is_end(flags: EpollFlags) -> bool {
        flags.intersects(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR)
    }
}
