//! Tests ports that the kernel chooses. The connection manager chooses ports without regard to
//! TCP's ports. But iWARP uses TCP's ports, and a listener on both RDMA and TCP needs a port that
//! is free on both transports.

use std::{
    fs, io, iter,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
    thread,
};

use rdmsg::{
    Connector, Engine, Error, Listener, Transport, TransportChoice,
    rsocket::{self, Stream},
};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, patient};

/// The range from which the kernel chooses ports while a [`Ports`] exists.
const RANGE: RangeInclusive<u16> = 47000..=47199;
/// The number of attempts. TCP sockets occupy half of the ports. If the choice of the port ignored
/// these sockets, at least one attempt would almost certainly choose an occupied port.
const TRIES: usize = 20;

/// A small range of ports, in which TCP sockets occupy every other port. Dropping this value
/// restores the previous range.
struct Ports {
    before: String,
    taken: Vec<TcpListener>,
}

impl Ports {
    const FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

    fn new(lab: &Lab) -> Self {
        let mut this = Self {
            before: fs::read_to_string(Self::FILE).unwrap(),
            taken: Vec::new(),
        };
        fs::write(Self::FILE, format!("{} {}", RANGE.start(), RANGE.end())).unwrap();
        this.taken.extend(
            RANGE
                .step_by(2)
                .filter_map(|port| listen_if_free(lab, port)),
        );
        assert!(
            this.taken.len() > RANGE.len() / 3,
            "TCP sockets must occupy more than a third of the range"
        );
        this
    }

    /// Returns true if one of the TCP sockets occupies `port`. Panics if `port` is not in the
    /// range.
    fn is_occupied(&self, port: u16) -> bool {
        assert!(RANGE.contains(&port), "{port}");
        let is_it = |taken: &TcpListener| taken.local_addr().unwrap().port() == port;
        self.taken.iter().any(is_it)
    }

    /// Reduces the range to two ports, and occupies both of them with TCP sockets.
    fn occupy_all(&mut self, lab: &Lab) {
        let ports = self
            .taken
            .iter()
            .map(|taken| taken.local_addr().unwrap().port());
        let next = ports.flat_map(|port| listen_if_free(lab, port + 1)).next();
        let next = next.expect("at least one of 100 ports must be free");
        let last = next.local_addr().unwrap().port();
        fs::write(Self::FILE, format!("{} {last}", last - 1)).unwrap();
        self.taken.push(next);
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        fs::write(Self::FILE, &self.before).unwrap();
    }
}

/// Listens on a port. Returns `None` if the port is in use: a TCP connection that has ended can
/// still occupy it.
fn listen_if_free(lab: &Lab, port: u16) -> Option<TcpListener> {
    match TcpListener::bind(lab.at(port)) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        taken => Some(taken.unwrap()),
    }
}

fn bind(lab: &Lab, transport: TransportChoice, engine: &Engine) -> Result<Listener, Error> {
    bind_at(lab.at(0), transport, engine)
}

fn bind_at(at: SocketAddr, transport: TransportChoice, engine: &Engine) -> Result<Listener, Error> {
    let mut config = patient();
    config.transport = transport;
    Listener::builder().config(&config).engine(engine).bind(at)
}

fn all(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

fn all_v6(port: u16) -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, port).into()
}

/// Returns true if no TCP connection occupies the port of `listener`, an RDMA listener. A TCP
/// connection of an earlier test occupies its port for up to a minute after the connection has
/// ended. Always returns true on iWARP: iWARP uses TCP's ports, so the kernel has chosen a port
/// that was free for TCP.
fn is_free_over_tcp(lab: &Lab, listener: &Listener) -> bool {
    let port = listener.local_addr().port();
    lab.is_iwarp() || TcpListener::bind(all_v6(port)).is_ok()
}

