//! Compares the errors of `rdmsg` with the errors of std's sockets.

use std::{
    io,
    net::{SocketAddr, TcpStream},
};

use rdmsg::Stream;

/// Words that must not appear in errors of the TCP transport.
const RDMA_WORDS: [&str; 11] = [
    "RDMA",
    "rdma",
    "InfiniBand",
    "RoCE",
    "4791",
    "device",
    "memlock",
    "ulimit -l",
    "rsocket",
    "CONSUMER_DEFINED",
    "ibv_",
];

/// Asserts that `ours` has the same kind as `std`, an error of a std socket. The text of `ours`
/// must contain the text of `std` and the address, but no word of `RDMA_WORDS`.
#[track_caller]
pub fn assert_same(ours: &io::Error, std: &io::Error, address: SocketAddr) {
    assert_eq!(ours.kind(), std.kind(), "ours: {ours}; std: {std}");
    let text = ours.to_string();
    assert!(
        text.contains(&std.to_string()),
        "{text} does not contain {std}"
    );
    assert!(text.contains(&address.to_string()), "{text}");
    for word in RDMA_WORDS {
        assert!(!text.contains(word), "{word} in: {text}");
    }
}

/// Connects a socket of std, and a stream of `rdmsg` for each address scheme that can use TCP.
/// Asserts that each stream fails with the same error as the socket.
#[track_caller]
pub fn assert_same_connect(address: SocketAddr) {
    let std = TcpStream::connect(address).unwrap_err();
    for scheme in ["tcp", "auto"] {
        let ours = Stream::connect(format!("{scheme}://{address}")).unwrap_err();
        assert_same(&ours, &std, address);
    }
}
