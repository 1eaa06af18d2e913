//! Tests the message layer between two hosts. Both hosts run this program: in each test, host `a`
//! listens and host `b` connects. Each test has its own port, and the connector retries until the
//! listener is bound.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, Polling,
    RemoteAccess, RemoteRegion, SendBuffer, status::WcStatus,
};
use toolbox::{DeviceTest, Lab, Stop, TIME_LIMIT, applies, pattern};

/// Runs this host's side of a test: `listener` on host `a`, or `connector` on host `b`. At the end,
/// the [`DeviceTest`] checks that neither host ran out of posted receives.
fn on_two_hosts(
    port: u16,
    config: &Config,
    listener: impl FnOnce(Endpoint),
    connector: impl FnOnce(Endpoint),
) {
    let lab = DeviceTest::start();
    let mut config = config.clone();
    // A busy machine may not run the other host for seconds.
    config.connect_timeout = TIME_LIMIT;
    config.keepalive_timeout = TIME_LIMIT;
    config.close_timeout = TIME_LIMIT;
    match lab.host.as_str() {
        "a" => {
            let bound = Listener::builder()
                .config(&config)
                .bind(lab.at(port))
                .unwrap();
            listener(bound.accept_timeout(TIME_LIMIT).unwrap());
        }
        "b" => {
            connector(
                Connector::new()
                    .config(&config)
                    .retry_refused(true)
                    .connect(lab.peer_at(port))
                    .unwrap(),
            );
        }
        other => panic!("{other} is neither host a nor host b"),
    }
}

fn echo(endpoint: &Endpoint) {
    loop {
        match endpoint.recv_timeout(TIME_LIMIT) {
            Ok(message) => endpoint.send(&message).unwrap(),
            Err(error) => {
                assert!(
                    matches!(error, Error::Disconnected(CloseReason::PeerClosed)),
                    "{error:?}"
                );
                return;
            }
        }
    }
}

fn ask(endpoint: &Endpoint) {
    for size in [0, 1, 64, 4096, 16384] {
        for round in 0..100_usize {
            let message: Vec<u8> = (0..size).map(|i| (i * 3 + round) as u8).collect();
            endpoint.send(&message).unwrap();
            assert_eq!(
                *endpoint.recv_timeout(TIME_LIMIT).unwrap(),
                *message,
                "{size} bytes, round {round}"
            );
        }
    }
    endpoint.close().unwrap();
}

#[test]
fn echoed_messages_are_unchanged() {
    for (port, polling) in [
        (7501, Polling::Event),
        (7502, Polling::default()),
        (7503, Polling::Busy),
    ] {
        let mut config = Config::default();
        config.polling = polling;
        on_two_hosts(port, &config, |e| echo(&e), |e| ask(&e));
    }
}

#[test]
fn large_messages_keep_order_in_both_directions() {
    let sizes = [1, 20_000, 3 << 20, 100, 1 << 20, 0, 70_000];
    let talk = |endpoint: Endpoint, closes: bool| {
        let sender = thread::spawn({
            let endpoint = endpoint.clone();
            move || {
                for number in 0..21 {
                    let message = pattern(number, sizes[number as usize % sizes.len()]);
                    if number % 2 == 0 {
                        endpoint.send(&message).unwrap();
                    } else {
                        let mut buffer = SendBuffer::new(&endpoint, message.len()).unwrap();
                        buffer.copy_from_slice(&message);
                        endpoint.send(buffer).unwrap();
                    }
                }
                endpoint.flush_timeout(TIME_LIMIT).unwrap();
            }
        });
        for number in 0..21 {
            let expected = pattern(number, sizes[number as usize % sizes.len()]);
            let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
            assert!(*message == *expected, "message {number}");
        }
        sender.join().unwrap();
        if closes {
            endpoint.close().unwrap();
        } else {
            let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
            assert!(
                matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
                "{end:?}"
            );
        }
    };
    on_two_hosts(
        7520,
        &Config::default(),
        |e| talk(e, false),
        |e| talk(e, true),
    );
}

