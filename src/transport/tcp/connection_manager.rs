//! Establishes TCP connections: listens, connects, exchanges the setup messages, and reports the
//! end of connections.

use std::{
    collections::{HashMap, VecDeque},
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
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
    socket::{Options, Socket},
    stream::Stream,
};
use crate::{
    os::{Unshared, failed, lock},
    proto::ReadDepth,
    status::OsError,
    transport::queues::SharedPools,
};

/// The epoll token of the timer.
const TIMER: u64 = 0;
/// The bit that marks the epoll tokens of sockets without a key. All tokens without this bit, other
/// than [`TIMER`], are keys of connections or listeners.
const UNNAMED: u64 = 1 << 63;

/// The interval at which the timer checks silent peers and paused listeners.
const TICK: Duration = Duration::from_secs(1);
/// The maximum number of epoll events that one call of [`ConnectionManager::gather`] handles.
const BATCH: usize = 32;

mod establishing;

use establishing::{ask, asking};

/// The connection manager of one engine: see the top of this file. Clones refer to the same
/// manager.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionManager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    epoll: Arc<Epoll>,
    timer: TimerFd,
    state: Mutex<State>,
    shared_pools: SharedPools,
}

#[derive(Debug, Default)]
struct State {
    sockets: HashMap<u64, Watched>,
    silent: SilentPeers,
    reports: VecDeque<Report>,
    /// The tokens of paused listeners, and of silent peers whose sockets epoll could not watch. A
    /// listener is paused when accepting has failed, usually because no file descriptor was free.
    /// The timer resumes the listeners, and tries again to watch the sockets of the peers.
    paused: Vec<u64>,
    /// An eventfd that was opened for an accept4(2) call which then returned no connection. It
    /// becomes the reserve of the next accepted connection.
    spare: Option<EventFd>,
    drawn: u64,
    ticking: bool,
}

/// A watched socket.
#[derive(Debug)]
enum Watched {
    Listener {
        socket: Unshared<TcpListener>,
        /// The options that accepted sockets inherit.
        options: Options,
    },
    /// A peer has connected and has not sent its request yet.
    Silent {
        listener: u64,
        peer: SocketAddr,
        accepted: Accepted,
        arriving: Arriving,
    },
    /// The engine has a peer's request, and has not accepted it yet.
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
    /// The socket belongs to a queue pair. The queue pair is notified when the socket's send buffer
    /// has space. The thread that polls the queue pair detects the end of the stream.
    Open(Weak<Stream>),
}

/// The socket of a peer that has connected.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: Socket,
    /// The options that the socket has inherited from the listener.
    pub(super) options: Options,
    /// An eventfd, opened in advance so that a file descriptor is available for the connection.
    pub(super) reserve: EventFd,
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
    listener: u64,
    peer: SocketAddr,
    private_data: Vec<u8>,
    reads: ReadDepth,
    accepted: Accepted,
    manager: ConnectionManager,
}

