//! Tests failures, and the remedies in their error messages.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, ToAddresses, Transport,
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    status::CmEventType,
    verbs::{CompletionQueue, ProtectionDomain, QpCap, QpInitAttr},
};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, connect, example, patient, reason};

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

fn bind(address: impl ToAddresses) -> Listener {
    let builder = Listener::builder().config(&patient());
    builder.bind(address).unwrap()
}

/// Asserts that a command has failed with status 1, and that its stderr contains all expected
/// texts.
fn assert_failure(output: &Output, expected: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn an_unknown_host_is_named() {
    let _test = DeviceTest::start();
    let error = Endpoint::connect("no-such-host.invalid:7471").unwrap_err();
    assert!(matches!(error, Error::AddressLookup { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .starts_with("cannot look up the address no-such-host.invalid:7471: "),
        "{error}"
    );
}

#[test]
fn nobody_listening_is_refused_at_once() {
    let lab = DeviceTest::start();
    let address = lab.at(7999);
    let error = connect(address).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Connect {
                reason: CloseReason::Refused,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot connect to {address}: ")),
        "{error}"
    );
    assert!(error.to_string().contains("no program listens"), "{error}");
}

#[test]
fn a_client_that_may_retry_waits_for_its_server() {
    let lab = DeviceTest::start();
    let address = lab.at(7998);
    let connector = Connector::new().config(&patient()).retry_refused(true);
    let client = thread::spawn(move || connector.connect(address).unwrap());
    // The listener does not exist yet, so this attempt is refused. When it has been refused, the
    // client thread's first attempt has usually been refused, too.
    assert_eq!(reason(connect(address)), CloseReason::Refused);
    let listener = bind(address);
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    client.join().unwrap().close().unwrap();
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
}

#[test]
fn the_connect_deadline_holds_while_retrying() {
    let lab = DeviceTest::start();
    // On a busy machine, the first attempt may need more than the timeout. Double the timeout until
    // the attempt ends.
    let mut config = Config::default().with(|c| c.connect_timeout = Duration::from_secs(1));
    let (why, elapsed) = loop {
        let connector = Connector::new().config(&config).retry_refused(true);
        let start = Instant::now();
        let why = reason(connector.connect(lab.at(7997)));
        let is_slow = matches!(why, CloseReason::TimedOut(_));
        if !is_slow || config.connect_timeout > TIME_LIMIT {
            break (why, start.elapsed());
        }
        config.connect_timeout *= 2;
    };
    assert_eq!(why, CloseReason::Refused);
    assert!(
        elapsed >= config.connect_timeout,
        "the connector must retry until the deadline, and not for {elapsed:?}"
    );
}

#[test]
fn an_address_without_an_rdma_device_is_explained() {
    let _test = DeviceTest::start();
    let ip = |args: &str| {
        let output = run(Command::new("ip").args(args.split(' ')));
        assert!(
            output.status.success(),
            "ip {args}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    ip("link add plain0 type dummy");
    ip("address add 10.99.0.1/24 dev plain0");
    ip("link set plain0 up");
    let config = Config::default().with(|c| c.connect_timeout = TIME_LIMIT);
    let start = Instant::now();
    let connector = Connector::new().config(&config);
    let error = connector.connect("10.99.0.2:7471").unwrap_err();
    assert!(
        start.elapsed() < TIME_LIMIT / 3,
        "the connect must not wait until the deadline"
    );
    let text = error.to_string();
    assert!(
        matches!(
            error,
            Error::Connect {
                reason: CloseReason::AddrResolution(_),
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        text.contains("no RDMA device has a route to that address"),
        "{text}"
    );

    let error = Listener::bind("10.99.0.1:7471").unwrap_err();
    assert!(matches!(error, Error::Bind { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("The address must belong to a network interface with an RDMA device"),
        "{error}"
    );
    ip("link delete plain0");
}

#[test]
fn a_machine_without_rdma_is_told_what_to_load() {
    let _test = DeviceTest::start();
    let script = "mount -t tmpfs none /dev/infiniband && exec \"$0\" 10.8.0.1:7471";
    let output = run(Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(example("cm_client")));
    assert_failure(
        &output,
        &[
            "this machine offers no RDMA",
            "modprobe rdma_ucm",
            "rdma link add",
        ],
    );
}

#[test]
fn memlock_error_names_the_limit() {
    let lab = DeviceTest::start();
    // Give all users access to the device files, as udev's rules do on an installed system.
    for entry in fs::read_dir("/dev/infiniband").unwrap() {
        fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o666)).unwrap();
    }
    let listener = Listener::bind(lab.at(0)).unwrap();
    // Run the program as an unprivileged user, because root's locked memory is not limited.
    let script = "ulimit -l 64 && exec \"$0\" \"$1\"";
    let address = listener.local_addr().to_string();
    let output = run(Command::new("sh")
        .args(["-c", script])
        .arg(example("cm_client"))
        .arg(address)
        .uid(65534)
        .gid(65534));
    assert_failure(
        &output,
        &[
            "cannot register memory: ibv_reg_mr",
            "may lock 65536 bytes",
            "LimitMEMLOCK=",
        ],
    );
}

#[test]
fn too_long_message_is_refused_without_ending() {
    let lab = DeviceTest::start();
    let engine = Engine::shared().unwrap();
    let mut config = patient();
    config.max_message = 1000;
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(lab.at(0))
        .unwrap();
    let address = listener.local_addr();
    let client = thread::spawn(move || connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let client = client.join().unwrap();
    assert_eq!(client.info().send_limit, 1000);
    for len in [1001, 16 * 1024, 1 << 20] {
        let error = client.send(&vec![1; len]).unwrap_err();
        assert!(
            matches!(error, Error::MessageTooLong { limit: 1000, .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            format!(
                "a message of {len} bytes is too long: the peer takes at most 1000; raise max_message in its Config"
            )
        );
    }
    client.send(&[7; 1000]).unwrap();
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), [7; 1000]);
    client.close().unwrap();
}

#[test]
fn bad_configuration_is_refused_before_any_action() {
    let mut config = Config::default();
    config.receive_window = Some(0);
    let error = Connector::new()
        .config(&config)
        .connect(Lab::get().at(7471))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid configuration: receive_window is 0, allowed is 1 to 8192"
    );
    let error = Listener::builder()
        .config(&config)
        .bind(Lab::get().at(0))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid configuration: receive_window is 0, allowed is 1 to 8192"
    );
}

#[test]
fn shut_down_engine_fails_and_next_shared_one_works() {
    let lab = DeviceTest::start();
    let address = lab.at(0);
    let listener = Listener::bind(address).unwrap();
    let engine = Engine::shared().unwrap();
    engine.clone().shutdown();
    let error = listener.accept_timeout(TIME_LIMIT).unwrap_err();
    assert!(matches!(error, Error::EngineShutDown), "{error:?}");
    let error = Connector::new()
        .engine(&engine)
        .connect(address)
        .unwrap_err();
    assert!(matches!(error, Error::EngineShutDown), "{error:?}");
    Listener::bind(address).unwrap();
}

#[test]
fn connection_iterator_ends_with_its_listener() {
    let lab = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let listener = Listener::builder().engine(&engine).bind(lab.at(0)).unwrap();
    engine.shutdown();
    let mut incoming = listener.incoming();
    let last = incoming
        .next()
        .expect("the iterator must report that the listener has ended")
        .unwrap_err();
    assert!(matches!(last, Error::EngineShutDown), "{last:?}");
    assert!(incoming.next().is_none(), "the error must be reported once");
    assert!(incoming.next().is_none());
}

#[test]
fn a_request_that_is_accepted_too_late_says_so() {
    let lab = DeviceTest::start();
    let mut config = Config::default();
    config.connect_timeout = Duration::from_millis(500);
    let engine = Engine::shared().unwrap();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind_requests(lab.at(0))
        .unwrap();
    let address = listener.local_addr();
    let client = thread::spawn(move || connect(address).unwrap_err());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    // The listener's side times out and rejects the request as busy, so the peer can connect again.
    let error = client.join().unwrap();
    assert!(
        matches!(
            error,
            Error::Connect {
                reason: CloseReason::PeerBusy,
                ..
            }
        ),
        "{error:?}"
    );
    let error = request.accept().unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with(": timed out while waiting for the application to accept the request"),
        "{error}"
    );
}

/// On iWARP, a listener with the scheme `auto` uses only RDMA, because iWARP uses the ports
/// of TCP.
#[test]
fn listener_reports_the_transport_that_it_chose() {
    let lab = DeviceTest::start();
    let transport_to = |listener: &Listener| {
        let address = format!("auto://{}", listener.local_addr());
        thread::scope(|scope| {
            let accepted = scope.spawn(|| listener.accept_timeout(TIME_LIMIT).unwrap());
            let connector = Connector::new().config(&patient());
            let client = connector.connect(address).unwrap();
            assert_eq!(
                accepted.join().unwrap().info().transport,
                client.info().transport
            );
            client.info().transport
        })
    };
    let chooses = bind(format!("auto://{}", lab.at(0)));
    let both = [Transport::Rdma, Transport::Tcp];
    let chosen = if lab.is_iwarp() { &both[..1] } else { &both };
    assert_eq!(chooses.transports(), chosen);
    assert_eq!(transport_to(&chooses), Transport::Rdma);
    // A client with the scheme `auto` also connects to a listener that uses only TCP.
    let tcp = bind(format!("tcp://{}", lab.at(0)));
    assert_eq!(tcp.transports(), [Transport::Tcp]);
    assert_eq!(transport_to(&tcp), Transport::Tcp);
}

#[test]
fn private_data_arrives_in_accept_and_rejection() {
    let lab = DeviceTest::start();
    let listener = Listener::builder().config(&patient());
    let listener = listener.bind_requests(lab.at(0)).unwrap();
    let address = listener.local_addr();
    let connect = move |data: &'static [u8]| {
        let connector = Connector::new().config(&patient()).private_data(data);
        thread::spawn(move || connector.connect(address))
    };

    let client = connect(b"user 7");
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    assert_eq!(request.private_data(), b"user 7");
    assert_eq!(request.local_addr(), address);
    let server = request
        .accept_with(&[9; rdmsg::Request::ACCEPT_DATA_MAX])
        .unwrap();
    let client = client.join().unwrap().unwrap();
    assert_eq!(
        client.info().peer_data,
        [9; rdmsg::Request::ACCEPT_DATA_MAX]
    );
    assert_eq!(server.info().peer_data, b"user 7");
    client.close().unwrap();

    let client = connect(b"user 8");
    listener
        .requests()
        .recv_timeout(TIME_LIMIT)
        .unwrap()
        .reject(b"not you")
        .unwrap();
    match client.join().unwrap().unwrap_err() {
        Error::Connect {
            reason: CloseReason::Rejected { data, .. },
            ..
        } => assert_eq!(*data, *b"not you"),
        other => panic!("{other:?}"),
    }

    let client = connect(b"");
    drop(listener.requests().recv_timeout(TIME_LIMIT).unwrap());
    let error = client.join().unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Connect {
                reason: CloseReason::Rejected { .. },
                ..
            }
        ),
        "{error:?}"
    );

    let error = Connector::new()
        .private_data(&[0; Connector::PRIVATE_DATA_MAX + 1])
        .connect(address)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::PrivateDataTooLong {
                limit: Connector::PRIVATE_DATA_MAX,
                ..
            }
        ),
        "{error:?}"
    );
}

