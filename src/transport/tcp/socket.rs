//! A connected stream socket that blocks only on request.
//!
//! The kernel reads and writes the bytes through raw pointers, as a device would. Rust references
//! to the bytes would be unsound, because the application or the peer may change the bytes at any
//! time.
#![allow(unsafe_code)]

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{
            AddressFamily, GetSockOpt, SetSockOpt, SockFlag, SockType, SockaddrLike,
            SockaddrStorage, bind, getsockname, getsockopt, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike},
    },
};

use super::completion_queue::CompletionEvents;
use crate::{
    config::Config,
    os::{Unshared, failed, millis},
    status::OsError,
    transport::no_transport::NoTransport,
};

/// A stream socket that blocks only on request: see the top of this file.
#[derive(Debug)]
pub(super) struct Socket {
    fd: Unshared<OwnedFd>,
    /// Whether receive calls may wait. Changed under the receiver's lock.
    may_wait: AtomicBool,
    is_shut_down: AtomicBool,
    /// The number of received bytes. Only the thread that holds the receiver's lock writes it.
    received: AtomicU64,
    /// The number of bytes written to the socket. Only the thread that holds the send lock writes
    /// it.
    sent: AtomicU64,
}

/// A range of memory that the kernel copies from or to.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Span {
    pub(in crate::transport) start: *mut u8,
    pub(in crate::transport) len: usize,
}

/// The result of a call that sends or receives bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The call moved this number of bytes.
    Some(usize),
    /// No bytes were moved, because the send buffer is full or no bytes have arrived.
    Blocked,
    /// The stream has ended or failed.
    Ended,
}

/// Whether a receive call waits if no bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// The call waits until bytes arrive or the stream ends, for at most [`TIME_LIMIT`].
    ForSome,
}

/// The time limit of a receive call that waits. The kernel's timer can fire late, by up to one
/// eighth of this time.
const TIME_LIMIT: Duration = Duration::from_secs(4);
/// The maximum duration of a receive call that waits, including the delay of the kernel's timer.
pub(crate) const WAITS_FOR: Duration = Duration::from_secs(5);

/// The maximum number of memory ranges in one call.
const MAX_SPANS: usize = 4;

impl Socket {
    /// Wraps a nonblocking socket that will connect to the peer.
    pub(super) fn of_connect(fd: Unshared<OwnedFd>) -> Self {
        Self::new(fd, false)
    }

    /// Wraps a blocking socket that has inherited the time limit for receive calls from its
    /// listener.
    pub(super) fn of_accept(fd: Unshared<OwnedFd>) -> Self {
        Self::new(fd, true)
    }

    fn new(fd: Unshared<OwnedFd>, may_wait: bool) -> Self {
        Self {
            fd,
            may_wait: AtomicBool::new(may_wait),
            is_shut_down: AtomicBool::new(false),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// Returns the number of bytes that have arrived at the socket, including bytes that are still
    /// in its receive buffer. The result may be too low if another thread receives during the call.
    pub(super) fn arrived(&self) -> u64 {
        let received = self.received.load(Ordering::Relaxed);
        received + self.queued(libc::FIONREAD)
    }

    /// Returns the number of sent bytes that the peer's kernel has acknowledged. The result may be
    /// too low if another thread sends during the call.
    pub(super) fn acknowledged(&self) -> u64 {
        let sent = self.sent.load(Ordering::Relaxed);
        sent.saturating_sub(self.queued(libc::TIOCOUTQ))
    }

    /// Returns a time and the number of retransmissions so far. The time is the remaining delay
    /// before the kernel retransmits unacknowledged bytes, plus one round trip for the
    /// acknowledgement. The time is `None` if all bytes are acknowledged or the system call fails.
    pub(super) fn repetitions(&self) -> (Option<Duration>, u64) {
        // SAFETY: the C structure consists of integers, for which zero is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut size = size_of_val(&info) as libc::socklen_t;
        // SAFETY: the structure and its size live on this stack during the call, and the size
        // bounds the write.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut size,
            )
        };
        if result != 0 {
            return (None, 0);
        }
        let repeated = info.tcpi_total_retrans.into();
        if info.tcpi_unacked == 0 {
            return (None, repeated);
        }
        // The kernel doubles `tcpi_rto` with each retransmission. The kernel's timer can fire late,
        // by up to one eighth of `tcpi_rto`.
        let pause = Duration::from_micros(info.tcpi_rto.into());
        let pause = pause + pause / 8;
        let waited = Duration::from_millis(info.tcpi_last_data_sent.into());
        let answer = Duration::from_micros(info.tcpi_rtt.into());
        (Some(pause.saturating_sub(waited) + answer), repeated)
    }