impl ConnectionManager {
    pub(crate) fn new() -> Result<Self, OsError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed("timerfd_create"))?;
        let inner = Inner {
            epoll: Arc::new(epoll),
            timer,
            state: Mutex::default(),
            shared_pools: SharedPools::default(),
        };
        inner.watch(&inner.timer, TIMER, EpollFlags::EPOLLIN)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Takes the next steps for ready sockets, and queues the resulting reports. Does nothing while
    /// earlier reports are pending. So the queue stays short even if peers connect faster than the
    /// engine handles reports.
    pub(crate) fn gather(&self) -> Result<(), OsError> {
        if !lock(&self.inner.state).reports.is_empty() {
            return Ok(());
        }
        let mut ready = [EpollEvent::empty(); BATCH];
        let count = match self.inner.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::Error::EINTR) => 0,
            Err(errno) => return Err(failed("epoll_wait")(errno)),
        };
        let mut state = lock(&self.inner.state);
        for event in &ready[..count] {
            match event.data() {
                TIMER => self.tick(&mut state),
                token => self.ready(&mut state, token),
            }
        }
        Ok(())
    }

    /// Removes and returns the next report, if there is one. Pending reports do not make the
    /// manager's descriptor readable, so the caller repeats the call until it returns `None`.
    pub(crate) fn poll(&self) -> Option<Report> {
        lock(&self.inner.state).reports.pop_front()
    }

    pub(super) fn shared_pools(&self) -> &SharedPools {
        &self.inner.shared_pools
    }

    // Reports that result from a call and not from a socket event.

    fn report(&self, key: u64, what: EventKind) {
        lock(&self.inner.state).report(key, what);
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
        self.open(&mut lock(&self.inner.state), key, stream, reads);
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

    /// Hands the socket of an established connection to its queue pair.
    fn open(&self, state: &mut State, key: u64, stream: &Arc<Stream>, reads: u8) {
        self.unwatch(stream.fd());
        let open = Watched::Open(Arc::downgrade(stream));
        state.sockets.insert(key, open);
        stream.open(Watch::new(&self.inner.epoll, key), reads);
    }

    /// Starts to accept connections on a listening socket. `options` describes the options of this
    /// socket, which accepted sockets inherit.
    pub(super) fn listen(
        &self,
        key: u64,
        socket: Unshared<TcpListener>,
        options: Options,
    ) -> Result<(), OsError> {
        self.inner.watch(&socket, key, EpollFlags::EPOLLIN)?;
        let listener = Watched::Listener { socket, options };
        lock(&self.inner.state).sockets.insert(key, listener);
        Ok(())
    }

    /// Sends a request with `private_data` as soon as the stream's socket is connected. Called
    /// after the socket has begun to connect.
    pub(super) fn connecting(
        &self,
        key: u64,
        stream: &Arc<Stream>,
        private_data: &[u8],
    ) -> Result<(), OsError> {
        let state = &mut *lock(&self.inner.state);
        // Over the loopback interface the socket is usually connected already.
        let flags = match ask(stream, private_data) {
            Ok(()) => {
                state.sockets.insert(key, asking(stream));
                EpollFlags::EPOLLIN
            }
            Err(nix::Error::EAGAIN) => {
                let watched = Watched::Connecting {
                    stream: Arc::clone(stream),
                    private_data: private_data.to_vec(),
                };
                state.sockets.insert(key, watched);
                EpollFlags::EPOLLOUT
            }
            Err(errno) => {
                state.report(key, EventKind::failure("connect", errno));
                return Ok(());
            }
        };
        self.inner.watch(stream.fd(), key, flags)
    }

    /// Drops all sockets, pending events and pending requests. Called when the engine ends.
    pub(crate) fn close(&self) {
        let State {
            sockets, reports, ..
        } = std::mem::take(&mut *lock(&self.inner.state));
        drop(sockets);
        drop(reports);
    }

    /// Ends the use of a connection's socket. Drops the pending events of the connection, and
    /// removes the socket from the epoll instance. Without the removal, events of the socket could
    /// be mistaken for those of a later socket with the same key.
    pub(super) fn discard(&self, key: u64, socket: impl AsFd) {
        let is_unwatched = matches!(
            lock(&self.inner.state).sockets.get(&key),
            Some(Watched::Open(stream)) if stream.upgrade().is_some_and(|it| !it.is_watched())
        );
        if !is_unwatched {
            self.unwatch(socket);
        }
        self.forget(key);
    }

    fn unwatch(&self, socket: impl AsFd) {
        // The call fails if the epoll instance does not watch the socket.
        let _ = self.inner.epoll.delete(socket);
    }

    /// Drops the pending events of this connection or listener, and reports none later. Requests to
    /// a listener stay pending, because the engine answers them.
    pub(super) fn forget(&self, key: u64) {
        let mut state = lock(&self.inner.state);
        if let Some(Watched::Listener { socket, .. }) = state.sockets.remove(&key) {
            // The program may have copies of an inherited socket. Until the last copy is closed,
            // epoll would report the connections in its queue, although this listener has ended.
            self.unwatch(&socket);
        }
        state.silent.remove(key);
        state
            .reports
            .retain(|report| !matches!(report, Report::Event(event) if event.key == key));
    }

    /// Watches the socket of a request that the engine has not accepted yet. The end of the stream
    /// is then reported.
    fn requested(&self, key: u64, socket: &Socket) {
        lock(&self.inner.state)
            .sockets
            .insert(key, Watched::Requested);
        if let Err(error) = self.inner.watch(socket, key, ENDS) {
            error_sparsely!(
                Connection,
                "conn {key}: cannot watch its TCP socket, so a disconnect by the peer may be \
                 detected late: {error}"
            );
        }
    }

    /// Starts the timer if there is a silent peer or a paused listener. Otherwise stops the timer.
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
                Some(Watched::Listener { socket, .. }) => {
                    self.inner.change(socket, token, EpollFlags::EPOLLIN);
                }
                Some(Watched::Silent { accepted, .. }) => {
                    let socket = &accepted.socket;
                    let watched = self.inner.watch(socket, token, EpollFlags::EPOLLIN);
                    if watched.is_err() {
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
    fn watch(&self, fd: impl AsFd, token: u64, flags: EpollFlags) -> Result<(), OsError> {
        self.epoll
            .add(fd, EpollEvent::new(flags, token))
            .map_err(failed("epoll_ctl"))
    }

    fn change(&self, fd: impl AsFd, token: u64, flags: EpollFlags) {
        if let Err(errno) = self.epoll.modify(fd, &mut EpollEvent::new(flags, token)) {
            error_sparsely!(
                Tcp,
                "engine: cannot change the epoll events of the TCP socket with key {token}, so \
                 some events may be lost or repeated: {errno}"
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

    /// Returns the maximum number of concurrent READs in each direction, as offered by the peer.
    pub(crate) fn reads(&self) -> ReadDepth {
        self.reads
    }

    /// Rejects the request.
    pub(crate) fn reject(self, private_data: &[u8]) {
        if let Err(errno) = tell(&self.accepted.socket, Kind::Reject, private_data) {
            debug!(
                Tcp,
                "engine: cannot send a rejection to {}: {errno}", self.peer
            );
        }
    }

    /// Begins to watch the socket of the request, and returns the socket and the manager. Later
    /// events of the connection contain `key`.
    pub(super) fn adopt(self, key: u64) -> (Accepted, ConnectionManager) {
        self.manager.requested(key, &self.accepted.socket);
        (self.accepted, self.manager)
    }
}

/// The flags with which epoll reports the end of a stream once.
const ENDS: EpollFlags = EpollFlags::EPOLLRDHUP.union(EpollFlags::EPOLLONESHOT);

/// The registration of an established socket with the connection manager's epoll instance. If a
/// send waits for space in the socket's send buffer, epoll reports once that there is space.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Arc<Epoll>,
    /// The key of the connection, which is also the epoll token.
    key: u64,
    /// Whether the epoll instance contains the socket. Changed under the lock of the send queue.
    is_registered: AtomicBool,
}

impl Watch {
    fn new(epoll: &Arc<Epoll>, key: u64) -> Self {
        Self {
            epoll: Arc::clone(epoll),
            key,
            is_registered: AtomicBool::new(false),
        }
    }

    /// Returns whether the epoll instance contains the socket.
    pub(super) fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    /// Requests one report when the socket's send buffer has space.
    pub(super) fn await_room(&self, socket: impl AsFd) {
        let once = EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT;
        let mut event = EpollEvent::new(once, self.key);
        let was_registered = self.is_registered.swap(true, Ordering::Relaxed);
        let result = if was_registered {
            self.epoll.modify(socket, &mut event)
        } else {
            self.epoll.add(socket, event)
        };
        match result {
            // ENOENT means that the connection has ended, and `discard` has removed the socket.
            Ok(()) | Err(nix::Error::ENOENT) => {}
            Err(errno) => {
                if !was_registered {
                    self.is_registered.store(false, Ordering::Relaxed);
                }
                error_elsewhere!(
                    Connection,
                    "conn {}: cannot watch its TCP socket, so messages that do not fit into its \
                     send buffer may be delayed: {errno}",
                    self.key
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use nix::{
        poll::{PollFd, PollFlags, PollTimeout, poll},
        sys::{
            socket::{getsockopt, sockopt},
            time::TimeValLike,
        },
    };

    use super::*;
    use crate::{
        config::{Config, Inherited},
        transport::tcp::ListenId,
    };

    fn listen(manager: &ConnectionManager) -> ListenId {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        ListenId::bind(manager, 16, any, &Config::default()).unwrap()
    }

    #[test]
    fn accepted_socket_inherits_the_options() {
        let manager = ConnectionManager::new().unwrap();
        let listener = listen(&manager);
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        manager.gather().unwrap();
        let state = lock(&manager.inner.state);
        let accepted = state.sockets.values().find_map(|watched| {
            if let Watched::Silent { accepted, .. } = watched {
                Some(accepted)
            } else {
                None
            }
        });
        let socket = accepted.unwrap().socket.as_fd();
        assert_eq!(getsockopt(&socket, sockopt::TcpNoDelay), Ok(true));
        assert_ne!(getsockopt(&socket, sockopt::TcpUserTimeout), Ok(0));
        let time_limit = getsockopt(&socket, sockopt::ReceiveTimeout).unwrap();
        assert_ne!(time_limit.num_microseconds(), 0);
    }

    #[test]
    fn ended_listener_is_not_watched_while_its_socket_has_copies() {
        let manager = ConnectionManager::new().unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let mut config = Config::default();
        config.listening.inherited = Some(Inherited(Arc::new(socket)));
        let listener = ListenId::bind(&manager, 16, address, &config).unwrap();
        let _waits = TcpStream::connect(address).unwrap();
        let is_ready = |time_limit: PollTimeout| {
            let mut fds = [PollFd::new(manager.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, time_limit).unwrap() == 1
        };
        assert!(is_ready(60_000_u16.into()));
        drop(listener);
        assert!(!is_ready(PollTimeout::ZERO));
    }

    #[test]
    fn request_is_reported_with_the_accept() {
        let manager = ConnectionManager::new().unwrap();
        let listener = listen(&manager);
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tell(&peer, Kind::Request, b"hello").unwrap();
        manager.gather().unwrap();
        let Some(Report::Request(request)) = manager.poll() else {
            panic!("one call of `gather` must report the request");
        };
        assert_eq!(request.private_data(), b"hello");
        // The peer disconnects before the engine adopts the request.
        drop(peer);
        let (_accepted, _) = request.adopt(17);
        manager.gather().unwrap();
        assert!(matches!(
            manager.poll(),
            Some(Report::Event(Event {
                key: 17,
                what: EventKind::Disconnected
            }))
        ));
    }

    #[test]
    fn reports_are_taken_before_more_are_gathered() {
        let manager = ConnectionManager::new().unwrap();
        let listener = listen(&manager);
        let address = listener.local_addr().unwrap();
        let connect = || {
            let peer = TcpStream::connect(address).unwrap();
            tell(&peer, Kind::Request, b"hello").unwrap();
            peer
        };
        let _first = connect();
        manager.gather().unwrap();
        let _second = connect();
        manager.gather().unwrap();
        assert!(matches!(manager.poll(), Some(Report::Request(_))));
        assert!(manager.poll().is_none());
        manager.gather().unwrap();
        assert!(matches!(manager.poll(), Some(Report::Request(_))));
    }
}