/// Connects with `private_data` through the connection manager, like a program that does not use
/// this library. Returns the type and the private data of the event that answers the connection
/// request.
fn foreign_client(address: SocketAddr, private_data: &[u8]) -> (CmEventType, Vec<u8>) {
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, 1).unwrap();
    let next = || {
        channel
            .wait_event(TIME_LIMIT)
            .unwrap()
            .expect("an event must arrive")
    };
    id.resolve_addr(Lab::get().source(), address, TIME_LIMIT)
        .unwrap();
    assert_eq!(next().event(), CmEventType::ADDR_RESOLVED);
    id.resolve_route(TIME_LIMIT).unwrap();
    assert_eq!(next().event(), CmEventType::ROUTE_RESOLVED);
    // The iWARP driver cannot connect an id without a queue pair.
    let context = id.verbs().unwrap();
    let pd = ProtectionDomain::new(&context).unwrap();
    let cq = CompletionQueue::new(&context, 2, None).unwrap();
    let cap = QpCap {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QpCap::default()
    };
    let _qp = id.create_qp(&pd, &QpInitAttr::rc(&cq, cap)).unwrap();
    let param = ConnParam {
        private_data: private_data.try_into().unwrap(),
        ..ConnParam::default()
    };
    id.connect(&param).unwrap();
    let event = next();
    (event.event(), event.private_data().to_vec())
}