#[test]
fn one_sided_operations_reach_the_other_hosts_memory() {
    let owner = |endpoint: Endpoint| {
        let region = endpoint
            .one_sided()
            .region(1 << 20, RemoteAccess::ALL)
            .unwrap();
        region.copy_in(0, &pattern(1, 1 << 20));
        endpoint.send(&region.remote().to_bytes()).unwrap();
        let able = endpoint.info().capabilities.unwrap();
        match endpoint.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::Immediate(immediate) => assert_eq!(immediate.imm_data(), 7),
            Completion::Received(message) if !able.write_with_imm => {
                assert_eq!(*message, *b"written");
            }
            other => panic!("{other:?}"),
        }
        let mut written = vec![0; 5000];
        region.copy_out(100, &mut written);
        assert!(written == pattern(2, 5000));
        if able.atomic {
            let mut number = [0; 8];
            region.copy_out(8192, &mut number);
            assert_eq!(u64::from_ne_bytes(number), 42);
        }
        let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
        assert!(
            matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
            "{end:?}"
        );
    };
    let user = |endpoint: Endpoint| {
        let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        let remote = RemoteRegion::from_bytes(message.as_ref().try_into().unwrap());
        let next = || endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
        let here = endpoint
            .one_sided()
            .region(1 << 20, RemoteAccess::NONE)
            .unwrap();
        endpoint
            .one_sided()
            .read(&here, 0..1 << 20, &remote, 0, 1)
            .unwrap();
        assert!(matches!(next(), Completion::Read(1)));
        let mut read = vec![0; 1 << 20];
        here.copy_out(0, &mut read);
        assert!(read == pattern(1, 1 << 20));
        let able = endpoint.info().capabilities.unwrap();
        if applies(able.atomic, "atomic operations") {
            let before = u64::from_ne_bytes(read[8192..8200].try_into().unwrap());
            endpoint
                .one_sided()
                .compare_swap(&here, 0, &remote, 8192, before, 40, 2)
                .unwrap();
            assert!(matches!(next(), Completion::Fetched { id: 2, value } if value == before));
            endpoint
                .one_sided()
                .fetch_add(&here, 0, &remote, 8192, 2, 3)
                .unwrap();
            assert!(matches!(next(), Completion::Fetched { id: 3, value: 40 }));
        }
        here.copy_in(0, &pattern(2, 5000));
        if applies(able.write_with_imm, "writes with immediate data") {
            endpoint
                .one_sided()
                .write_with_imm(&here, 0..5000, &remote, 100, 7, 4)
                .unwrap();
            assert!(matches!(next(), Completion::Written(4)));
        } else {
            endpoint
                .one_sided()
                .write(&here, 0..5000, &remote, 100, 4)
                .unwrap();
            assert!(matches!(next(), Completion::Written(4)));
            endpoint.send(b"written").unwrap();
        }
        endpoint.close().unwrap();
    };
    on_two_hosts(7521, &Config::default(), owner, user);
}

#[test]
fn both_directions_flow_at_once() {
    let flow = |endpoint: Endpoint, closes: bool| {
        let sender = thread::spawn({
            let endpoint = endpoint.clone();
            move || {
                (0..3000_u32).for_each(|i| {
                    endpoint
                        .send(&[&i.to_le_bytes()[..], &[7; 2000]].concat())
                        .unwrap()
                })
            }
        });
        for i in 0..3000_u32 {
            let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!((message.len(), &message[..4]), (2004, &i.to_le_bytes()[..]));
        }
        sender.join().unwrap();
        if closes {
            endpoint.close().unwrap();
        } else {
            let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
            assert!(
                matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
                "{end:?}"
            );
        }
    };
    let config = Config::default();
    on_two_hosts(7504, &config, |e| flow(e, false), |e| flow(e, true));
}