    /// Returns the number of bytes in the receive queue (`FIONREAD`) or the send queue (`TIOCOUTQ`)
    /// of the socket. Returns 0 if the call fails.
    fn queued(&self, queue: libc::Ioctl) -> u64 {
        let mut count: libc::c_int = 0;
        // SAFETY: the result is an int, which lives on this stack during the call.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), queue, &raw mut count) };
        if result == 0 {
            u64::try_from(count).unwrap_or(0)
        } else {
            0
        }
    }

    /// Prepares the socket for receive calls that wait. The caller holds the receiver's lock.
    pub(super) fn allow_waiting(&self) -> Result<(), nix::Error> {
        if !self.may_wait.load(Ordering::Relaxed) {
            limit_waits(&self.fd)?;
            let flags = OFlag::from_bits_retain(fcntl(&self.fd, FcntlArg::F_GETFL)?);
            fcntl(&self.fd, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
            self.may_wait.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sets the number of bytes at which the socket becomes readable and a wait ends (SO_RCVLOWAT).
    /// The end of the stream always makes the socket readable and ends the wait.
    pub(super) fn await_bytes(&self, count: usize) {
        let count = libc::c_int::try_from(count).unwrap_or(1);
        // SAFETY: the option is an int, which lives on this stack during the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const count).cast(),
                size_of_val(&count) as libc::socklen_t,
            )
        };
        debug_assert_eq!(result, 0, "setting SO_RCVLOWAT must not fail");
    }

    /// Returns whether bytes have arrived or the stream has ended.
    pub(super) fn is_readable(&self) -> bool {
        self.is_readable_within(PollTimeout::ZERO)
    }

    /// Waits until the socket is readable, for at most `time`.
    pub(super) fn await_readable(&self, time: Duration) {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        self.is_readable_within(timeout);
    }

    fn is_readable_within(&self, timeout: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, timeout).is_ok_and(|count| count > 0)
    }

    /// Sends the bytes that fit into the socket's send buffer. With `more`, the kernel may delay an
    /// incomplete segment until the next call (MSG_MORE).
    ///
    /// # Safety
    ///
    /// The spans are mapped memory, which may change during the call.
    pub(super) unsafe fn send(&self, spans: &[Span], more: bool) -> Moved {
        let fd = self.fd.as_raw_fd();
        let mut flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        if more {
            flags |= libc::MSG_MORE;
        }
        let moved = if let [span] = spans {
            // A single span is sent with send(2), because for a short frame the kernel spends more
            // time on the `msghdr` of sendmsg(2) than on the bytes.
            // SAFETY: the caller guarantees the conditions on the memory.
            unsafe { libc::send(fd, span.start.cast(), span.len, flags) }
        } else {
            let (mut iov, count) = iovecs(spans);
            let message = message(&mut iov[..count]);
            // SAFETY: the `msghdr` and its `iovec`s live on this stack during the call. The caller
            // guarantees the conditions on the memory.
            unsafe { libc::sendmsg(fd, &raw const message, flags) }
        };
        let moved = moved_bytes(moved);
        if let Moved::Some(count) = moved {
            count_bytes(&self.sent, count);
        }
        moved
    }

    /// Sends the bytes that fit into the socket's send buffer, from any number of spans.
    ///
    /// # Safety
    ///
    /// The conditions of [`send`](Self::send) hold.
    pub(super) unsafe fn send_many(&self, spans: &[Span]) -> Moved {
        let part = |span: &Span| libc::iovec {
            iov_base: span.start.cast(),
            iov_len: span.len,
        };
        let mut parts: Vec<_> = spans.iter().map(part).collect();
        let message = message(&mut parts);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the `msghdr` and its `iovec`s live during the call. The caller guarantees the
        // conditions on the memory.
        let moved = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        let moved = moved_bytes(moved);
        if let Moved::Some(count) = moved {
            count_bytes(&self.sent, count);
        }
        moved
    }

