//! Tests of the public API that need no device.

use std::{
    collections::BTreeSet,
    fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, Message,
    Persistent, PersistentEvent, Request, TrySendError,
    status::{CmStatus, OsError, RejectReason, WcStatus},
};

/// The permitted numbers of public methods of `Endpoint`.
const METHODS: RangeInclusive<usize> = 20..=30;

fn send<T: Send>() {}
fn sync<T: Sync>() {}

#[test]
fn handles_may_go_to_any_thread() {
    send::<Engine>();
    sync::<Engine>();
    send::<Endpoint>();
    sync::<Endpoint>();
    send::<Listener>();
    sync::<Listener>();
    send::<Request>();
    send::<Message>();
    sync::<Message>();
    send::<Completion>();
    send::<Connector>();
    send::<Persistent>();
    sync::<Persistent>();
    send::<PersistentEvent>();
    send::<Error>();
    sync::<Error>();
}

#[test]
fn errors_contain_a_remedy() {
    let cases: [(Error, &str); 4] = [
        (
            Error::Disconnected(CloseReason::AddrResolution(CmStatus::from_raw(
                -libc::ENODEV,
            ))),
            "the connection has ended: no RDMA device has a route to that address; `rdma link` \
             lists the devices, and `ip route get` shows the interface for the address: this \
             interface must belong to one of the devices",
        ),
        (
            Error::Disconnected(CloseReason::WorkRequest {
                status: WcStatus::RETRY_EXC_ERR,
                vendor_err: 0,
            }),
            "the connection has ended: the peer does not acknowledge: its host or the path to it \
             is down (RETRY_EXC_ERR)",
        ),
        (
            Error::Os(OsError::new("rdma_accept", libc::EINVAL)),
            "rdma_accept: Invalid argument (os error 22)",
        ),
        (
            Error::MessageTooLong { len: 5, limit: 4 },
            "a message of 5 bytes is too long: the peer takes at most 4; raise max_message in its \
             Config",
        ),
    ];
    for (error, text) in cases {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn error_returned_from_main_shows_the_remedy() {
    let error = Error::MessageTooLong { len: 5, limit: 4 };
    assert_eq!(
        format!("{error:?}"),
        "a message of 5 bytes is too long: the peer takes at most 4; raise max_message in its \
         Config"
    );
}

#[test]
fn memlock_failure_of_connection_states_remedy() {
    let reason = CloseReason::Os(OsError::new("ibv_reg_mr", libc::ENOMEM));
    let text = Error::Disconnected(reason).to_string();
    for part in ["ibv_reg_mr", "`ulimit -l`", "LimitMEMLOCK=", "large_memory"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn errors_map_to_io_error_kinds_of_tcp() {
    let kind = |error: Error| io::Error::from(error).kind();
    assert_eq!(
        kind(Error::Disconnected(CloseReason::Refused)),
        io::ErrorKind::ConnectionRefused
    );
    assert_eq!(
        kind(Error::Disconnected(CloseReason::PeerClosed)),
        io::ErrorKind::UnexpectedEof
    );
    assert_eq!(
        kind(Error::Disconnected(CloseReason::PeerDisconnected)),
        io::ErrorKind::ConnectionReset
    );
    assert_eq!(kind(Error::TimedOut), io::ErrorKind::TimedOut);
    let error = Error::Disconnected(CloseReason::PeerAborted(9));
    let text = error.to_string();
    assert_eq!(
        io::Error::from(error).to_string(),
        text,
        "the conversion must not change the text"
    );
}

#[test]
fn bad_arguments_fail_before_device_lookup() {
    let mut config = Config::default();
    config.connect_timeout = Duration::ZERO;
    let error = Connector::new()
        .config(&config)
        .connect("10.8.0.1:7471")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid configuration: connect_timeout is 0ns, allowed is 10ms to 600s"
    );

    let data = [0; Connector::PRIVATE_DATA_MAX + 1];
    let connector = Connector::new().private_data(&data);
    let error = connector.connect("10.8.0.1:7471").unwrap_err();
    assert_eq!(
        error.to_string(),
        "private data of 4097 bytes is too long: at most 4096 bytes fit into a connect request"
    );

    for (eager_size, text) in [
        (
            512,
            "private data of 4097 bytes is too long: at most 512 bytes fit into a connect request \
             with this eager_size; raise eager_size in the Config",
        ),
        (
            159,
            "private data of 4097 bytes is too long: at most 20 bytes fit into a connect request \
             while eager_size is below 160; raise eager_size in the Config",
        ),
    ] {
        let config = Config::default().with(|config| config.eager_size = Some(eager_size));
        let error = connector.clone().config(&config).connect("10.8.0.1:7471");
        assert_eq!(error.unwrap_err().to_string(), text);
    }
}

#[test]
fn longest_private_data_of_replies_arrive_over_tcp() {
    assert_eq!(
        (
            Connector::PRIVATE_DATA_MAX,
            Request::ACCEPT_DATA_MAX,
            Request::REJECT_DATA_MAX
        ),
        (4096, 160, 124)
    );
    let config = common::with_time_to_connect(&Config::default());
    let builder = Listener::builder().config(&config);
    let listener = builder.bind_requests("tcp://127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr());
    let connect = move || {
        let connector = Connector::new().config(&config).private_data(&[1; 20]);
        connector.connect(&*address)
    };
    let connecting = thread::spawn(connect.clone());
    let request = listener.requests().recv().unwrap();
    assert_eq!(request.private_data(), [1; 20]);
    let accepted = request.accept_with(&[2; 160]).unwrap();
    assert_eq!(accepted.info().peer_data, [1; 20]);
    let connected = connecting.join().unwrap().unwrap();
    assert_eq!(connected.info().peer_data, [2; 160]);

    let connecting = thread::spawn(connect.clone());
    let request = listener.requests().recv().unwrap();
    request.reject(&[3; 124]).unwrap();
    match connecting.join().unwrap().unwrap_err() {
        Error::Connect {
            reason: CloseReason::Rejected { data, .. },
            ..
        } => assert_eq!(*data, [3; 124]),
        error => panic!("{error}"),
    }

    // If the private data of a reply is too long, the call fails, and the library rejects the
    // request.
    for answer in [
        |request: Request| request.accept_with(&[2; 161]).unwrap_err(),
        |request: Request| request.reject(&[3; 125]).unwrap_err(),
    ] {
        let connecting = thread::spawn(connect.clone());
        let error = answer(listener.requests().recv().unwrap());
        assert!(matches!(error, Error::PrivateDataTooLong { .. }), "{error}");
        assert!(connecting.join().unwrap().is_err());
    }
}

#[test]
fn unknown_codes_keep_their_values() {
    assert_eq!(WcStatus::from_raw(99).to_string(), "unknown (99)");
    assert_eq!(WcStatus::from_raw(99).name(), None);
    assert_eq!(RejectReason::from_raw(10), RejectReason::STALE_CONN);
    assert_eq!(
        format!("{:?}", RejectReason::from_raw(-7)),
        "RejectReason(unknown (-7))"
    );
    assert!(RejectReason::CONSUMER_DEFINED.is_consumer());
}

#[test]
fn a_full_window_is_not_an_error_of_the_connection() {
    assert!(matches!(
        TrySendError::from(Error::TimedOut),
        TrySendError::Failed(Error::TimedOut)
    ));
    assert_eq!(
        TrySendError::Full.to_string(),
        "the peer's receive window or the send queue is full"
    );
}

/// Collects the files in a directory and its subdirectories whose names have the given ending.
fn files(folder: &Path, ending: &str, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, into);
        } else if path.extension().is_some_and(|found| found == ending) {
            into.push(path);
        }
    }
}

/// Returns the names of the public functions in the `impl Endpoint` blocks of a source file.
fn public_methods(source: &str) -> Vec<&str> {
    let mut in_block = false;
    let lines = source.lines().filter(|line| {
        in_block = *line == "impl Endpoint {" || in_block && *line != "}";
        in_block
    });
    let signatures = lines.filter_map(|line| {
        let signature = line.strip_prefix("    pub ")?;
        Some(signature.split_once("fn ")?.1)
    });
    signatures
        .map(|rest| rest.split(['(', '<']).next().unwrap())
        .collect()
}

/// The methods of `tokio::Endpoint` are not counted, because they mirror those of `Endpoint`. The
/// search for uses compares only names, so it does not distinguish types.
#[test]
fn endpoint_has_at_most_30_methods_each_with_a_use() {
    let source = "impl Endpoint {\n    pub fn a(&self) {\n    }\n    pub(crate) fn b() {}\n    \
                  pub async fn c<T>() {}\n}\nimpl Stream {\n    pub fn d() {}\n}";
    assert_eq!(public_methods(source), ["a", "c"]);

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let mut sources = Vec::new();
    files(&root.join("src"), "rs", &mut sources);
    sources.retain(|path| !path.starts_with(root.join("src/tokio")));
    let sources: Vec<_> = sources.iter().map(read).collect();
    let methods: BTreeSet<_> = sources
        .iter()
        .flat_map(|text| public_methods(text))
        .collect();
    for method in ["connect", "send", "recv", "close", "flushed"] {
        assert!(
            methods.contains(method),
            "the test must find `{method}`: {methods:?}"
        );
    }
    assert!(
        METHODS.contains(&methods.len()),
        "`Endpoint` has {} public methods instead of {METHODS:?}: move a method to the type that \
         it concerns, or replace it by a field of `Info` or a setting of `Connector`: {methods:?}",
        methods.len()
    );

    let mut uses = vec![root.join("README.md")];
    files(&root.join("docs/guide"), "md", &mut uses);
    files(&root.join("cm-examples"), "rs", &mut uses);
    let uses: Vec<_> = uses.iter().map(read).collect();
    let is_used = |method: &&str| {
        [".", "::"].iter().any(|before| {
            let call = format!("{before}{method}(");
            uses.iter().any(|text| text.contains(&call))
        })
    };
    let unused: Vec<_> = methods.iter().filter(|method| !is_used(method)).collect();
    assert!(
        unused.is_empty(),
        "no example and no page of the guide calls {unused:?} of `Endpoint`: show a use in \
         docs/guide or cm-examples, or remove the method"
    );
}
