//! Helpers shared by all test modules.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use nix::sys::signal::Signal;
use rdmsg::{Config, Engine, Transport, TransportChoice, tokio::Endpoint};
use services::{
    Result,
    net::Socket,
    options::{ClientOptions, Keepalive, ServerOptions},
    server::Server,
};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use toolbox::{Line, Process};

/// The time limit for each step of a test. It is long enough for a host with emulated processors.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The keepalive options for programs whose peer does not fail. The times are long, because replies
/// can be slow on a busy machine.
const PATIENT: Keepalive = Keepalive {
    keepalive_interval: 60_000,
    keepalive_timeout: 60_000,
    resume: 0,
};

/// Returns the keepalive options of a program that must detect the loss of its peer. The timeout is
/// long enough for a peer on a busy machine or with an emulated processor.
pub(crate) fn keepalive() -> Keepalive {
    Keepalive {
        keepalive_interval: 1000,
        keepalive_timeout: 5000,
        resume: 0,
    }
}

/// Returns the time within which a program must report a lost peer. The time is twice the sum of
/// the keepalive interval and the keepalive timeout, because a busy machine can delay the program.
pub(crate) fn bound() -> Duration {
    let Keepalive {
        keepalive_interval,
        keepalive_timeout,
        ..
    } = keepalive();
    Duration::from_millis(2 * (keepalive_interval + keepalive_timeout))
}

/// Returns an address of this host, and the transport of connections to it.
pub(crate) fn ip_and_transport() -> (IpAddr, Transport) {
    match env::var("LAB_ADDR") {
        Ok(addr) => (addr.parse().unwrap(), Transport::Rdma),
        Err(_) => ([127, 0, 0, 1].into(), Transport::Tcp),
    }
}

/// Returns a configuration that permits only the transport of [`ip_and_transport`].
pub(crate) fn config() -> Config {
    let transport = match ip_and_transport().1 {
        Transport::Tcp => TransportChoice::Tcp,
        _ => TransportChoice::Rdma,
    };
    Config::default().with(|c| c.transport = transport)
}

/// Runs a test with the time limit `TIME_LIMIT`.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // Box the test. With a generic type, the compiler would instantiate the runtime for each test.
    let test: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(test);
    runtime.block_on(async { timeout(TIME_LIMIT, test).await.expect("the test must end") });
}

/// A server in this process that listens over rdmsg and over plain TCP.
pub(crate) struct Service {
    rdmsg: SocketAddr,
    tcp: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

/// Creates a server that listens. The caller must accept the connections.
pub(crate) async fn server(keepalive: Keepalive) -> Server {
    let mut options = ServerOptions::at((ip_and_transport().0, 0).into());
    options.tcp = Some(([127, 0, 0, 1], 0).into());
    options.keepalive = keepalive;
    options.patience = TIME_LIMIT.as_secs();
    let stop = CancellationToken::new();
    Server::start_until(&options, stop).await.unwrap()
}

impl Service {
    /// Starts a server that runs `session` for each connection.
    pub(crate) async fn start<F, S>(session: F) -> Self
    where
        F: Fn(Socket, CancellationToken) -> S + Send + 'static,
        S: Future<Output = Result<()>> + Send + 'static,
    {
        let server = server(Keepalive::default()).await;
        Self::of(&server.local_addrs().unwrap(), server.stop(), async {
            server.serve(session).await
        })
    }

    /// Spawns `serving`, the future that accepts connections, and returns the handle of the server.
    pub(crate) fn of(
        addrs: &(SocketAddr, Option<SocketAddr>),
        stop: CancellationToken,
        serving: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Self {
        Self {
            rdmsg: addrs.0,
            tcp: addrs.1.unwrap(),
            stop,
            task: tokio::spawn(serving),
        }
    }

    /// Returns the options of a client over rdmsg and of a client over plain TCP.
    pub(crate) fn clients(&self) -> [ClientOptions; 2] {
        let mut plain = ClientOptions::to(self.tcp);
        plain.tcp = true;
        [ClientOptions::to(self.rdmsg), plain]
    }

    /// Returns the address on which the server listens over rdmsg.
    pub(crate) fn address(&self) -> SocketAddr {
        self.rdmsg
    }

    /// Connects to the server over rdmsg.
    pub(crate) async fn connect(&self) -> Socket {
        connect(&self.clients()[0]).await
    }

    /// Ends the server as a signal would, and waits until it has ended.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// Connects with these options, and asserts that the connection uses the expected transport.
pub(crate) async fn connect(options: &ClientOptions) -> Socket {
    let engine = Engine::shared().unwrap();
    let socket = Socket::connect(options, &engine).await.unwrap();
    if let Socket::Rdmsg(stream) = &socket {
        assert_eq!(
            stream.transport(),
            ip_and_transport().1,
            "the connection must use the transport of the test"
        );
    }
    socket
}

/// Connects to a message service, and asserts that the connection uses the expected transport.
pub(crate) async fn endpoint(address: SocketAddr, config: Config) -> Endpoint {
    let connector = rdmsg::Connector::new().config(&config);
    let endpoint = Endpoint::connect_with(&connector, address).await.unwrap();
    assert_eq!(
        endpoint.get_ref().info().transport,
        ip_and_transport().1,
        "the connection must use the transport of the test"
    );
    endpoint
}

/// A server or client in its own process.
pub(crate) struct Program(pub(crate) Process);

impl Program {
    /// Starts a server with these arguments. Replaces the argument `ADDR` with an address of this
    /// host and port 0. Returns the server, and the address and port on which it listens.
    pub(crate) fn serve(program: &str, words: &[&str]) -> (Self, SocketAddr) {
        Self::serve_with(program, words, &PATIENT)
    }

    /// Starts a server like [`serve`](Self::serve), with these keepalive options.
    pub(crate) fn serve_with(
        program: &str,
        words: &[&str],
        keepalive: &Keepalive,
    ) -> (Self, SocketAddr) {
        let mut server =
            Self::start_with(program, words, (ip_and_transport().0, 0).into(), keepalive);
        let listening = server.line("listening on ");
        let address = listening.parse().unwrap();
        (server, address)
    }

    /// Starts a program with these arguments. Replaces the argument `ADDR` with `address`.
    pub(crate) fn start(program: &str, words: &[&str], address: SocketAddr) -> Self {
        Self::start_with(program, words, address, &PATIENT)
    }

    fn start_with(
        program: &str,
        words: &[&str],
        address: SocketAddr,
        keepalive: &Keepalive,
    ) -> Self {
        let address = address.to_string();
        let words = words.iter().map(|word| match *word {
            "ADDR" => &address,
            word => word,
        });
        let interval = format!("--keepalive-interval={}", keepalive.keepalive_interval);
        let timeout = format!("--keepalive-timeout={}", keepalive.keepalive_timeout);
        let argv: Vec<_> = [program]
            .into_iter()
            .chain(words)
            .chain([interval.as_str(), timeout.as_str()])
            .collect();
        Self(Process::start(&argv).unwrap())
    }

    /// Waits for a line that starts with `beginning`, and returns the rest of the line.
    pub(crate) fn line(&mut self, beginning: &str) -> String {
        loop {
            match self.0.line(TIME_LIMIT) {
                Some(Line::Out(line)) if line.starts_with(beginning) => {
                    return line[beginning.len()..].to_owned();
                }
                Some(line) => println!("{line:?}"),
                None => panic!("the program has not printed {beginning:?}"),
            }
        }
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.0.signal(signal).unwrap();
    }
}

/// A directory for one test. Dropping this value removes the directory.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = env::temp_dir().join(format!("rdmsg-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