#[test]
fn connections_that_share_receives_flow_side_by_side() {
    const CONNECTIONS: usize = 20;
    const MESSAGES: u64 = 100;
    let lab = DeviceTest::start();
    let mut config = Config::default();
    // There are fewer shared receives than the full windows of all connections need together.
    config.shared_receive = Some(CONNECTIONS as u32 * 34);
    config.eager_size = Some(1024);
    config.connect_timeout = TIME_LIMIT;
    config.keepalive_timeout = TIME_LIMIT;
    config.close_timeout = TIME_LIMIT;
    let engine = Engine::new().unwrap();
    let endpoints: Vec<Endpoint> = if lab.host == "a" {
        let listener = Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind(lab.at(7580))
            .unwrap();
        (0..CONNECTIONS)
            .map(|_| listener.accept_timeout(TIME_LIMIT).unwrap())
            .collect()
    } else {
        let connector = Connector::new()
            .config(&config)
            .engine(&engine)
            .retry_refused(true);
        (0..CONNECTIONS)
            .map(|_| connector.connect(lab.peer_at(7580)).unwrap())
            .collect()
    };
    let sending: Vec<_> = endpoints
        .iter()
        .cloned()
        .map(|endpoint| {
            thread::spawn(move || {
                for number in 0..MESSAGES {
                    let message = pattern(number, (number * 37 % 3000) as usize);
                    endpoint.send(&message).unwrap();
                }
            })
        })
        .collect();
    // One thread receives for all connections, so at any time most connections have unread
    // messages.
    for number in 0..MESSAGES {
        for endpoint in &endpoints {
            let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!(*message, pattern(number, (number * 37 % 3000) as usize));
        }
    }
    for sending in sending {
        sending.join().unwrap();
    }
    for endpoint in endpoints {
        if lab.host == "b" {
            endpoint.close().unwrap();
        } else {
            let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
            assert!(
                matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
                "{end}"
            );
        }
    }
}

#[test]
fn an_aborting_listener_is_noticed() {
    on_two_hosts(
        7505,
        &Config::default(),
        |endpoint| {
            assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"go");
            endpoint.abort(5);
            assert!(matches!(
                endpoint.recv(),
                Err(Error::Disconnected(CloseReason::LocallyAborted))
            ));
        },
        |endpoint| {
            endpoint.send(b"go").unwrap();
            let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
            assert!(
                matches!(end, Error::Disconnected(CloseReason::PeerAborted(5))),
                "{end:?}"
            );
        },
    );
}

/// Returns true if the connection has ended because the peer does not answer: either keepalive has
/// timed out, or the device has used up its retries.
fn is_peer_silent(end: &Error) -> bool {
    matches!(
        end,
        Error::Disconnected(
            CloseReason::KeepaliveTimeout
                | CloseReason::WorkRequest {
                    status: WcStatus::RETRY_EXC_ERR,
                    ..
                }
        )
    )
}

/// The time limit for detecting a peer that does not answer. It is much longer than the timeouts
/// configured below, and much shorter than the default timeouts. The test therefore fails if the
/// configured timeouts have no effect.
const DETECTION_LIMIT: Duration = Duration::from_secs(20);

/// Returns a configuration with which keepalive detects a lost peer before the device does.
fn probing() -> Config {
    let mut config = Config::default();
    config.connect_timeout = TIME_LIMIT;
    config.keepalive_interval = Some(Duration::from_secs(1));
    config.keepalive_timeout = Duration::from_secs(3);
    config.rdma.ack_timeout = Some(20);
    config
}

/// Returns a configuration with which both keepalive and the device detect a lost peer early.
/// Either of them can detect it first.
fn fast_detection() -> Config {
    let mut config = probing();
    config.rdma.ack_timeout = Some(14);
    config.rdma.retry_count = 2;
    config
}

/// Establishes an idle connection on port `port` and a busy connection on port `port + 1`. Each
/// connection has its own engine, because an engine's thread can be blocked for 50 s in the call
/// that destroys a queue pair. The kernel can block this call while packets of software RoCE are
/// stuck in a network device that is down.
fn idle_and_busy(lab: &Lab, port: u16) -> [Endpoint; 2] {
    let configs = [(port, probing()), (port + 1, fast_detection())];
    if lab.host == "a" {
        let listeners = configs.map(|(port, config)| {
            Listener::builder()
                .config(&config)
                .engine(&Engine::new().unwrap())
                .bind(lab.at(port))
                .unwrap()
        });
        listeners.map(|listener| listener.accept_timeout(TIME_LIMIT).unwrap())
    } else {
        configs.map(|(port, config)| {
            let engine = Engine::new().unwrap();
            let connector = Connector::new()
                .config(&config)
                .engine(&engine)
                .retry_refused(true);
            connector.connect(lab.peer_at(port)).unwrap()
        })
    }
}

/// Sends until a send fails. Returns the error.
fn send_on(endpoint: &Endpoint) -> Error {
    loop {
        if let Err(error) = endpoint.send(&[7; 1000]) {
            return error;
        }
    }
}

