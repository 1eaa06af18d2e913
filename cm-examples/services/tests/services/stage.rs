//! Helpers of all modules.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
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

/// Longer than any step takes, even if each instruction is emulated.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Returns the keepalive options. They are longer in the lab, because each instruction may be
/// emulated, and a live peer may answer late.
pub(crate) fn keepalive() -> Keepalive {
    let slower = if env::var_os("LAB_ADDR").is_some() {
        4
    } else {
        1
    };
    Keepalive {
        keepalive_interval: 300 * slower,
        keepalive_timeout: 900 * slower,
        resume: 0,
    }
}

/// Returns the time within which a lost peer is reported: the sum of both options, and the same
/// again for the work of the programs.
pub(crate) fn bound() -> Duration {
    let Keepalive {
        keepalive_interval,
        keepalive_timeout,
        ..
    } = keepalive();
    Duration::from_millis(2 * (keepalive_interval + keepalive_timeout))
}

/// Returns an address of this machine, and the transport of connections to it.
pub(crate) fn place() -> (IpAddr, Transport) {
    match env::var("LAB_ADDR") {
        Ok(addr) => (addr.parse().unwrap(), Transport::Rdma),
        Err(_) => ([127, 0, 0, 1].into(), Transport::Tcp),
    }
}

/// Returns a configuration for this transport alone.
pub(crate) fn config() -> Config {
    let transport = match place().1 {
        Transport::Tcp => TransportChoice::Tcp,
        _ => TransportChoice::Rdma,
    };
    Config::default().with(|c| c.transport = transport)
}

/// Runs a test with a time limit.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { timeout(TIME_LIMIT, test).await.expect("the test hangs") });
}

/// A server in this process, for both kinds of clients.
pub(crate) struct Service {
    rdmsg: SocketAddr,
    tcp: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

/// Listens without accepting connections yet.
pub(crate) async fn server(keepalive: Keepalive) -> Server {
    let mut options = ServerOptions::at((place().0, 0).into());
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

    /// Returns a server whose connections `serving` accepts.
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

    /// Returns the options of a client of each kind.
    pub(crate) fn clients(&self) -> [ClientOptions; 2] {
        let mut plain = ClientOptions::to(self.tcp);
        plain.tcp = true;
        [ClientOptions::to(self.rdmsg), plain]
    }

    /// Returns the address on which the server listens with rdmsg.
    pub(crate) fn address(&self) -> SocketAddr {
        self.rdmsg
    }

    /// Connects over rdmsg.
    pub(crate) async fn connect(&self) -> Socket {
        connect(&self.clients()[0]).await
    }

    /// Stops the server, like a signal.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// Connects with these options.
pub(crate) async fn connect(options: &ClientOptions) -> Socket {
    let engine = Engine::shared().unwrap();
    let socket = Socket::connect(options, &engine).await.unwrap();
    if let Socket::Rdmsg(stream) = &socket {
        assert_eq!(
            stream.transport(),
            place().1,
            "the transport is not replaced"
        );
    }
    socket
}

/// Connects to a service with messages.
pub(crate) async fn endpoint(address: SocketAddr, config: Config) -> Endpoint {
    let connector = rdmsg::Connector::new().config(&config);
    let endpoint = Endpoint::connect_with(&connector, address).await.unwrap();
    assert_eq!(
        endpoint.transport(),
        place().1,
        "the transport is not replaced"
    );
    endpoint
}

/// A server or client in a process of its own.
pub(crate) struct Program(pub(crate) Process);

impl Program {
    /// Starts a server with these arguments, in which `ADDR` stands for the address to listen on.
    /// Returns its address as well.
    pub(crate) fn serve(program: &str, words: &[&str]) -> (Self, SocketAddr) {
        let mut server = Self::start(program, words, (place().0, 0).into());
        let listening = server.line("listening on ");
        let address = listening.parse().unwrap();
        (server, address)
    }

    /// Starts a program with these arguments, in which `ADDR` stands for this address.
    pub(crate) fn start(program: &str, words: &[&str], address: SocketAddr) -> Self {
        let address = address.to_string();
        let words = words.iter().map(|word| match *word {
            "ADDR" => &address,
            word => word,
        });
        let keepalive = ["--keepalive-interval=300", "--keepalive-timeout=900"];
        let argv: Vec<_> = [program]
            .into_iter()
            .chain(words)
            .chain(keepalive)
            .collect();
        Self(Process::start(&argv).unwrap())
    }

    /// Waits for a line with this beginning, and returns the rest of it.
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

/// A test's own folder; the drop removes it.
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
