//! Checks that each error of a socket call keeps the `ErrorKind` that std assigns to it, and that
//! its text does not mention RDMA.

use std::{io, net::SocketAddr};

use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, EALREADY, EBADF, ECONNABORTED,
    ECONNREFUSED, ECONNRESET, EFAULT, EHOSTDOWN, EHOSTUNREACH, EINPROGRESS, EINTR, EINVAL, EISCONN,
    ELOOP, EMFILE, ENAMETOOLONG, ENETDOWN, ENETUNREACH, ENFILE, ENOBUFS, ENOENT, ENOMEM, ENONET,
    ENOPROTOOPT, ENOSR, ENOTDIR, ENOTSOCK, EOPNOTSUPP, EPERM, EPROTO, EPROTONOSUPPORT, EPROTOTYPE,
    EROFS, ESOCKTNOSUPPORT, ETIMEDOUT,
};

use super::event::EventKind;
use crate::{error::Error, proto::CloseReason, status::OsError, transport_choice::Transport};

/// The errors that the man page of each call lists. [`CONNECT`] also contains the errors that ip(7)
/// and tcp(7) list.
const SOCKET: &[i32] = &[
    EACCES,
    EAFNOSUPPORT,
    EINVAL,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    EPROTONOSUPPORT,
];
const BIND: &[i32] = &[
    EACCES,
    EADDRINUSE,
    EBADF,
    EINVAL,
    ENOTSOCK,
    EADDRNOTAVAIL,
    EFAULT,
    ELOOP,
    ENAMETOOLONG,
    ENOENT,
    ENOMEM,
    ENOTDIR,
    EROFS,
];
const CONNECT: &[i32] = &[
    EACCES,
    EPERM,
    EADDRINUSE,
    EADDRNOTAVAIL,
    EAFNOSUPPORT,
    EAGAIN,
    EALREADY,
    EBADF,
    ECONNREFUSED,
    EFAULT,
    EINPROGRESS,
    EINTR,
    EISCONN,
    ENETUNREACH,
    ENOTSOCK,
    EPROTOTYPE,
    ETIMEDOUT,
    ECONNRESET,
    EHOSTDOWN,
    EHOSTUNREACH,
    ENETDOWN,
    ENOBUFS,
    ENOMEM,
];
pub(super) const ACCEPT4: &[i32] = &[
    EAGAIN,
    EBADF,
    ECONNABORTED,
    EFAULT,
    EINTR,
    EINVAL,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    ENOTSOCK,
    EOPNOTSUPP,
    EPERM,
    EPROTO,
    ENOSR,
    ESOCKTNOSUPPORT,
    EPROTONOSUPPORT,
    ETIMEDOUT,
    ENETDOWN,
    ENOPROTOOPT,
    EHOSTDOWN,
    ENONET,
    EHOSTUNREACH,
    ENETUNREACH,
];

/// Words that must not occur in the text of a socket error.
const OF_RDMA: [&str; 9] = [
    "RDMA",
    "rdma",
    "4791",
    "device",
    "memlock",
    "ulimit -l",
    "rsocket",
    "CONSUMER_DEFINED",
    "ibv_",
];

#[track_caller]
fn assert_same(error: Error, errno: i32) {
    let std = io::Error::from_raw_os_error(errno);
    let text = error.to_string();
    for word in OF_RDMA {
        assert!(!text.contains(word), "{word} in: {text}");
    }
    if !matches!(errno, ECONNREFUSED | ECONNRESET) {
        assert!(
            text.contains(&std.to_string()),
            "{text} does not contain {std}"
        );
    }
    assert_eq!(io::Error::from(error).kind(), std.kind(), "{text}");
}

fn addresses() -> [SocketAddr; 4] {
    ["127.0.0.1:7471", "0.0.0.0:7471", "[::]:0", "10.8.0.1:1"].map(|text| text.parse().unwrap())
}

#[test]
fn connecting_fails_as_connecting_a_socket_does() {
    for peer in addresses() {
        let from = |reason| Error::from_connect(peer, Transport::Tcp, reason);
        for errno in SOCKET {
            let error = OsError::new("socket", *errno);
            assert_same(from(CloseReason::Os(error)), *errno);
        }
        for errno in CONNECT {
            let EventKind::Failed(reason) =
                EventKind::failure("connect", nix::Error::from_raw(*errno))
            else {
                panic!("{errno} must be a failure");
            };
            assert_same(from(reason), *errno);
        }
    }
}

#[test]
fn listening_fails_as_a_socket_that_is_bound_does() {
    for address in addresses() {
        for (call, errnos) in [("socket", SOCKET), ("bind", BIND), ("listen", BIND)] {
            for errno in errnos {
                let error = Error::from_bind_locally(address, OsError::new(call, *errno));
                assert!(error.to_string().contains(&address.to_string()), "{error}");
                assert_same(error, *errno);
            }
        }
    }
}

#[test]
fn errors_of_accept4_have_the_kinds_of_std() {
    for errno in ACCEPT4 {
        assert_same(Error::from_os(OsError::new("accept4", *errno)), *errno);
    }
}