/// Sends continuously on the busy connection, and sends "now" on the idle connection. The other
/// host then causes the fault. Checks that both connections end within [`DETECTION_LIMIT`].
fn check_detection_time(idle: Endpoint, busy: Endpoint) {
    let sender = thread::spawn(move || send_on(&busy));
    idle.send(b"now").unwrap();
    let start = Instant::now();
    let end = idle.recv_timeout(TIME_LIMIT).unwrap_err();
    assert!(
        matches!(end, Error::Disconnected(CloseReason::KeepaliveTimeout)),
        "{end:?}"
    );
    let end = sender.join().unwrap();
    assert!(is_peer_silent(&end), "{end:?}");
    assert!(start.elapsed() < DETECTION_LIMIT, "{:?}", start.elapsed());
}

/// Starts a thread that receives on the busy connection until the connection ends. Then waits until
/// "now" arrives on the idle connection.
fn start_receiver(idle: &Endpoint, busy: Endpoint) -> JoinHandle<Error> {
    let receiver = thread::spawn(move || {
        loop {
            if let Err(error) = busy.recv() {
                return error;
            }
        }
    });
    assert_eq!(*idle.recv_timeout(TIME_LIMIT).unwrap(), *b"now");
    receiver
}

/// Brings down the network device under the RDMA device.
fn cut_link(lab: &Lab) {
    set_link(&network_device(lab), "down");
}

