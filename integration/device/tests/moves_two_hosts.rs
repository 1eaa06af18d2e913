//! Tests sessions that move from RDMA to TCP and back, between two hosts. Host `a` listens and
//! echoes each message. Host `b` connects, drops the RDMA packets for a while, and checks that each
//! message is echoed once and in order.

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
    CloseReason, Completion, Config, Connector, Endpoint, Error, Interest, Listener, Message,
    Region, RemoteAccess, RemoteRegion, SendBuffer, Stream, Transport, TransportChoice,
};
use toolbox::{Deadline, DeviceTest, Lab, Stop, TIME_LIMIT};

/// The RDMA port for messages. The TCP port for messages is one higher.
const MESSAGES: u16 = 7530;
/// The RDMA port for streams. The TCP port for streams is one higher.
const BYTES: u16 = 7532;

/// The message that requests a new region. The answer describes the new region.
const REGION: &[u8] = b"region";

fn config() -> Config {
    Config::default().with(|config| {
        config.resume = TIME_LIMIT;
        config.keepalive_interval = Some(Duration::from_secs(1));
        config.keepalive_timeout = Duration::from_secs(2);
        config.connect_timeout = TIME_LIMIT;
        config.close_timeout = TIME_LIMIT;
        // `Auto` permits a session to move to the other transport. Each transport has its own port,
        // because a listener on an iWARP device does not accept connections over plain TCP.
        config.transport = TransportChoice::Auto;
    })
}

fn over(transport: TransportChoice) -> Config {
    config().with(|config| config.transport = transport)
}

/// Returns message `number`. With the default configuration, a message of 40,000 bytes is above the
/// eager size of RDMA, but not above the eager size of TCP.
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

/// Receives echoed messages until the message "last" arrives. Returns the number of messages before
/// it.
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
        // Hold some messages while the session moves to another transport.
        held.push(message);
        if held.len() > number as usize % 8 {
            held.clear();
        }
    }
}

/// Receives a message. Polls the endpoint's descriptor to wait for the message, as an event loop
/// does. `fd` is the descriptor at the start of the session. A session that moves must keep this
/// descriptor.
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
        assert!(!deadline.is_over(), "no message arrived");
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

/// Writes to a new region of the peer, and reads the bytes back. Returns the local and the remote
/// region. `earlier` contains the two regions that this function returned before the session moved.
/// If `earlier` is set, checks that a READ that uses one of these regions fails.
fn operate(
    endpoint: &Endpoint,
    earlier: Option<(Region, RemoteRegion)>,
) -> Option<(Region, RemoteRegion)> {
    endpoint.send(REGION).unwrap();
    let answer = endpoint.recv_timeout(TIME_LIMIT).unwrap();
    let remote = RemoteRegion::try_from(&answer[..]).unwrap();
    let operations = endpoint.one_sided();
    let here = operations.region(16, RemoteAccess::NONE).unwrap();
    if let Some((here_before, remote_before)) = &earlier {
        for (here, remote) in [(here_before, &remote), (&here, remote_before)] {
            let stale = operations.read(here, 0..8, remote, 0, 1);
            assert!(matches!(stale, Err(Error::StaleRegion)), "{stale:?}");
        }
    }
    here.copy_in(0, b"moved...");
    operations.write(&here, 0..8, &remote, 0, 2).unwrap();
    operations.read(&here, 8..16, &remote, 0, 3).unwrap();
    loop {
        match endpoint.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::Read(3) => break,
            Completion::Written(2) | Completion::Suspended { .. } | Completion::Resumed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let mut bytes = [0; 8];
    here.copy_out(8, &mut bytes);
    assert_eq!(bytes, *b"moved...");
    Some((here, remote))
}

/// Blocks RDMA packets in one direction. Dropping this value stops blocking them.
struct Cut;

impl Cut {
    fn begin(lab: &Lab) -> Self {
        let drop = if lab.is_iwarp() {
            // Reset the TCP connections of iWARP. If their packets were dropped, calls of the
            // connection manager would block while the other host does not answer.
            format!(
                "add rule inet cut out tcp dport {{ {MESSAGES}, {BYTES} }} reject with tcp reset"
            )
        } else {
            // Drop the packets at the receiving host. If the sending host dropped them, its
            // software RoCE would retransmit without pauses.
            "add rule inet cut in udp dport 4791 drop".to_owned()
        };
        nft(&format!(
            "add table inet cut
             add chain inet cut out {{ type filter hook output priority 0; }}
             add chain inet cut in {{ type filter hook input priority 0; }}
             {drop}"
        ));
        Self
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        nft("delete table inet cut");
    }
}

fn nft(script: &str) {
    let output = Command::new("nft").arg(script).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
}

fn await_transport(of: impl Fn() -> Transport, transport: Transport) {
    let mut deadline = Deadline::after(TIME_LIMIT);
    while of() != transport {
        assert!(
            !deadline.is_over(),
            "the session did not continue over {transport} in time"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Listens on both transports, and echoes all messages and the bytes of the stream. While RDMA
/// packets are blocked, the sessions connect to the TCP listeners.
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
        for _ in 0..3 {
            let endpoint = messages.accept_timeout(TIME_LIMIT).unwrap();
            scope.spawn(move || {
                assert_eq!(endpoint.info().transport, Transport::Rdma);
                let mut regions = Vec::new();
                loop {
                    // Set no time limit, because one session is idle while the others move. If host
                    // b is lost, `recv` fails.
                    match endpoint.recv() {
                        Ok(message) if *message == *REGION => {
                            let region = endpoint.one_sided().region(8, RemoteAccess::ALL);
                            let region = region.unwrap();
                            endpoint.send(&region.remote().to_bytes()).unwrap();
                            regions.push(region);
                        }
                        Ok(message) => endpoint.send(&message).unwrap(),
                        Err(Error::Disconnected(CloseReason::PeerClosed)) => break,
                        Err(error) => panic!("{error:?}"),
                    }
                }
                println!("host a: {:?}", endpoint.statistics());
                // The session moves to TCP once, and back to RDMA once.
                assert!(endpoint.statistics().resumes >= 2);
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
    let operates = connect(MESSAGES);
    let mut regions = None;
    let address = format!("rdma://{}", lab.peer_at(BYTES));
    let stream = connector(BYTES).connect_stream(&*address).unwrap();
    let fd = loops.event_fd(Interest::Readable).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = Stop(is_over);
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
        let mut await_all = |transport| {
            await_transport(|| sleeps.info().transport, transport);
            await_transport(|| loops.info().transport, transport);
            await_transport(|| stream.transport(), transport);
            await_transport(|| operates.info().transport, transport);
            regions = operate(&operates, regions.take());
            thread::sleep(Duration::from_millis(500));
            println!("all sessions use {transport}");
        };
        await_all(Transport::Rdma);
        let cut = Cut::begin(&lab);
        await_all(Transport::Tcp);
        drop(cut);
        await_all(Transport::Rdma);
        drop(stop);
        for (sender, receiver) in senders.into_iter().zip(receivers) {
            let sent = sender.join().unwrap();
            assert_eq!(sent, receiver.join().unwrap());
            println!("host b: all {sent} messages were echoed");
        }
        let (written, read) = (writer.join().unwrap(), reader.join().unwrap());
        println!("host b: {written} bytes were written");
        assert_eq!(read.len(), written);
        let first = read
            .iter()
            .copied()
            .zip(bytes(written))
            .position(|(a, b)| a != b);
        assert_eq!(first, None);
    });
    for endpoint in [sleeps, loops, operates] {
        println!("host b: {:?}", endpoint.statistics());
        endpoint.close().unwrap();
    }
}