#[test]
fn a_client_that_is_not_of_this_crate_is_rejected() {
    let lab = DeviceTest::start();
    let listener = Listener::bind(lab.at(0)).unwrap();
    for hello in [&b""[..], b"GET / HTTP/1.1", &[0; 56]] {
        assert_eq!(
            foreign_client(listener.local_addr(), hello).0,
            CmEventType::REJECTED
        );
    }
    assert!(
        listener.try_accept().unwrap().is_none(),
        "the application must not receive the request"
    );
}

#[test]
fn a_client_of_another_version_is_told_both_versions() {
    let lab = DeviceTest::start();
    let listener = Listener::bind(lab.at(0)).unwrap();
    let hello = [&b"rdms\x09\x24"[..], &[0; 50]].concat();
    let (event, private_data) = foreign_client(listener.local_addr(), &hello);
    assert_eq!(event, CmEventType::REJECTED);
    // The fields of a rejection: magic, this side's version, length, the code for a version
    // mismatch, this side's version again, and the peer's version.
    let expected = [
        &b"rdmR\x03\x18\x00\x01"[..],
        &3_u64.to_be_bytes(),
        &9_u64.to_be_bytes(),
    ]
    .concat();
    assert_eq!(private_data[..24], expected);
}

#[test]
fn version_mismatch_names_both_versions() {
    let lab = DeviceTest::start();
    let channel = EventChannel::new().unwrap();
    let create = || CmId::new(&channel, PortSpace::TCP, 1);
    let listener = CmId::listen_on(create, lab.at(0), 1).unwrap();
    let address = listener.local_addr().unwrap();
    let client = thread::spawn(move || connect(address).unwrap_err());
    let mut event = channel
        .wait_event(TIME_LIMIT)
        .unwrap()
        .expect("a request must arrive");
    let mut request = event.take_request().expect("a request must have an id");
    let reject = [
        &b"rdmR\x09\x18\x00\x01"[..],
        &9_u64.to_be_bytes(),
        &3_u64.to_be_bytes(),
    ]
    .concat();
    request.reject(&reject).unwrap();
    let error = client.join().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot connect to {address}: the two sides are incompatible: version is 3 here and 9 at the peer"
        )
    );
}

#[test]
fn foreign_server_is_reported_as_not_rdmsg() {
    let lab = DeviceTest::start();
    // rping accepts all requests and sends no hello.
    let mut server = Command::new("rping")
        .args(["-s", "-p", "7996"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut config = Config::default();
    config.connect_timeout = TIME_LIMIT;
    let error = Connector::new()
        .config(&config)
        .retry_refused(true)
        .connect(lab.at(7996))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Connect {
                reason: CloseReason::NotRdmsg,
                ..
            }
        ),
        "{error:?}"
    );
    let _ = server.kill();
    server.wait().unwrap();
}
