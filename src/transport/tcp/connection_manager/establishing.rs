//! The steps that the connection manager takes when a watched socket becomes ready.

use std::{net::SocketAddr, os::fd::AsFd, sync::Arc, time::Instant};

use nix::sys::epoll::EpollFlags;

use super::{Accepted, ConnectRequest, ConnectionManager, Report, State, TICK, UNNAMED, Watched};
use crate::{
    os::{Unshared, failed, lock},
    poll::eventfd,
    proto::{CloseReason, ReadDepth},
    transport::tcp::{
        event::{Event, EventKind},
        listen_id::KERNEL_BACKLOG,
        setup::{Arrived, Arriving, tell},
        setup_message::Kind,
        socket::{Socket, canonical},
        stream::Stream,
    },
};

/// The maximum number of connections that one call accepts from a listener.
const BATCH: usize = 32;

impl ConnectionManager {
    pub(super) fn ready(&self, state: &mut State, token: u64) {
        match state.sockets.get(&token) {
            None => {}
            Some(Watched::Listener { .. }) => self.take_connections(state, token),
            Some(Watched::Silent { .. }) => self.read_request(state, token),
            Some(Watched::Connecting { .. }) => self.connected(state, token),
            Some(Watched::Asking { .. }) => self.read_answer(state, token),
            Some(Watched::Open(stream)) => {
                if let Some(stream) = stream.upgrade() {
                    stream.has_room();
                }
            }
            Some(Watched::Requested) => state.report(token, EventKind::Disconnected),
        }
    }

    /// Accepts all connections in the queue of a listener that is about to end, so that the engine
    /// can answer their requests. Without this step, the kernel would reset these connections when
    /// the listener's socket is closed.
    pub(in crate::transport::tcp) fn take_queue(&self, listener: u64) {
        let state = &mut *lock(&self.inner.state);
        for _ in 0..=KERNEL_BACKLOG as usize / BATCH {
            let before = state.drawn;
            self.take_connections(state, listener);
            if state.drawn == before {
                break;
            }
        }
    }

    fn take_connections(&self, state: &mut State, token: u64) {
        for _ in 0..BATCH {
            let Some(Watched::Listener { socket, options }) = state.sockets.get(&token) else {
                return;
            };
            let (options, spare) = (*options, state.spare.take());
            let accepted =
                spare
                    .map_or_else(eventfd, Ok)
                    .and_then(|reserve| match socket.accept() {
                        Ok((socket, peer)) => {
                            let accepted = Accepted {
                                socket: Socket::of_accept(Unshared::new(socket.into())),
                                options,
                                reserve,
                            };
                            Ok((accepted, canonical(peer)))
                        }
                        Err(error) => {
                            state.spare = Some(reserve);
                            Err(failed("accept4")(error))
                        }
                    });
            match accepted {
                Ok((accepted, peer)) => self.take_peer(state, token, peer, accepted),
                Err(error) if error.errno == libc::EWOULDBLOCK => break,
                Err(error) if is_of_one_connection(error.errno) => {
                    debug!(
                        Listener,
                        "listener {token}: a TCP connection failed before it was accepted: \
                         {error}"
                    );
                }
                Err(error) => {
                    error_sparsely!(
                        Listener,
                        "listener {token}: cannot accept over TCP; retries in at most {TICK:?}: \
                         {error}"
                    );
                    // The connections stay in the kernel's queue, so the listener's socket stays
                    // readable. To avoid endless wakeups, the listener is not watched until the
                    // timer resumes it.
                    self.inner.change(socket, token, EpollFlags::empty());
                    state.paused.push(token);
                    break;
                }
            }
        }
        self.start_timer(state);
    }

    /// Reports the request of a peer that has connected, if the request has already arrived.
    /// Otherwise begins to wait for the request.
    fn take_peer(&self, state: &mut State, listener: u64, peer: SocketAddr, accepted: Accepted) {
        state.drawn += 1;
        let token = UNNAMED | state.drawn;
        let mut arriving = Arriving::default();
        let arrived = arriving.receive(accepted.socket.as_fd());
        if !matches!(arrived, Arrived::NotYet) {
            return self.report_request(state, listener, peer, accepted, arrived);
        }
        if let Some(evicted) = state.silent.add(token, peer.ip(), Instant::now()) {
            state.sockets.remove(&evicted);
        }
        if let Err(error) = self
            .inner
            .watch(&accepted.socket, token, EpollFlags::EPOLLIN)
        {
            error_sparsely!(
                Listener,
                "listener {listener}: cannot watch a connection from {peer}; retries in at most \
                 {TICK:?}: {error}"
            );
            state.paused.push(token);
        }
        let watched = Watched::Silent {
            listener,
            peer,
            accepted,
            arriving,
        };
        state.sockets.insert(token, watched);
    }

