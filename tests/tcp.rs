//! Connections over TCP on this machine.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, RemoteAccess,
    RemoteRegion, Transport, TransportKind,
};

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Transport::Tcp;
    config
}

fn pair_with(config: Config) -> (Endpoint, Endpoint) {
    let engine = Engine::new().unwrap();
    let listener = Listener::bind_with("127.0.0.1:0", &config, &engine).unwrap();
    let addr = listener.local_addr();
    let server = thread::spawn(move || listener.accept().unwrap());
    let client = Connector::new()
        .config(config)
        .engine(&engine)
        .connect(addr)
        .unwrap();
    (client, server.join().unwrap())
}

fn pair() -> (Endpoint, Endpoint) {
    pair_with(config())
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn messages_of_every_size_arrive_whole_and_in_order() {
    let (client, server) = pair();
    assert_eq!(client.transport(), TransportKind::Tcp);
    let sizes = [
        0,
        1,
        63,
        64,
        4096,
        16 << 10,
        (16 << 10) + 1,
        64 << 10,
        1 << 20,
        5_000_001,
    ];
    let echo = thread::spawn(move || {
        for _ in sizes {
            let message = server.recv().unwrap();
            server.send(&message).unwrap();
        }
        server.close().unwrap();
    });
    for len in sizes {
        client.send(&bytes(len)).unwrap();
    }
    for len in sizes {
        assert!(*client.recv().unwrap() == bytes(len)[..], "{len}");
    }
    assert!(matches!(
        client.recv(),
        Err(Error::Disconnected(CloseReason::PeerClosed))
    ));
    echo.join().unwrap();
}

#[test]
fn many_small_messages_flow_both_ways_at_once() {
    const COUNT: u32 = 20_000;
    let (client, server) = pair();
    let run = |endpoint: Endpoint| {
        let sender = {
            let endpoint = endpoint.clone();
            thread::spawn(move || {
                for number in 0..COUNT {
                    endpoint.send(&number.to_be_bytes()).unwrap();
                }
            })
        };
        for number in 0..COUNT {
            assert_eq!(*endpoint.recv().unwrap(), number.to_be_bytes());
        }
        sender.join().unwrap();
    };
    let other = thread::spawn(move || run(server));
    run(client.clone());
    other.join().unwrap();
}

#[test]
fn one_sided_operations_do_what_they_do_over_rdma() {
    let (client, server) = pair();
    let region = server.region(4096, RemoteAccess::ALL).unwrap();
    server.send(&region.remote().to_bytes()).unwrap();
    let remote = client.recv().unwrap();
    let remote = RemoteRegion::from_bytes(&(*remote).try_into().unwrap());
    let local = client.region(1024, RemoteAccess::NONE).unwrap();
    local.copy_in(0, &bytes(1000));
    client.write(&local, 0..1000, &remote, 100, 1).unwrap();
    let fetched = client.region(1024, RemoteAccess::NONE).unwrap();
    client.read(&fetched, 0..1000, &remote, 100, 2).unwrap();
    client
        .fetch_add(&fetched, 1000, &remote, 2048, 5, 3)
        .unwrap();
    client
        .compare_swap(&fetched, 1008, &remote, 2048, 5, 77, 4)
        .unwrap();
    client
        .write_with_imm(&local, 0..10, &remote, 3000, 0xabcd, 5)
        .unwrap();
    for id in 1..=5 {
        let completion = client
            .next_completion_timeout(Duration::from_secs(5))
            .unwrap();
        match completion {
            Completion::Read(got) | Completion::Written(got) => {
                assert_eq!(got, id);
            }
            other => println!("{other:?}"),
        }
    }
    match server.next_completion().unwrap() {
        Completion::Immediate(immediate) => assert_eq!(immediate.imm_data(), 0xabcd),
        other => panic!("{other:?}"),
    }
    let mut back = vec![0; 1000];
    fetched.copy_out(0, &mut back);
    assert_eq!(back, bytes(1000));
    let mut word = [0; 8];
    region.copy_out(2048, &mut word);
    assert_eq!(u64::from_ne_bytes(word), 77);
}

#[test]
fn a_forged_key_ends_the_connection_and_gives_nothing() {
    let (client, server) = pair();
    let region = server.region(4096, RemoteAccess::ALL).unwrap();
    let mut bytes = region.remote().to_bytes();
    bytes[19] ^= 1;
    let forged = RemoteRegion::from_bytes(&bytes);
    let local = client.region(64, RemoteAccess::NONE).unwrap();
    client.read(&local, 0..64, &forged, 0, 1).unwrap();
    let reason = loop {
        if let Completion::Disconnected(reason) = client.next_completion().unwrap() {
            break reason;
        }
    };
    assert!(
        matches!(reason, CloseReason::WorkRequest { .. }),
        "{reason:?}"
    );
    assert!(matches!(server.recv(), Err(Error::Disconnected(_))));
}

#[test]
fn auto_takes_tcp_where_no_device_serves_the_address() {
    let engine = Engine::new().unwrap();
    let listener = Listener::bind_with("auto://127.0.0.1:0", &config(), &engine).unwrap();
    assert_eq!(listener.transports(), [TransportKind::Tcp]);
    let addr = listener.local_addr();
    let server = thread::spawn(move || listener.accept().unwrap());
    let client = Endpoint::connect(format!("auto://{addr}")).unwrap();
    assert_eq!(client.transport(), TransportKind::Tcp);
    client.send(b"hello").unwrap();
    let server = server.join().unwrap();
    assert_eq!(server.transport(), TransportKind::Tcp);
    assert_eq!(*server.recv().unwrap(), *b"hello");
}

#[test]
fn rdma_means_rdma_or_an_error() {
    let error = Endpoint::connect("rdma://127.0.0.1:7471").unwrap_err();
    let expected = matches!(
        error,
        Error::NoRdma(_)
            | Error::RdmaNotBuilt
            | Error::Loopback { .. }
            | Error::PermissionDenied { .. }
    );
    assert!(expected, "{error}");
}

#[test]
fn a_port_that_is_taken_is_said_to_be() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    for scheme in ["auto", "tcp"] {
        let error = Listener::bind(format!("{scheme}://{addr}")).unwrap_err();
        assert!(matches!(error, Error::Bind { .. }), "{error}");
        assert!(
            error.to_string().contains("Another listener has it"),
            "{error}"
        );
    }
}

#[test]
fn nobody_listens_is_said_at_once() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let error = Connector::new().config(config()).connect(addr).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Connect {
                reason: CloseReason::Refused,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn strangers_end_their_own_connection_and_the_listener_lives() {
    let engine = Engine::new().unwrap();
    let listener = Listener::bind_with("127.0.0.1:0", &config(), &engine).unwrap();
    let addr = listener.local_addr();
    for hello in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"rdmt\x02\x01\x10\x00",
        b"rdmt\x01\x02\x10\x00",
        b"rdmt\x01\x01\x10\xff",
    ] {
        let mut stranger = TcpStream::connect(addr).unwrap();
        stranger.write_all(hello).unwrap();
        let mut answer = Vec::new();
        // The end, or a reset where not all was read.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{hello:?}: {answer:?}");
    }
    let _silent = TcpStream::connect(addr).unwrap();
    let server = thread::spawn(move || listener.accept().unwrap().recv().unwrap().to_vec());
    let client = Connector::new()
        .config(config())
        .engine(&engine)
        .connect(addr)
        .unwrap();
    client.send(b"still here").unwrap();
    assert_eq!(server.join().unwrap(), b"still here");
}
