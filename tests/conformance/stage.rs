//! Helpers that create both ends of a connection on this machine.

use std::{
    env, fs,
    io::{self, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use rdmsg::{
    Config, Connector, Endpoint, Engine, Error, Listener, ListenerBuilder, RequestListener,
    Transport,
};

/// A timeout that is never reached, even on a busy machine. No test waits for it to expire.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The environment variable that selects the transport if the configuration selects none.
pub(crate) const TRANSPORT: &str = "RDMSG_TRANSPORT";

/// Returns an address of this machine, and the transport of connections to this address.
pub(crate) fn ip_and_transport() -> (IpAddr, Transport) {
    match env::var("LAB_ADDR") {
        Ok(addr) => (addr.parse().unwrap(), Transport::Rdma),
        Err(_) if env::var_os(TRANSPORT).is_some_and(|name| name == "memory") => {
            ([127, 0, 0, 1].into(), Transport::Memory)
        }
        Err(_) => ([127, 0, 0, 1].into(), Transport::Tcp),
    }
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
        let (connector, addr) = (self.connector.clone(), self.listener.local_addr());
        let connecting = thread::spawn(move || connector.connect(addr).unwrap());
        let accepted = self.listener.accept_timeout(TIME_LIMIT).unwrap();
        let connected = connecting.join().unwrap();
        assert_eq!(
            connected.info().transport,
            ip_and_transport().1,
            "the connection must use the expected transport"
        );
        assert_eq!(accepted.info().transport, ip_and_transport().1);
        (connected, accepted)
    }
}

/// Returns `config`, with a longer connect timeout if it has the default one. On a busy machine, a
/// connect may take longer than the default.
fn with_time_to_connect(config: &Config) -> Config {
    config.clone().with(|config| {
        if config.connect_timeout == Config::default().connect_timeout {
            config.connect_timeout = TIME_LIMIT;
        }
    })
}

/// Returns `config`, with longer timeouts if it has the default ones. On a busy machine, a living
/// peer may need more than the default time to answer, and concurrent connects may take longer than
/// the default.
fn patient(config: &Config) -> Config {
    with_time_to_connect(config).with(|config| {
        if config.keepalive_timeout == Config::default().keepalive_timeout {
            config.keepalive_timeout = TIME_LIMIT;
        }
    })
}

/// Connects with the default configuration, except for a longer connect timeout.
pub(crate) fn connect(address: SocketAddr) -> Result<Endpoint, Error> {
    let config = with_time_to_connect(&Config::default());
    Connector::new().config(&config).connect(address)
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
