//! Tests of bridges that resume their connections. A proxy cuts the connections between the
//! bridges, which use TCP.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
};

use toolbox::{Bridge, Proxy, TIME_LIMIT, await_line, network::reserved_address};

use crate::stage::{Service, connect, is_reset, random, reset, start};

/// A service, two bridges, and a proxy between the bridges.
struct BridgePair {
    near: Bridge,
    proxy: Proxy,
    far: Bridge,
    service: SocketAddr,
}

impl BridgePair {
    fn to(service: SocketAddr) -> Self {
        Self::with(service, &["--resume", "600"], &["--resume", "600s"])
    }

    fn with(service: SocketAddr, near: &[&str], far: &[&str]) -> Self {
        let far = bridge_of(service, reserved_address(), far);
        let proxy = Proxy::start(far.address).unwrap();
        let between = format!("rdmsg+tcp://{}", proxy.address);
        let near = start("tcp://127.0.0.1:0", &between, near);
        Self {
            near,
            proxy,
            far,
            service,
        }
    }

    /// Cuts the connection between the bridges, and waits until the near bridge reports the loss.
    fn cut(&mut self) {
        self.proxy.cut();
        await_line(
            &mut self.near.process,
            "was lost, and its session is suspended",
        );
    }

    fn restore(&mut self) {
        self.proxy.restore();
        await_line(&mut self.near.process, "resumed over TCP after");
    }

    /// Waits until both bridges report this text about their connections.
    fn both_report(&mut self, connections: &str) {
        self.near.reports(connections).unwrap();
        self.far.reports(connections).unwrap();
    }
}

fn bridge_of(service: SocketAddr, address: SocketAddr, more: &[&str]) -> Bridge {
    let (listen, to) = (format!("rdmsg+tcp://{address}"), format!("tcp://{service}"));
    start(&listen, &to, more)
}

/// Opens a connection through the bridges, and exchanges bytes in both directions. Returns the
/// sockets of the client and of the service.
fn conversation(bridges: &BridgePair, service: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = connect(bridges.near.address);
    let (mut server, _) = service.accept().unwrap();
    server.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    passes(&mut client, &mut server, b"hello");
    passes(&mut server, &mut client, b"welcome");
    (client, server)
}

fn passes(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    arrives(to, bytes);
}

fn arrives(to: &mut TcpStream, bytes: &[u8]) {
    let mut arrived = vec![0; bytes.len()];
    to.read_exact(&mut arrived).unwrap();
    assert_eq!(arrived, bytes);
}

fn ends(to: &mut TcpStream) {
    assert_eq!(to.read(&mut [0]).unwrap(), 0);
}

fn listener() -> (TcpListener, SocketAddr) {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    (service, address)
}

#[test]
fn client_notices_no_cut_between_the_bridges() {
    const LEN: usize = 5_000_000;
    let service = Service::echo();
    let mut bridges = BridgePair::to(service.address);
    let mut client = connect(bridges.near.address);
    let sent = random(11, LEN);
    let mut writer = client.try_clone().unwrap();
    for part in sent.chunks(LEN / 5) {
        let mut echoed = vec![0; part.len()];
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(part).unwrap());
            client.read_exact(&mut echoed[..part.len() / 2]).unwrap();
            // The second half of the bytes is still in flight, or a bridge stores it until the
            // connection is resumed.
            bridges.cut();
            bridges.restore();
            client.read_exact(&mut echoed[part.len() / 2..]).unwrap();
        });
        assert!(echoed == part);
    }
    client.shutdown(Shutdown::Write).unwrap();
    ends(&mut client);
    bridges.both_report("0 open, 1 total, 0 refused, 0 failed");
    bridges.both_report("bytes: 5000000 to the target, 5000000 back");
}

#[test]
fn half_closes_pass_behind_a_cut() {
    let (service, address) = listener();
    let mut bridges = BridgePair::to(address);
    let (mut client, mut server) = conversation(&bridges, &service);
    bridges.cut();
    client.write_all(b"last question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    bridges.restore();
    arrives(&mut server, b"last question");
    ends(&mut server);
    // The direction from the server to the client is still open, and must survive a second cut.
    bridges.cut();
    server.write_all(b"last answer").unwrap();
    drop(server);
    bridges.restore();
    arrives(&mut client, b"last answer");
    ends(&mut client);
    bridges.both_report("0 open, 1 total, 0 refused, 0 failed");
}

#[test]
fn service_reset_during_cut_resets_client() {
    let (service, address) = listener();
    let mut bridges = BridgePair::to(address);
    let (mut client, server) = conversation(&bridges, &service);
    bridges.cut();
    reset(server);
    bridges
        .far
        .reports("0 open, 1 total, 0 refused, 1 failed")
        .unwrap();
    bridges.proxy.restore();
    assert!(is_reset(&mut client));
    assert!(bridges.near.says("the other bridge has forgotten it"));
    bridges.both_report("0 open, 1 total, 0 refused, 1 failed");
}

#[test]
fn client_reset_during_cut_resets_service() {
    let (service, address) = listener();
    // While the connection is cut, the near bridge cannot forward the reset to the far bridge. The
    // far bridge resets the connection to the service when the far bridge's `--resume` time has
    // passed, which is 1 s.
    let mut bridges = BridgePair::with(address, &["--resume", "600"], &["--resume", "1"]);
    let (client, mut server) = conversation(&bridges, &service);
    bridges.cut();
    reset(client);
    bridges
        .near
        .reports("0 open, 1 total, 0 refused, 1 failed")
        .unwrap();
    assert!(is_reset(&mut server));
    bridges.both_report("0 open, 1 total, 0 refused, 1 failed");
}

#[test]
fn restarted_bridge_resets_the_client_and_says_why() {
    let (service, address) = listener();
    let mut bridges = BridgePair::to(address);
    let (mut client, mut server) = conversation(&bridges, &service);
    bridges.cut();
    bridges.far.process.kill().unwrap();
    ends_somehow(&mut server);
    bridges.far = bridge_of(bridges.service, bridges.far.address, &["--resume", "600"]);
    bridges.proxy.restore();
    assert!(is_reset(&mut client));
    assert!(
        bridges
            .near
            .says("the connection was lost, and the other bridge has forgotten it")
    );
    bridges
        .near
        .reports("0 open, 1 total, 0 refused, 1 failed")
        .unwrap();
    // A new client can connect.
    conversation(&bridges, &service);
}

fn ends_somehow(stream: &mut TcpStream) {
    // The kernel reports the end of file or an error, depending on the socket's state.
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
}

#[test]
fn bridges_without_the_option_reset_at_once() {
    let (service, address) = listener();
    for (near, far) in [
        (vec![], vec!["--resume", "600"]),
        (vec!["--resume", "600"], vec![]),
    ] {
        let mut bridges = BridgePair::with(address, &near, &far);
        let (mut client, mut server) = conversation(&bridges, &service);
        bridges.proxy.cut();
        assert!(is_reset(&mut client));
        assert!(is_reset(&mut server));
        bridges.both_report("0 open, 1 total, 0 refused, 1 failed");
    }
}
