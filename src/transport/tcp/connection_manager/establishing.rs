//! The steps that the connection manager takes when a watched socket becomes ready.

use std::{
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    time::Instant,
};

use nix::sys::{
    epoll::EpollFlags,
    eventfd::EventFd,
    socket::{getsockopt, sockopt},
};

use super::{ConnectRequest, ConnectionManager, Report, State, TICK, UNNAMED, Watched};
use crate::{
    os::{Unshared, failed, lock},
    poll::eventfd,
    proto::{CloseReason, ReadDepth},
    status::OsError,
    transport::tcp::{
        connection_manager::Watch,
        event::{Event, EventKind},
        listen_id::KERNEL_BACKLOG,
        setup::{Arrived, Arriving, tell},
        setup_message::Kind,
        socket::canonical,
    },
};

/// The maximum number of connections that are accepted from a listener at a time.
const BATCH: usize = 32;

impl ConnectionManager {
    pub(super) fn ready(&self, state: &mut State, token: u64, flags: EpollFlags) {
        match state.sockets.get(&token) {
            None => {}
            Some(Watched::Listener(_)) => self.take_connections(state, token),
            Some(Watched::Silent { .. }) => self.read_request(state, token),
            Some(Watched::Connecting { .. }) => self.ask(state, token),
            Some(Watched::Asking { .. }) => self.read_answer(state, token),
            Some(Watched::Open(stream)) if !Watch::is_end(flags) => {
                if let Some(stream) = stream.upgrade() {
                    stream.has_room();
                }
            }
            Some(Watched::Requested | Watched::Open(_)) => {
                // The entry is removed, so that the end is reported once.
                state.sockets.remove(&token);
                state.report(token, EventKind::Disconnected);
            }
        }
    }

    /// Accepts the connections in the queue of a listener that ends, because the kernel would reset
    /// them when the listener's socket is closed. The engine answers their requests.
    pub(in crate::transport::tcp) fn take_queue(&self, listener: u64) {
        let mut state = lock(&self.inner.state);
        for _ in 0..=KERNEL_BACKLOG as usize / BATCH {
            let before = state.drawn;
            self.take_connections(&mut state, listener);
            if state.drawn == before {
                break;
            }
            // Reads the requests that have already arrived, so that their peers do not count as
            // silent.
            for token in before + 1..=state.drawn {
                self.read_request(&mut state, UNNAMED | token);
            }
        }
        drop(state);
        // The write fails only if the counter of the eventfd is full. Then the eventfd is readable
        // anyway.
        let _ = self.inner.waker.write(1);
    }

    fn take_connections(&self, state: &mut State, token: u64) {
        for _ in 0..BATCH {
            let Some(Watched::Listener(listener)) = state.sockets.get(&token) else {
                return;
            };
            let accepted = eventfd().and_then(|reserve| {
                let (socket, peer) = listener.accept().map_err(failed("accept4"))?;
                Ok((socket, peer, reserve))
            });
            match accepted {
                Ok((socket, peer, reserve)) => {
                    if let Err(error) = self.await_request(state, token, socket, peer, reserve) {
                        error_sparsely!(
                            Listener,
                            "listener {token}: dropped a connection from {peer}: {error}"
                        );
                    }
                }
                Err(error) if error.errno == libc::EWOULDBLOCK => break,
                Err(error) if is_of_one_connection(error.errno) => {
                    debug!(
                        Listener,
                        "listener {token}: a TCP connection failed before the kernel handed it \
                         over: {error}"
                    );
                }
                Err(error) => {
                    error_sparsely!(
                        Listener,
                        "listener {token}: cannot accept over TCP; retries in at most {TICK:?}: \
                         {error}"
                    );
                    // The connections stay in the kernel's queue. The listener is not watched until
                    // the timer retries, because its socket stays readable.
                    self.inner.change(listener, token, EpollFlags::empty());
                    state.paused.push(token);
                    break;
                }
            }
        }
        self.start_timer(state);
    }

