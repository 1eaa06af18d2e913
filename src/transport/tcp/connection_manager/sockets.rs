//! What the connection manager does when a socket that it watches is ready.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    time::Instant,
};

use nix::sys::{
    epoll::EpollFlags,
    socket::{getsockopt, sockopt},
};

use super::{ConnectRequest, ConnectionManager, Report, State, UNNAMED, Watched};
use crate::{
    proto::ReadDepth,
    status::{OsError, RejectReason},
    transport::tcp::{
        event::{Event, What},
        setup::{Arrived, Arriving, tell},
        setup_message::Kind,
        watch::Watch,
    },
};

/// How many peers that connected may owe their requests. The one that has owed it for longest gives
/// way to another.
const MOST_SILENT: usize = 256;
/// How many connections are taken from a listener at a time.
const BATCH: usize = 32;

impl ConnectionManager {
    pub(super) fn ready(&self, state: &mut State, token: u64, flags: EpollFlags) {
        match state.sockets.get(&token) {
            None => {}
            Some(Watched::Listener(_)) => self.take_connections(state, token),
            Some(Watched::Silent { .. }) => self.hear_request(state, token),
            Some(Watched::Connecting { .. }) => self.ask(state, token),
            Some(Watched::Asking { .. }) => self.hear_answer(state, token),
            Some(Watched::Open(stream)) if !Watch::is_end(flags) => {
                if let Some(stream) = stream.upgrade() {
                    stream.has_room();
                }
            }
            Some(Watched::Requested | Watched::Open(_)) => {
                // It says so once.
                state.sockets.remove(&token);
                state.report(token, What::Disconnected);
            }
        }
    }

    fn take_connections(&self, state: &mut State, token: u64) {
        for _ in 0..BATCH {
            let Some(Watched::Listener(listener)) = state.sockets.get(&token) else {
                return;
            };
            match listener.accept() {
                Ok((socket, peer)) => {
                    if let Err(error) = self.await_request(state, token, socket, peer) {
                        error!("listener {token}: {error}");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_shortage(&error) => {
                    error!("listener {token}: accept4: {error}");
                    // What waits would make the socket readable again and again.
                    self.inner.change(listener, token, EpollFlags::empty());
                    state.paused.push(token);
                    break;
                }
                // The peer has gone again, or the network.
                Err(error) => debug!("listener {token}: accept4: {error}"),
            }
        }
        self.start_ticking(state);
    }

    /// Waits for the request of a peer that has connected.
    fn await_request(
        &self,
        state: &mut State,
        listener: u64,
        socket: TcpStream,
        peer: SocketAddr,
    ) -> Result<(), OsError> {
        socket
            .set_nonblocking(true)
            .map_err(|error| OsError::new("fcntl", error.raw_os_error().unwrap_or_default()))?;
        state.drawn += 1;
        let token = UNNAMED | state.drawn;
        self.inner.watch(&socket, token, EpollFlags::EPOLLIN)?;
        if state.silent.len() >= MOST_SILENT
            && let Some((oldest, _)) = state.silent.pop_first()
        {
            state.sockets.remove(&oldest);
        }
        state.silent.insert(token, Instant::now());
        let watched = Watched::Silent {
            listener,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            socket: socket.into(),
            arriving: Arriving::default(),
        };
        state.sockets.insert(token, watched);
        Ok(())
    }

    /// Reports the request of a peer that has connected, when it is whole.
    fn hear_request(&self, state: &mut State, token: u64) {
        let Some(Watched::Silent {
            listener,
            peer,
            socket,
            arriving,
        }) = state.sockets.get_mut(&token)
        else {
            return;
        };
        let (listener, peer) = (*listener, *peer);
        let arrived = arriving.receive(socket.as_fd());
        if let Arrived::NotYet = arrived {
            return;
        }
        state.silent.remove(&token);
        let watched = state.sockets.remove(&token);
        let Some(Watched::Silent { socket, .. }) = watched else {
            return;
        };
        let Arrived::Message {
            kind: Kind::Request,
            reads,
            private_data,
        } = arrived
        else {
            debug!("listener {listener}: a peer that is none: {arrived:?}");
            return;
        };
        self.inner.change(&socket, token, Watch::ENDS);
        state.sockets.insert(token, Watched::Requested);
        state.reports.push_back(Report::Request(ConnectRequest {
            token,
            listener,
            peer,
            private_data,
            reads: both_ways(reads),
            socket: Some(socket),
            manager: self.clone(),
        }));
    }

    /// Sends this side's request: its socket has connected, or failed to.
    fn ask(&self, state: &mut State, token: u64) {
        let Some(Watched::Connecting {
            stream,
            private_data,
        }) = state.sockets.remove(&token)
        else {
            return;
        };
        let connected = match getsockopt(&stream.fd(), sockopt::SocketError) {
            Ok(0) => tell(stream.fd(), Kind::Request, &private_data),
            Ok(errno) => Err(nix::Error::from_raw(errno)),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = connected {
            state.report(token, What::failure(errno));
            return;
        }
        self.inner.change(stream.fd(), token, EpollFlags::EPOLLIN);
        let watched = Watched::Asking {
            stream,
            arriving: Arriving::default(),
        };
        state.sockets.insert(token, watched);
    }

    /// Reports the answer to this side's request, when it is whole.
    fn hear_answer(&self, state: &mut State, token: u64) {
        let Some(Watched::Asking { stream, arriving }) = state.sockets.get_mut(&token) else {
            return;
        };
        let what = match arriving.receive(stream.fd()) {
            Arrived::NotYet => return,
            Arrived::Message {
                kind: Kind::Accept,
                reads,
                private_data,
            } => {
                stream.open(Watch::new(&self.inner.epoll, token), reads);
                let open = Watched::Open(Arc::downgrade(stream));
                state.sockets.insert(token, open);
                let reads = both_ways(reads);
                let what = What::Established {
                    private_data,
                    reads,
                };
                state.report(token, what);
                return;
            }
            Arrived::Message {
                kind: Kind::Reject,
                private_data,
                ..
            } => What::Rejected {
                reason: RejectReason::CONSUMER_DEFINED,
                private_data,
            },
            Arrived::Ended(Some(errno)) => What::failure(errno),
            // Something that is no rdmsg.
            Arrived::Message { .. } | Arrived::Foreign | Arrived::Ended(None) => What::Rejected {
                reason: RejectReason::CONSUMER_DEFINED,
                private_data: Vec::new(),
            },
        };
        self.inner.change(stream.fd(), token, EpollFlags::empty());
        state.sockets.remove(&token);
        state.report(token, what);
    }
}

impl State {
    fn report(&mut self, key: u64, what: What) {
        self.reports.push_back(Report::Event(Event { key, what }));
    }
}

/// Whether the system lacks something that it may have later.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

fn both_ways(reads: u8) -> ReadDepth {
    ReadDepth {
        outgoing: reads,
        incoming: reads,
    }
}
