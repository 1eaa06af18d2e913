//! Sessions that move from RDMA to TCP and back, between two hosts. Host `a` listens and answers
//! each message with the same one. Host `b` connects, drops the packets of RDMA for a while, and
//! checks that each message came back once and in order.

use std::{
    io::{Read, Write},
    net::Shutdown,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Error, Interest, Listener, Message, SendBuffer,
    Stream, Transport, TransportChoice,
};
use toolbox::{Deadline, DeviceTest, Lab};

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The ports over RDMA, for messages and for bytes. The next port of each is for TCP.
const MESSAGES: u16 = 7530;
const BYTES: u16 = 7532;

fn config() -> Config {
    Config::default().with(|config| {
        config.resume = TIME_LIMIT;
        config.keepalive_interval = Some(Duration::from_secs(1));
        config.keepalive_timeout = Duration::from_secs(2);
        config.connect_timeout = TIME_LIMIT;
        // A listener on iWARP does not accept TCP, so each transport has its own port.
        config.transport = TransportChoice::Auto;
    })
}

fn over(transport: TransportChoice) -> Config {
    config().with(|config| config.transport = transport)
}

/// Returns the message with this number. With the defaults, a message of 40,000 bytes is above the
/// eager size over RDMA, but not over TCP.
fn numbered(number: u32) -> Vec<u8> {
    let len = match number % 50 {
        7 => 200_000,
        13 | 27 | 28 => 40_000,
        _ => 60,
    };
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(4 + len, number as u8);
    bytes
}

fn send_numbers(endpoint: &Endpoint, is_over: &AtomicBool) -> u32 {
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        let bytes = numbered(number);
        if number % 5 == 3 {
            let mut buffer = SendBuffer::new(endpoint, bytes.len()).unwrap();
            buffer.copy_from_slice(&bytes);
            endpoint.send(buffer).unwrap();
        } else {
            endpoint.send(&bytes).unwrap();
        }
        number += 1;
        if number % 16 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    endpoint.send(b"last").unwrap();
    number
}

/// Takes the echoed messages, up to the last one. Returns their number.
fn receive_numbers(mut next: impl FnMut() -> Message) -> u32 {
    let mut number = 0;
    let mut held = Vec::new();
    loop {
        let message = next();
        if *message == *b"last" {
            return number;
        }
        let expected = numbered(number);
        let first = message.iter().zip(&expected).position(|(a, b)| a != b);
        assert!(
            *message == *expected,
            "message {number}: {} bytes, begins with {:?}, differs at {first:?}",
            message.len(),
            message.get(..4)
        );
        number += 1;
        // Some messages are held while the session moves.
        held.push(message);
        if held.len() > number as usize % 8 {
            held.clear();
        }
    }
}

/// Takes a message as an event loop does. `fd` is the descriptor from the start of the session,
/// which must not change.
fn take(endpoint: &Endpoint, fd: i32) -> Message {
    let mut deadline = Deadline::after(TIME_LIMIT);
    loop {
        if let Some(message) = endpoint.try_recv().unwrap() {
            return message;
        }
        let now = endpoint.event_fd(Interest::Readable).unwrap();
        assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&now), fd);
        poll(
            &mut [PollFd::new(now, PollFlags::POLLIN)],
            PollTimeout::from(1000_u16),
        )
        .unwrap();
        assert!(!deadline.is_over(), "no message came");
    }
}

fn bytes(len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(|at| (at / 7 % 251) as u8)
}

fn write_bytes(mut stream: &Stream, is_over: &AtomicBool) -> usize {
    const PART: usize = 20_000;
    let all: Vec<u8> = bytes(PART + 7 * 251).collect();
    let mut written = 0;
    while !is_over.load(Ordering::Relaxed) {
        let part = &all[written % (7 * 251)..][..1 + written % PART];
        stream.write_all(part).unwrap();
        written += part.len();
        thread::sleep(Duration::from_millis(4));
    }
    stream.shutdown(Shutdown::Write).unwrap();
    written
}

/// Drops the packets of RDMA at this host, or stops dropping them.
fn cut_rdma(lab: &Lab, is_cut: bool) {
    let drop = if lab.is_iwarp() {
        // A call of the connection manager's would wait for a host without an answer.
        format!("add rule inet cut out tcp dport {{ {MESSAGES}, {BYTES} }} reject with tcp reset")
    } else {
        // The packets are dropped at the receiver, because software RoCE would send a packet again
        // and again if the sender dropped it.
        "add rule inet cut in udp dport 4791 drop".to_owned()
    };
    let script = if is_cut {
        let chain = |way, hook| {
            format!("add chain inet cut {way} {{ type filter hook {hook} priority 0; }}")
        };
        let chains = [chain("out", "output"), chain("in", "input")];
        let lines = ["add table inet cut".to_owned()].into_iter();
        lines
            .chain(chains)
            .chain([drop])
            .collect::<Vec<_>>()
            .join("\n")
    } else {
        "delete table inet cut".to_owned()
    };
    let output = Command::new("nft").arg(&script).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
}