    /// Reports the request of a silent peer if the request has arrived completely.
    fn read_request(&self, state: &mut State, token: u64) {
        let Some(Watched::Silent {
            accepted, arriving, ..
        }) = state.sockets.get_mut(&token)
        else {
            return;
        };
        let arrived = arriving.receive(accepted.socket.as_fd());
        if let Arrived::NotYet = arrived {
            return;
        }
        self.unwatch(&accepted.socket);
        state.silent.remove(token);
        if let Some(Watched::Silent {
            listener,
            peer,
            accepted,
            ..
        }) = state.sockets.remove(&token)
        {
            self.report_request(state, listener, peer, accepted, arrived);
        }
    }

    /// Reports the request that has arrived. If anything else has arrived, or the connection has
    /// ended, drops the connection.
    fn report_request(
        &self,
        state: &mut State,
        listener: u64,
        peer: SocketAddr,
        accepted: Accepted,
        arrived: Arrived,
    ) {
        let Arrived::Message {
            kind: Kind::Request,
            reads,
            private_data,
        } = arrived
        else {
            debug!(
                Listener,
                "listener {listener}: dropped the TCP connection from {peer}, which sent no valid \
                 connect request: {arrived:?}"
            );
            return;
        };
        state.reports.push_back(Report::Request(ConnectRequest {
            listener,
            peer,
            private_data,
            reads: both_ways(reads),
            accepted,
            manager: self.clone(),
        }));
    }

    /// Sends this side's request if the socket has connected. Reports a failure if the socket could
    /// not connect.
    fn connected(&self, state: &mut State, token: u64) {
        let Some(Watched::Connecting {
            stream,
            private_data,
        }) = state.sockets.get(&token)
        else {
            return;
        };
        match ask(stream, private_data) {
            Ok(()) => {
                self.inner.change(stream.fd(), token, EpollFlags::EPOLLIN);
                let asking = asking(stream);
                state.sockets.insert(token, asking);
            }
            Err(nix::Error::EAGAIN) => {}
            Err(errno) => {
                self.unwatch(stream.fd());
                state.sockets.remove(&token);
                state.report(token, EventKind::failure("connect", errno));
            }
        }
    }

    /// Reports the answer to this side's request if the answer has arrived completely.
    fn read_answer(&self, state: &mut State, token: u64) {
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
                let stream = Arc::clone(stream);
                self.open(state, token, &stream, reads);
                let reads = both_ways(reads);
                let what = EventKind::Established {
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
            } if !private_data.is_empty() => EventKind::Rejected { private_data },
            Arrived::Ended(Some(errno)) => EventKind::failure("recv", errno),
            Arrived::Ended(None) => EventKind::Failed(CloseReason::PeerDisconnected),
            // A peer with this library would accept the request, or reject it with a reason. So
            // this peer does not use this library.
            Arrived::Message { .. } | Arrived::Foreign => EventKind::Failed(CloseReason::NotRdmsg),
        };
        self.unwatch(stream.fd());
        state.sockets.remove(&token);
        state.report(token, what);
    }
}

impl State {
    pub(super) fn report(&mut self, key: u64, what: EventKind) {
        self.reports.push_back(Report::Event(Event { key, what }));
    }
}

/// Sends this side's request. Fails with EAGAIN while the socket is connecting. If connecting has
/// failed, fails with the error of connect(2).
pub(super) fn ask(stream: &Stream, private_data: &[u8]) -> Result<(), nix::Error> {
    tell(stream.fd(), Kind::Request, private_data)
}

/// Returns the state of a stream on which this side waits for the answer to its request.
pub(super) fn asking(stream: &Arc<Stream>) -> Watched {
    Watched::Asking {
        stream: Arc::clone(stream),
        arriving: Arriving::default(),
    }
}

/// Returns true if an error of accept4(2) does not concern later connections. Either a signal has
/// interrupted the call, or one connection in the queue has failed because of the peer, the network
/// or a firewall. The kernel has removed the failed connection from the queue. After any other
/// error, the same call may fail again.
fn is_of_one_connection(errno: i32) -> bool {
    matches!(
        errno,
        libc::EINTR
            | libc::ECONNABORTED
            | libc::EPERM
            | libc::ENETDOWN
            | libc::EPROTO
            | libc::ENOPROTOOPT
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ETIMEDOUT
    )
}

fn both_ways(reads: u8) -> ReadDepth {
    ReadDepth {
        outgoing: reads,
        incoming: reads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::socket_errors::ACCEPT4;

    /// Without a pause, a persistent error would keep the engine's thread busy.
    #[test]
    fn listener_pauses_after_errors_that_stay() {
        let stays = |errno: &&i32| **errno != libc::EWOULDBLOCK && !is_of_one_connection(**errno);
        let stay: Vec<i32> = ACCEPT4.iter().filter(stays).copied().collect();
        let expected = [
            libc::EBADF,
            libc::EFAULT,
            libc::EINVAL,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::ENOTSOCK,
            libc::EOPNOTSUPP,
            libc::ENOSR,
            libc::ESOCKTNOSUPPORT,
            libc::EPROTONOSUPPORT,
        ];
        assert_eq!(stay, expected);
    }
}