/// A listener occupies its port over RDMA and over TCP, even if it uses only one transport. If the
/// listener occupied only one of these ports, another program could listen on the same port over
/// the other transport, and a peer with `TransportChoice::Auto` would reach either of the two
/// programs.
#[test]
fn port_of_one_transport_is_in_use_on_both() {
    let lab = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let at: [fn(&Lab, u16) -> SocketAddr; 3] = [
        |lab, port| lab.at(port),
        |_, port| all(port),
        |_, port| all_v6(port),
    ];
    for of_other in at {
        for transport in [TransportChoice::Rdma, TransportChoice::Tcp] {
            let other = iter::repeat_with(|| bind_at(of_other(&lab, 0), transport, &engine))
                .map(Result::unwrap)
                .find(|other| transport == TransportChoice::Tcp || is_free_over_tcp(&lab, other))
                .unwrap();
            let port = other.local_addr().port();
            for of_this in at {
                let address = of_this(&lab, port);
                let error = bind_at(address, TransportChoice::Auto, &engine).unwrap_err();
                let text = error.to_string();
                let over = if lab.is_iwarp() {
                    "address in use over ".into()
                } else {
                    format!("address in use over {}", other.transports()[0])
                };
                assert!(
                    text.contains(&over),
                    "{transport:?} on {}, then {address}: {text}",
                    other.local_addr()
                );
                assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AddrInUse);
            }
            drop(other);
            let again = bind_at(lab.at(port), TransportChoice::Auto, &engine).unwrap();
            assert_eq!(again.transports().len(), 2 - usize::from(lab.is_iwarp()));
        }
    }
}

/// No peer can connect to a loopback address over RDMA, so an RDMA listener does not occupy its
/// port on loopback addresses. On iWARP it does, because iWARP uses TCP's ports.
#[test]
fn port_of_rdma_is_free_on_a_loopback_address() {
    let lab = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let other = bind_at(all(0), TransportChoice::Rdma, &engine).unwrap();
    let address = (Ipv4Addr::LOCALHOST, other.local_addr().port()).into();
    let bound = bind_at(address, TransportChoice::Auto, &engine);
    if lab.is_iwarp() {
        let error = io::Error::from(bound.unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    } else {
        assert_eq!(bound.unwrap().transports(), [Transport::Tcp]);
    }
}

#[test]
fn listener_picks_port_free_over_tcp_if_required() {
    let lab = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let mut ports = Ports::new(&lab);
    for _ in 0..TRIES {
        for transport in [TransportChoice::Rdma, TransportChoice::Auto] {
            let listener = bind(&lab, transport, &engine).unwrap();
            let port = listener.local_addr().port();
            let on_both = transport == TransportChoice::Auto && !lab.is_iwarp();
            let transports = [Transport::Rdma, Transport::Tcp];
            let transports = &transports[..1 + usize::from(on_both)];
            assert_eq!(listener.transports(), transports, "{transport:?} on {port}");
            assert!(
                !(ports.is_occupied(port) && (on_both || lab.is_iwarp())),
                "{port}"
            );
        }
        let listener = rsocket::Listener::bind(lab.at(0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!(ports.is_occupied(port) && lab.is_iwarp()), "{port}");
    }
    ports.occupy_all(&lab);
    let transport = if lab.is_iwarp() {
        TransportChoice::Rdma
    } else {
        TransportChoice::Auto
    };
    let error = bind(&lab, transport, &engine).unwrap_err();
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn connector_uses_port_free_over_tcp_if_required() {
    let lab = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let listener = bind(&lab, TransportChoice::Rdma, &engine).unwrap();
    let accepted = listener.accepted();
    let server = rsocket::Listener::bind(lab.at(0)).unwrap();
    let address = server.local_addr().unwrap();
    let mut config = rsocket::Config::default();
    config.connect_timeout = TIME_LIMIT;
    let ports = Ports::new(&lab);
    thread::scope(|scope| {
        let streams = scope.spawn(|| {
            iter::repeat_with(|| server.accept().unwrap().0)
                .take(TRIES)
                .collect::<Vec<_>>()
        });
        // Keep the connections open, because the port of a closed connection stays occupied for a
        // while.
        let connections: Vec<_> = iter::repeat_with(|| {
            let connector = Connector::new().config(&patient()).engine(&engine);
            let endpoint = connector.connect(listener.local_addr()).unwrap();
            let stream = Stream::connect_with(address, &config).unwrap();
            for port in [
                endpoint.info().local_addr.port(),
                stream.local_addr().unwrap().port(),
            ] {
                assert!(!(ports.is_occupied(port) && lab.is_iwarp()), "{port}");
            }
            (endpoint, accepted.recv().unwrap().unwrap(), stream)
        })
        .take(TRIES)
        .collect();
        drop(connections);
        drop(streams.join().unwrap());
    });
}