    /// Begins to wait for the request of a peer that has connected.
    fn await_request(
        &self,
        state: &mut State,
        listener: u64,
        socket: TcpStream,
        peer: SocketAddr,
        reserve: EventFd,
    ) -> Result<(), OsError> {
        socket.set_nonblocking(true).map_err(failed("fcntl"))?;
        state.drawn += 1;
        let token = UNNAMED | state.drawn;
        let is_watched = self.inner.watch(&socket, token, EpollFlags::EPOLLIN);
        let peer = canonical(peer);
        if let Some(evicted) = state.silent.add(token, peer.ip(), Instant::now()) {
            state.sockets.remove(&evicted);
        }
        let watched = Watched::Silent {
            listener,
            peer,
            socket: Unshared::new(socket.into()),
            reserve,
            arriving: Arriving::default(),
        };
        state.sockets.insert(token, watched);
        if is_watched.is_err() {
            state.paused.push(token);
        }
        is_watched
    }

    /// Reports the request of a connected peer if the request has arrived completely.
    fn read_request(&self, state: &mut State, token: u64) {
        let Some(Watched::Silent {
            listener,
            peer,
            socket,
            arriving,
            ..
        }) = state.sockets.get_mut(&token)
        else {
            return;
        };
        let (listener, peer) = (*listener, *peer);
        let arrived = arriving.receive(socket.as_fd());
        if let Arrived::NotYet = arrived {
            return;
        }
        state.silent.remove(token);
        let watched = state.sockets.remove(&token);
        let Some(Watched::Silent {
            socket, reserve, ..
        }) = watched
        else {
            return;
        };
        let Arrived::Message {
            kind: Kind::Request,
            reads,
            private_data,
        } = arrived
        else {
            debug!(
                Listener,
                "listener {listener}: dropped a connection, because the peer sent {arrived:?} \
                 instead of a connect request"
            );
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
            reserve: Some(reserve),
            manager: self.clone(),
        }));
    }

    /// Sends this side's request if its socket is connected, or reports that connecting failed.
    fn ask(&self, state: &mut State, token: u64) {
        let Some(Watched::Connecting {
            stream,
            private_data,
        }) = state.sockets.remove(&token)
        else {
            return;
        };
        let asked = match getsockopt(&stream.fd(), sockopt::SocketError) {
            Ok(0) => tell(stream.fd(), Kind::Request, &private_data)
                .map_err(|errno| EventKind::failure("send", errno)),
            Ok(errno) => Err(EventKind::failure("connect", nix::Error::from_raw(errno))),
            Err(errno) => Err(EventKind::failure("getsockopt", errno)),
        };
        if let Err(failure) = asked {
            state.report(token, failure);
            return;
        }
        self.inner.change(stream.fd(), token, EpollFlags::EPOLLIN);
        let watched = Watched::Asking {
            stream,
            arriving: Arriving::default(),
        };
        state.sockets.insert(token, watched);
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
                stream.open(Watch::new(&self.inner.epoll, token), reads);
                let open = Watched::Open(Arc::downgrade(stream));
                state.sockets.insert(token, open);
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
            // This library would accept the request, or reject it with a reason. The peer therefore
            // does not use this library.
            Arrived::Message { .. } | Arrived::Foreign => EventKind::Failed(CloseReason::NotRdmsg),
        };
        self.inner.change(stream.fd(), token, EpollFlags::empty());
        state.sockets.remove(&token);
        state.report(token, what);
    }
}

impl State {
    fn report(&mut self, key: u64, what: EventKind) {
        self.reports.push_back(Report::Event(Event { key, what }));
    }
}

/// Returns whether an error of accept4(2) applies to one connection only, which the kernel then
/// removes from its queue: the peer or the network has failed, or a firewall forbids the
/// connection. After any other error the same call may fail again.
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

    /// Without a pause, a repeated error would keep the engine's thread busy.
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
