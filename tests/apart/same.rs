//! Comparison of errors with those of std's sockets.

use std::{
    io,
    net::{SocketAddr, TcpStream},
};

use rdmsg::Stream;

/// Words that no error of the TCP transport contains.
const OF_RDMA: [&str; 11] = [
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

/// Requires that `ours` is the error of std, with `address` added.
#[track_caller]
pub(crate) fn assert_same(ours: &io::Error, std: &io::Error, address: SocketAddr) {
    assert_eq!(ours.kind(), std.kind(), "{ours}, and of std: {std}");
    let text = ours.to_string();
    assert!(text.contains(&std.to_string()), "{text} is not {std}");
    assert!(text.contains(&address.to_string()), "{text}");
    for word in OF_RDMA {
        assert!(!text.contains(word), "{word} in: {text}");
    }
}

/// Connects with a socket of std, and with a stream over each transport that may use TCP.
#[track_caller]
pub(crate) fn assert_same_connect(address: SocketAddr) {
    let std = TcpStream::connect(address).unwrap_err();
    for scheme in ["tcp", "auto"] {
        let ours = Stream::connect(format!("{scheme}://{address}")).unwrap_err();
        assert_same(&ours, &std, address);
    }
}
