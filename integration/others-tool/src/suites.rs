//! The suites, with the versions that are pinned, and the substitutions that put rdmsg's types in
//! place of sockets.

/// A test suite of another project.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) source: Source,
    /// Whether it belongs to the quick ones.
    pub(crate) is_quick: bool,
    /// The files, without `.rs`.
    pub(crate) files: &'static [&'static str],
    /// Substitutions in the program with sockets as well as in the one with rdmsg.
    pub(crate) both: Rules,
    /// Substitutions in the program with sockets.
    pub(crate) sockets: Rules,
    /// Substitutions in the program with rdmsg.
    pub(crate) rdmsg: Rules,
}

/// Text, and the text that takes its place. A rule that changes nothing is an error.
pub(crate) type Rules = &'static [(&'static str, &'static str)];

/// The registry that has a suite's files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// `tests/` of a package of crates.io, in this version.
    Cargo(&'static str),
    /// std's sources, of the toolchain or of the distribution's package `rust-src`, in one of these
    /// versions.
    RustSrc(&'static [&'static str]),
}

/// Packages that the suites' tests use, in the generated manifest. rdmsg is added to them.
pub(crate) const DEPENDENCIES: &str = r#"
futures = "=0.3.34"
socket2 = "=0.6.5"
tempfile = "=3.27.0"
tokio = { version = "=1.54.1", features = ["full"] }
tokio-stream = "=0.1.19"
tokio-test = "=0.4.6"
"#;

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "std",
        source: Source::RustSrc(&["1.63.0"]),
        is_quick: true,
        files: &["tcp"],
        // std's own name for errors of no kind, which only std may use.
        both: &[("ErrorKind::Uncategorized", "ErrorKind::Other")],
        // Unstable in std.
        sockets: &[
            (
                "stream.linger()",
                "socket2::SockRef::from(&stream).linger()",
            ),
            (
                "stream.set_linger(",
                "socket2::SockRef::from(&stream).set_linger(",
            ),
        ],
        // The types are those of `crate::net`: see root.rs. Over RDMA there is no loopback address.
        rdmsg: &[
            (r#"("localhost", "#, r#"(crate::here("localhost"), "#),
            (r#"=> "127.0.0.1""#, r#"=> crate::here("127.0.0.1")"#),
            (r#"=> "::1""#, r#"=> crate::here("::1")"#),
            (r#"("127.0.0.1:0")"#, r#"(crate::here("127.0.0.1:0"))"#),
        ],
    },
    Suite {
        name: "tokio",
        source: Source::Cargo("1.54.1"),
        is_quick: true,
        files: &[
            "tcp_accept",
            "tcp_accept_ready",
            "tcp_connect",
            "tcp_echo",
            "tcp_into_split",
            "tcp_into_std",
            "tcp_peek",
            "tcp_shutdown",
            "tcp_split",
            "tcp_stream",
        ],
        both: &[],
        sockets: &[],
        rdmsg: &[
            // tokio's types.
            (
                "use tokio::net::{TcpListener, TcpStream};",
                "use rdmsg::tokio::{Stream as TcpStream, StreamListener as TcpListener};",
            ),
            (
                "use tokio::net::TcpStream;",
                "use rdmsg::tokio::Stream as TcpStream;",
            ),
            (
                "use tokio::net::TcpListener;",
                "use rdmsg::tokio::StreamListener as TcpListener;",
            ),
            // std's types, as the peer of tokio's.
            ("std::net::TcpStream", "crate::net::TcpStream"),
            ("use std::{net, thread};", "use {crate::net, std::thread};"),
            (
                "use std::{io::Write, net};",
                "use {crate::net, std::io::Write};",
            ),
            // Over RDMA there is no loopback address.
            (r#""127.0.0.1:0""#, r#"crate::here("127.0.0.1:0")"#),
            (r#""[::1]:0""#, r#"crate::here("[::1]:0")"#),
            (r#""localhost:0""#, r#"crate::here("localhost:0")"#),
            (r#"("127.0.0.1", "#, r#"(crate::here("127.0.0.1"), "#),
            (r#"("localhost", "#, r#"(crate::here("localhost"), "#),
            (r#""127.0.0.1".parse"#, r#"crate::here("127.0.0.1").parse"#),
            (
                r#"format!("127.0.0.1:{}", "#,
                r#"format!("{}:{}", crate::here("127.0.0.1"), "#,
            ),
            (
                r#"format!("localhost:{}", "#,
                r#"format!("{}:{}", crate::here("localhost"), "#,
            ),
        ],
    },
];

impl Source {
    /// Returns the modules' file of a suite's file, below the folder of the sources.
    pub(crate) fn path_of(self, file: &str) -> String {
        match self {
            Self::Cargo(_) => format!("tests/{file}.rs"),
            Self::RustSrc(_) => format!("library/std/src/net/{file}/tests.rs"),
        }
    }
}