    /// Receives bytes, at most the total length of the spans.
    ///
    /// # Safety
    ///
    /// The spans are mapped memory, and no references to it exist.
    pub(super) unsafe fn receive(&self, spans: &[Span], wait: Wait) -> Moved {
        let fd = self.fd.as_raw_fd();
        let flags = match wait {
            Wait::No => libc::MSG_DONTWAIT,
            Wait::ForSome => 0,
        };
        let moved = if let [span] = spans {
            // SAFETY: the caller guarantees the conditions on the memory.
            unsafe { libc::recv(fd, span.start.cast(), span.len, flags) }
        } else {
            let (mut iov, count) = iovecs(spans);
            let mut message = message(&mut iov[..count]);
            // SAFETY: the `msghdr` and its `iovec`s live on this stack during the call. The caller
            // guarantees the conditions on the memory.
            unsafe { libc::recvmsg(fd, &raw mut message, flags) }
        };
        match moved_bytes(moved) {
            Moved::Some(0) => Moved::Ended,
            Moved::Some(count) => {
                count_bytes(&self.received, count);
                Moved::Some(count)
            }
            moved => moved,
        }
    }

    /// Shuts down both directions. If the peer continues to send, the kernel answers with RST, and
    /// bytes that were written before this call may be lost. If the peer sends nothing more, these
    /// bytes still reach the peer.
    pub(super) fn shut_down(&self) {
        if self.is_shut_down.swap(true, Ordering::Relaxed) {
            return;
        }
        // The call fails if the peer has already ended the connection.
        // SAFETY: the descriptor is open.
        let _ = unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Adds to a counter that at most one thread writes at a time.
pub(super) fn count_bytes(counter: &AtomicU64, count: usize) {
    let counted = counter.load(Ordering::Relaxed);
    counter.store(counted.wrapping_add(count as u64), Ordering::Relaxed);
}

fn iovecs(spans: &[Span]) -> ([libc::iovec; MAX_SPANS], usize) {
    assert!(spans.len() <= MAX_SPANS, "a call must not exceed MAX_SPANS");
    let mut iov = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; MAX_SPANS];
    for (to, span) in iov.iter_mut().zip(spans) {
        to.iov_base = span.start.cast();
        to.iov_len = span.len;
    }
    (iov, spans.len())
}

fn message(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: the C structure consists of integers and raw pointers, for which zero is a valid
    // value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len() as _;
    message
}

fn moved_bytes(result: isize) -> Moved {
    if let Ok(count) = usize::try_from(result) {
        return Moved::Some(count);
    }
    match io::Error::last_os_error().kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Moved::Blocked,
        _ => Moved::Ended,
    }
}

/// Creates a nonblocking stream socket for the address family of `address`.
pub(super) fn stream_socket(address: SocketAddr) -> Result<OwnedFd, OsError> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(family, SockType::Stream, flags, None).map_err(failed("socket"))
}

/// Binds a socket before it connects. If the port is 0, the kernel chooses the port during
/// connect(2), so that connections to different peers can share a port.
pub(super) fn bind_source(socket: &impl AsFd, source: SocketAddr) -> Result<(), OsError> {
    let shares_port = if source.port() == 0 {
        setsockopt(socket, sockopt::IpBindAddressNoPort, &true)
    } else {
        setsockopt(socket, sockopt::ReuseAddr, &true)
    };
    shares_port.map_err(failed("setsockopt"))?;
    let fd = socket.as_fd().as_raw_fd();
    bind(fd, &SockaddrStorage::from(source)).map_err(failed("bind"))
}

/// Sets the traffic class: the byte in the IP header that contains the DSCP. The kernel reserves
/// the lower two bits for ECN.
pub(super) fn set_traffic_class(socket: &impl AsFd, config: &Config) -> Result<(), NoTransport> {
    let Some(class) = config.traffic_class else {
        return Ok(());
    };
    let fd = socket.as_fd().as_raw_fd();
    let is_ipv6 = getsockname::<SockaddrStorage>(fd)
        .is_ok_and(|address| address.family() == Some(AddressFamily::Inet6));
    let mut set = setsockopt(socket, sockopt::Ipv4Tos, &class.into());
    // An IPv6 socket has a separate traffic class for each IP version.
    if is_ipv6 {
        set = set.and_then(|()| setsockopt(socket, sockopt::Ipv6TClass, &class.into()));
    }
    set.map_err(|errno| NoTransport::without_traffic_class(class, failed("setsockopt")(errno)))
}