fn await_transport(of: impl Fn() -> Transport, transport: Transport) {
    let mut deadline = Deadline::after(TIME_LIMIT);
    while of() != transport {
        assert!(!deadline.is_over(), "no session went on over {transport}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Both listeners, of which the sessions use the second one while RDMA is cut.
fn echo(lab: &Lab) {
    let bind = |port, transport| {
        let builder = Listener::builder().config(&over(transport));
        builder.bind(lab.at(port)).unwrap()
    };
    let messages = bind(MESSAGES, TransportChoice::Rdma);
    let _over_tcp = bind(MESSAGES + 1, TransportChoice::Tcp);
    let stream = |port, transport| {
        let builder = Listener::builder().config(&over(transport));
        builder.bind_stream(lab.at(port)).unwrap()
    };
    let streams = stream(BYTES, TransportChoice::Rdma);
    let _streams_over_tcp = stream(BYTES + 1, TransportChoice::Tcp);
    thread::scope(|scope| {
        for _ in 0..2 {
            let endpoint = messages.accept_timeout(TIME_LIMIT).unwrap();
            scope.spawn(move || {
                assert_eq!(endpoint.transport(), Transport::Rdma);
                loop {
                    match endpoint.recv_timeout(TIME_LIMIT) {
                        Ok(message) => endpoint.send(&message).unwrap(),
                        Err(Error::Disconnected(CloseReason::PeerClosed)) => break,
                        Err(error) => panic!("{error:?}"),
                    }
                }
                println!("host a: {:?}", endpoint.statistics());
                assert!(endpoint.statistics().resumes >= 2);
                assert_eq!(endpoint.transport(), Transport::Rdma);
            });
        }
        let (stream, _) = streams.accept().unwrap();
        let (mut from, mut to) = (&stream, &stream);
        std::io::copy(&mut from, &mut to).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    });
}

#[test]
fn sessions_move_to_tcp_and_back_to_rdma() {
    let lab = DeviceTest::start();
    if lab.host == "a" {
        return echo(&lab);
    }
    let connector = |port| {
        let connector = Connector::new().config(&config()).retry_refused(true);
        let over_tcp = format!("tcp://{}", lab.peer_at(port + 1));
        connector.alternatives(&*over_tcp).unwrap()
    };
    let connect = |port| {
        let address = format!("rdma://{}", lab.peer_at(port));
        connector(port).connect(&*address).unwrap()
    };
    let (sleeps, loops) = (connect(MESSAGES), connect(MESSAGES));
    let address = format!("rdma://{}", lab.peer_at(BYTES));
    let stream = connector(BYTES).connect_stream(&*address).unwrap();
    let fd = loops.event_fd(Interest::Readable).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let senders = [&sleeps, &loops].map(|it| scope.spawn(move || send_numbers(it, is_over)));
        let receivers = [
            scope.spawn(|| receive_numbers(|| sleeps.recv_timeout(TIME_LIMIT).unwrap())),
            scope.spawn(|| receive_numbers(|| take(&loops, fd))),
        ];
        let writer = scope.spawn(|| write_bytes(&stream, is_over));
        let reader = scope.spawn(|| {
            let mut read = Vec::new();
            (&stream).read_to_end(&mut read).unwrap();
            read
        });
        for round in 0..2 {
            for transport in [Transport::Rdma, Transport::Tcp] {
                await_transport(|| sleeps.transport(), transport);
                await_transport(|| loops.transport(), transport);
                await_transport(|| stream.transport(), transport);
                thread::sleep(Duration::from_millis(500));
                println!("round {round}: all go over {transport}");
                cut_rdma(&lab, transport == Transport::Rdma);
            }
        }
        for of in [&sleeps, &loops] {
            await_transport(|| of.transport(), Transport::Rdma);
        }
        await_transport(|| stream.transport(), Transport::Rdma);
        is_over.store(true, Ordering::Relaxed);
        for (sender, receiver) in senders.into_iter().zip(receivers) {
            let sent = sender.join().unwrap();
            assert_eq!(sent, receiver.join().unwrap());
            println!("{sent} messages");
        }
        let (written, read) = (writer.join().unwrap(), reader.join().unwrap());
        println!("{written} bytes");
        assert_eq!(read.len(), written);
        let first = read
            .iter()
            .copied()
            .zip(bytes(written))
            .position(|(a, b)| a != b);
        assert_eq!(first, None);
    });
    for endpoint in [sleeps, loops] {
        println!("host b: {:?}", endpoint.statistics());
        endpoint.close().unwrap();
    }
}
