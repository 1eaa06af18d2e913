//! Establishes in-memory connections.

use std::{
    collections::{HashMap, VecDeque},
    net::{Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
};

use super::wire::{Left, Side, Wire};
use crate::{
    addresses::{Shown, serves},
    os::lock,
    poll::{Mailbox, Notice, NoticeKind},
    proto::{CloseReason, ReadDepth},
    transport::{
        queues::SharedPools,
        tcp::{Event, EventKind},
    },
};

/// The maximum number of outstanding READs and atomic operations, the same as over TCP.
const READS: u8 = 16;

/// The maximum number of READs that each side issues at a time, and that it serves at a time.
pub(super) const DEPTH: ReadDepth = ReadDepth {
    outgoing: READS,
    incoming: READS,
};

/// The counter for the artificial ports of connecting sides.
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// The listeners and the reports of one engine. Clones are handles to the same manager.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionManager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    notices: Arc<Mailbox<Notice>>,
    state: Mutex<State>,
    shared_pools: SharedPools,
}

#[derive(Debug, Default)]
struct State {
    listeners: HashMap<SocketAddr, u64>,
    reports: VecDeque<Report>,
}

/// A report of the connection manager.
#[derive(Debug)]
pub(crate) enum Report {
    Request(ConnectRequest),
    Event(Event),
}

/// A connection request. Dropping it rejects the request.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    listener: u64,
    /// The artificial address of the connecting side.
    pub(super) peer: SocketAddr,
    /// The address to which the peer connects.
    pub(super) local: SocketAddr,
    private_data: Vec<u8>,
    /// The connection; `None` after it was taken out of the request.
    wire: Option<Arc<Wire>>,
    pub(super) manager: ConnectionManager,
}

impl ConnectionManager {
    pub(crate) fn new(notices: &Arc<Mailbox<Notice>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                notices: Arc::clone(notices),
                state: Mutex::default(),
                shared_pools: SharedPools::default(),
            }),
        }
    }

    /// Returns the next report, if there is one.
    pub(crate) fn poll(&self) -> Option<Report> {
        lock(&self.inner.state).reports.pop_front()
    }

    pub(crate) fn has_reports(&self) -> bool {
        !lock(&self.inner.state).reports.is_empty()
    }

    /// Drops all listeners and pending reports. Called when the engine ends. Pending connection
    /// requests are rejected.
    pub(crate) fn close(&self) {
        // Dropping a request takes the lock to report the rejection to the peer. Therefore the lock
        // is released before the requests are dropped.
        let state = std::mem::take(&mut *lock(&self.inner.state));
        drop(state);
    }

    pub(super) fn notices(&self) -> &Arc<Mailbox<Notice>> {
        &self.inner.notices
    }

    pub(super) fn shared_pools(&self) -> &SharedPools {
        &self.inner.shared_pools
    }

    /// Returns an artificial address for a connecting side. It has the IP address of `peer`, or the
    /// loopback address if the host of `peer` is a name.
    pub(super) fn new_address(peer: SocketAddr) -> SocketAddr {
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let ip = if Shown(peer).is_name() {
            Ipv6Addr::LOCALHOST.into()
        } else {
            peer.ip()
        };
        (ip, port.wrapping_add(1)).into()
    }

    pub(super) fn listen(&self, address: SocketAddr, key: u64) {
        lock(&self.inner.state).listeners.insert(address, key);
    }

    pub(super) fn end_listening(&self, address: SocketAddr) {
        lock(&self.inner.state).listeners.remove(&address);
    }

    /// Sends a request to the listener on the address `peer`. Returns `false` if no listener serves
    /// this address.
    pub(super) fn ask(
        &self,
        wire: &Arc<Wire>,
        (own, peer): (SocketAddr, SocketAddr),
        private_data: &[u8],
    ) -> bool {
        let mut state = lock(&self.inner.state);
        let mut listeners = state.listeners.iter();
        let Some((_, &listener)) = listeners.find(|(address, _)| serves(**address, peer)) else {
            return false;
        };
        state.reports.push_back(Report::Request(ConnectRequest {
            listener,
            peer: own,
            local: peer,
            private_data: private_data.to_vec(),
            wire: Some(Arc::clone(wire)),
            manager: self.clone(),
        }));
        true
    }

    pub(super) fn report(&self, key: u64, what: EventKind) {
        let event = Event { key, what };
        lock(&self.inner.state)
            .reports
            .push_back(Report::Event(event));
        // This notice makes the engine check for reports.
        let kind = NoticeKind::Poll;
        self.inner.notices.send(Notice { key, kind });
    }

    pub(super) fn disconnected(&self, key: u64) {
        self.report(key, EventKind::Disconnected);
    }

    /// Notifies the peer in `left`, if there is one, that this side has left the connection.
    pub(super) fn left(&self, left: Left) {
        match left {
            Left::Unanswered(peer) => {
                self.report(peer, EventKind::Failed(CloseReason::PeerDisconnected));
            }
            Left::Open(peer) => self.disconnected(peer),
            Left::Nobody => {}
        }
    }

    /// Drops all pending events of the connection with this key.
    pub(super) fn forget(&self, key: u64) {
        let mut state = lock(&self.inner.state);
        state
            .reports
            .retain(|report| !matches!(report, Report::Event(event) if event.key == key));
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

    /// Returns the maximum number of concurrent READs that the peer offers for each direction.
    pub(crate) fn reads(&self) -> ReadDepth {
        DEPTH
    }

    /// Rejects the request.
    pub(crate) fn reject(mut self, private_data: &[u8]) {
        if let Some(wire) = self.wire.take() {
            reject(&wire, &self.manager, private_data);
        }
    }

    /// Takes the connection out of the request.
    pub(super) fn take(&mut self) -> Option<Arc<Wire>> {
        self.wire.take()
    }
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.manager.left(wire.leave(Side::Passive));
        }
    }
}

/// Rejects a connection on the passive side, and reports the rejection to the peer. Reports nothing
/// if the peer no longer waits for the connection.
pub(super) fn reject(wire: &Wire, manager: &ConnectionManager, private_data: &[u8]) {
    let Left::Unanswered(peer) = wire.leave(Side::Passive) else {
        return;
    };
    let private_data = private_data.to_vec();
    let what = if private_data.is_empty() {
        EventKind::Failed(CloseReason::NotRdmsg)
    } else {
        EventKind::Rejected { private_data }
    };
    manager.report(peer, what);
}