/// Returns the name of the network device under the RDMA device.
fn network_device(lab: &Lab) -> String {
    let path = format!(
        "/sys/class/infiniband/{}/ports/1/gid_attrs/ndevs/0",
        lab.device
    );
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Sets the state of a network device to `up` or `down`.
fn set_link(device: &str, state: &str) {
    run(Command::new("ip").args(["link", "set", device, state]));
}

/// Drops all packets that leave through the network device. Dropping this value ends the loss.
struct PacketLoss(&'static str);

impl PacketLoss {
    fn begin(device: &'static str) -> Self {
        let change = ["qdisc", "replace", "dev", device, "root", "netem"];
        run(Command::new("tc").args(change).args(["loss", "100%"]));
        Self(device)
    }
}

impl Drop for PacketLoss {
    fn drop(&mut self) {
        run(Command::new("tc").args(["qdisc", "del", "dev", self.0, "root"]));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "it takes host b's network down; integration/test runs it in a boot of its own"]
fn a_cut_link_is_noticed_on_both_sides() {
    let lab = DeviceTest::start();
    let [idle, busy] = idle_and_busy(&lab, 7510);
    if lab.host == "a" {
        check_detection_time(idle, busy);
    } else {
        let receiver = start_receiver(&idle, busy);
        let start = Instant::now();
        cut_link(&lab);
        let ends = [
            idle.recv_timeout(TIME_LIMIT).unwrap_err(),
            receiver.join().unwrap(),
        ];
        for end in ends {
            // If the device has no route to the peer, a work request can fail, or the kernel can
            // disconnect, before keepalive detects the cut.
            assert!(
                matches!(
                    end,
                    Error::Disconnected(
                        CloseReason::KeepaliveTimeout
                            | CloseReason::WorkRequest { .. }
                            | CloseReason::PeerDisconnected
                    )
                ),
                "{end:?}"
            );
        }
        assert!(start.elapsed() < DETECTION_LIMIT, "{:?}", start.elapsed());
    }
}

#[test]
#[ignore = "host b does not survive it; integration/test runs it in a boot of its own"]
fn a_killed_host_is_noticed() {
    let lab = DeviceTest::start();
    let [idle, busy] = idle_and_busy(&lab, 7512);
    if lab.host == "a" {
        check_detection_time(idle, busy);
    } else {
        let receiver = start_receiver(&idle, busy);
        // Restart the host immediately, so that it sends no disconnect.
        fs::write("/proc/sysrq-trigger", "b").unwrap();
        panic!(
            "the host did not restart; the connection ended with: {}",
            receiver.join().unwrap()
        );
    }
}

/// Returns message number `number`. Every 50th message is above the eager size.
fn numbered(number: u32) -> Vec<u8> {
    let len = if number % 50 == 7 { 100_000 } else { 60 };
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(4 + len, number as u8);
    bytes
}

fn is_numbered(message: &[u8], number: u32) {
    let expected = numbered(number);
    let first = message.iter().zip(&expected).position(|(a, b)| a != b);
    assert!(
        *message == *expected,
        "message {number}: {} bytes, begins with {:?}, differs at {first:?}",
        message.len(),
        message.get(..4)
    );
}

fn receives_numbers(endpoint: &Endpoint) {
    let mut number = 0;
    while endpoint.statistics().resumes < 2 || number < 1000 {
        let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        is_numbered(&message, number);
        number += 1;
    }
    endpoint.send(&number.to_be_bytes()).unwrap();
    loop {
        let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        if *message == *b"last" {
            break;
        }
        is_numbered(&message, number);
        number += 1;
    }
}

/// Sends numbered messages until the flag is set.
fn sends_numbers(endpoint: &Endpoint, is_over: &AtomicBool) {
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        endpoint.send(&numbered(number)).unwrap();
        number += 1;
        if number % 16 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The losses and resumptions of a session, and whether the peer's message has arrived.
#[derive(Default)]
struct Interruptions {
    losses: usize,
    resumptions: Vec<u64>,
    has_received: bool,
}

impl Interruptions {
    fn is_suspended(&self) -> bool {
        self.losses > self.resumptions.len()
    }

    /// Waits for the next completion, and records it.
    fn next(&mut self, endpoint: &Endpoint) {
        let completion = endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
        self.record(completion, endpoint);
    }

    fn record(&mut self, completion: Completion, endpoint: &Endpoint) {
        match completion {
            Completion::Received(_) => self.has_received = true,
            Completion::Suspended { reason } => {
                assert!(reason.is_loss(), "{reason}");
                self.losses += 1;
            }
            Completion::Resumed {
                number, transport, ..
            } => {
                assert_eq!(transport, endpoint.info().transport);
                self.resumptions.push(number);
                assert_eq!(self.losses, self.resumptions.len());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_session_survives_cuts_of_the_link() {
    let config = Config::default().with(|config| {
        config.resume = TIME_LIMIT;
        config.close_timeout = TIME_LIMIT;
        config.keepalive_interval = Some(Duration::from_millis(300));
        config.keepalive_timeout = Duration::from_millis(700);
    });
    let lab = DeviceTest::start();
    let port = 7514;
    if lab.host == "a" {
        let bound = Listener::builder()
            .config(&config)
            .bind(lab.at(port))
            .unwrap();
        let endpoint = bound.accept_timeout(TIME_LIMIT).unwrap();
        receives_numbers(&endpoint);
        endpoint.send(b"all came").unwrap();
        assert!(matches!(
            endpoint.recv_timeout(TIME_LIMIT),
            Err(Error::Disconnected(CloseReason::PeerClosed))
        ));
        println!("host a: {}", endpoint.statistics());
        return;
    }
    let mut config = config;
    config.connect_timeout = TIME_LIMIT;
    let connector = Connector::new().config(&config).retry_refused(true);
    let endpoint = connector.connect(lab.peer_at(port)).unwrap();
    // A guest of the lab has only this network device.
    let device = "eth0";
    let is_over = AtomicBool::new(false);
    let mut seen = Interruptions::default();
    thread::scope(|scope| {
        let stop = Stop(&is_over);
        let sender = scope.spawn(|| sends_numbers(&endpoint, &is_over));
        for outage in [100, 2000, 6000] {
            thread::sleep(Duration::from_millis(500));
            let loss = PacketLoss::begin(device);
            // An earlier cut may have caused these completions.
            while let Some(completion) = endpoint.try_next_completion().unwrap() {
                seen.record(completion, &endpoint);
            }
            // A connection can survive the short cut. A long cut lasts until its loss is noticed,
            // because keepalive does not count time in which this process does not run. The session
            // may be suspended already, and then no other loss follows.
            while outage > 1000 && !seen.is_suspended() {
                seen.next(&endpoint);
            }
            thread::sleep(Duration::from_millis(outage));
            drop(loss);
            while seen.is_suspended() {
                seen.next(&endpoint);
            }
        }
        while !seen.has_received {
            seen.next(&endpoint);
        }
        drop(stop);
        sender.join().unwrap();
        endpoint.send(b"last").unwrap();
        assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"all came");
    });
    assert!(seen.resumptions.len() >= 2 && seen.resumptions.is_sorted());
    println!(
        "host b: {}; {:?}",
        endpoint.statistics(),
        endpoint.statistics()
    );
    endpoint.close().unwrap();
}