/// Options of a socket. An accepted socket inherits them from its listener's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// The maximum time in milliseconds for which data may stay unacknowledged.
    user_timeout: u32,
}

impl Options {
    /// Returns the options for a connection with this configuration. If the peer acknowledges
    /// nothing, the connection ends after about the same time as on an RDMA device.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            user_timeout: give_up_after(config),
        }
    }

    /// Sets these options on a socket, and makes the socket send without delay (TCP_NODELAY). In
    /// the log, `owner` is the name of the connection or of the listener.
    pub(super) fn set(self, socket: &impl AsFd, owner: fmt::Arguments<'_>) {
        let nodelay = setsockopt(socket, sockopt::TcpNoDelay, &true);
        let user_timeout = setsockopt(socket, sockopt::TcpUserTimeout, &self.user_timeout);
        for (name, result) in [("TCP_NODELAY", nodelay), ("TCP_USER_TIMEOUT", user_timeout)] {
            if let Err(errno) = result {
                debug!(
                    Tcp,
                    "{owner}: cannot set {name}, so its TCP socket keeps the default: {errno}"
                );
            }
        }
    }
}

/// Sets the time limit of receive calls that wait. Accepted sockets inherit this limit from their
/// listener.
pub(super) fn limit_waits(socket: &impl AsFd) -> Result<(), nix::Error> {
    let time_limit = TimeVal::seconds(TIME_LIMIT.as_secs() as i64);
    setsockopt(socket, sockopt::ReceiveTimeout, &time_limit)
}

/// Returns the maximum time in milliseconds for which data may stay unacknowledged: the ACK timeout
/// times the number of transmissions that a device would make, but at least 1000 ms.
fn give_up_after(config: &Config) -> u32 {
    u32::try_from(millis(config.rdma.all_tries()))
        .unwrap_or(u32::MAX)
        .max(1000)
}

/// Returns the local address of a socket.
pub(super) fn local_addr(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    let addr = getsockname::<SockaddrStorage>(socket.as_raw_fd()).ok()?;
    let addr = match (addr.as_sockaddr_in(), addr.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::V4((*v4).into()),
        (None, Some(v6)) => SocketAddr::V6((*v6).into()),
        (None, None) => return None,
    };
    Some(canonical(addr))
}

/// Converts an IPv4-mapped IPv6 address to IPv4. Returns other addresses unchanged: a link-local
/// address keeps its network interface.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The hop limit of the packets of one connection. IPv4 calls it the time to live (TTL).
#[derive(Debug)]
pub(crate) struct HopLimit<'a>(BorrowedFd<'a>);

impl<'a> HopLimit<'a> {
    pub(crate) fn of(events: &'a CompletionEvents) -> Self {
        Self(events.as_fd())
    }

    /// Returns the hop limit. An IPv6 socket has a separate limit for each IP version. If the
    /// peer's address is an IPv4-mapped IPv6 address, the packets are IPv4.
    pub(crate) fn get(&self, over_ipv6: bool) -> Result<u32, OsError> {
        let hops = if over_ipv6 {
            self.option(sockopt::Ipv6Ttl)?
        } else {
            self.option(sockopt::Ipv4Ttl)?
        };
        Ok(hops.cast_unsigned())
    }

    /// Sets the hop limit, from 1 to 255.
    pub(crate) fn set(&self, hops: u32, over_ipv6: bool) -> Result<(), OsError> {
        // A number that exceeds `i32::MAX` is refused: as an `i32` it could be -1, which makes the
        // kernel set the default.
        let hops = i32::try_from(hops).map_err(|_| OsError::new("setsockopt", libc::EINVAL))?;
        // The kernel refuses 0 only for IPv4. So the IPv4 limit is set first, even on a connection
        // over IPv6.
        self.set_option(sockopt::Ipv4Ttl, hops)?;
        if over_ipv6 {
            self.set_option(sockopt::Ipv6Ttl, hops)?;
        }
        Ok(())
    }

    fn option(&self, option: impl GetSockOpt<Val = i32>) -> Result<i32, OsError> {
        getsockopt(&self.0, option).map_err(failed("getsockopt"))
    }

    fn set_option(&self, option: impl SetSockOpt<Val = i32>, hops: i32) -> Result<(), OsError> {
        let set = setsockopt(&self.0, option, &hops);
        set.map_err(failed("setsockopt"))
    }
}
