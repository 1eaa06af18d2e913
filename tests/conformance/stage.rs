//! Helpers that create both ends of a connection on this machine.

use std::{
    env, fs,
    io::{self, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
};

pub(crate) use common::TIME_LIMIT;
use common::{connect_and_accept, patient, with_time_to_connect};
use rdmsg::{
    Config, Connector, Endpoint, Engine, Listener, ListenerBuilder, RequestListener, Transport,
};

/// The environment variable that selects the transport if the configuration selects none.
pub(crate) const TRANSPORT: &str = "RDMSG_TRANSPORT";

/// Returns an address of this machine, and the transport of connections to this address.
pub(crate) fn ip_and_transport() -> (IpAddr, Transport) {
    let (ip, transport) = common::ip_and_transport();
    let is_memory = env::var_os(TRANSPORT).is_some_and(|name| name == "memory");
    match transport {
        Transport::Tcp if is_memory => (ip, Transport::Memory),
        transport => (ip, transport),
    }
}

/// Returns how often a test repeats a race: `normal`, or `over_rdma`, because the lab is slow.
pub(crate) fn rounds(normal: usize, over_rdma: usize) -> usize {
    if common::is_rdma() { over_rdma } else { normal }
}

/// Returns an address at which no program listens while the stream exists, because the stream has
/// taken its port.
pub(crate) fn unused_address() -> (SocketAddr, TcpStream) {
    let listener = TcpListener::bind((ip_and_transport().0, 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (stream.local_addr().unwrap(), stream)
}

/// Returns a new engine for connections over the transport of [`ip_and_transport`].
pub(crate) fn engine() -> Engine {
    match ip_and_transport().1 {
        Transport::Memory => Engine::in_memory().unwrap(),
        _ => Engine::new().unwrap(),
    }
}

/// A listener and a connector, which share one engine.
pub(crate) struct Stage {
    pub(crate) engine: Engine,
    pub(crate) listener: Listener,
    pub(crate) connector: Connector,
}

impl Stage {
    pub(crate) fn new(config: &Config) -> Self {
        Self::listening(config, |builder| builder)
    }

    /// Creates a stage like [`new`](Self::new), and calls `set` to configure the listener.
    pub(crate) fn listening(
        config: &Config,
        set: impl FnOnce(ListenerBuilder) -> ListenerBuilder,
    ) -> Self {
        let engine = engine();
        let config = &patient(config);
        let builder = set(Listener::builder().config(config).engine(&engine));
        let listener = builder.bind((ip_and_transport().0, 0)).unwrap();
        let connector = Connector::new().config(config).engine(&engine);
        Self {
            engine,
            listener,
            connector,
        }
    }

    /// Returns another listener, whose requests the test accepts or rejects.
    pub(crate) fn requests(&self, config: &Config) -> RequestListener {
        Listener::builder()
            .config(&with_time_to_connect(config))
            .engine(&self.engine)
            .bind_requests((ip_and_transport().0, 0))
            .unwrap()
    }

    /// Establishes a connection, and returns both ends, the connecting end first.
    pub(crate) fn pair(&self) -> (Endpoint, Endpoint) {
        let (connected, accepted) = connect_and_accept(&self.connector, &self.listener);
        assert_eq!(
            connected.info().transport,
            ip_and_transport().1,
            "the connection must use the expected transport"
        );
        assert_eq!(accepted.info().transport, ip_and_transport().1);
        (connected, accepted)
    }
}

/// Returns both ends of a connection with the configuration `config`, the connecting end first.
pub(crate) fn pair_with(config: &Config) -> (Endpoint, Endpoint) {
    Stage::new(config).pair()
}

pub(crate) fn pair() -> (Endpoint, Endpoint) {
    pair_with(&Config::default())
}

/// Returns a configuration with small buffers, so that tests reach the limits quickly.
pub(crate) fn small() -> Config {
    let mut config = patient(&Config::default());
    config.receive_window = Some(4);
    config.send_depth = Some(4);
    config.eager_size = Some(1000);
    config
}

/// If `able` is false, reports that the device lacks a capability that the calling test needs.
/// Writes the report directly to stderr, because the test harness captures the output of
/// `println!`. Panics if TCP, an in-memory connection, or a device other than iWARP lacks the
/// capability. Returns `able`.
pub(crate) fn supports_or_report(able: bool, capability: &str) -> bool {
    if !able {
        let device = env::var("LAB_DEV")
            .unwrap_or_else(|_| panic!("a transport other than RDMA must support {capability}"));
        let kind = format!("/sys/class/infiniband/{device}/node_type");
        let kind = fs::read_to_string(kind).unwrap();
        assert!(
            kind.contains("RNIC"),
            "{device} is not an iWARP device, so it must support {capability}: {kind}"
        );
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("{test} does not apply: the device lacks {capability}\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
    }
    able
}

/// Returns bytes whose values depend on their positions.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    pattern::sequence(0, len)
}
