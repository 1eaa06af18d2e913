//! What the tests have in common.

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

/// Longer than anything takes, also where each instruction is emulated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How soon a peer that is gone is missed. Where each instruction is emulated a peer that lives may
/// take long for a sign of it.
pub(crate) fn keepalive() -> Keepalive {
    let slower = if env::var_os("LAB_ADDR").is_some() {
        4
    } else {
        1
    };
    Keepalive {
        keepalive_interval: 300 * slower,
        keepalive_timeout: 900 * slower,
    }
}

/// In which time it is, of a machine that does nothing else: both, and as much again for what the
/// programs do besides.
pub(crate) fn bound() -> Duration {
    let Keepalive {
        keepalive_interval,
        keepalive_timeout,
    } = keepalive();
    Duration::from_millis(2 * (keepalive_interval + keepalive_timeout))
}

/// The address for this machine's connections to itself, and what carries them.
pub(crate) fn place() -> (IpAddr, Transport) {
    match env::var("LAB_ADDR") {
        Ok(addr) => (addr.parse().unwrap(), Transport::Rdma),
        Err(_) => ([127, 0, 0, 1].into(), Transport::Tcp),
    }
}

/// The configuration of connections that go over that transport alone.
pub(crate) fn config() -> Config {
    let transport = match place().1 {
        Transport::Tcp => TransportChoice::Tcp,
        _ => TransportChoice::Rdma,
    };
    Config::default().with(|c| c.transport = transport)
}

/// Runs a test, which may not hang.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("it hangs") });
}

/// A server in this process, for either kind of client.
pub(crate) struct Service {
    rdmsg: SocketAddr,
    tcp: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

/// A server that is not yet served.
pub(crate) async fn server(keepalive: Keepalive) -> Server {
    let mut options = ServerOptions::at((place().0, 0).into());
    options.tcp = Some(([127, 0, 0, 1], 0).into());
    options.keepalive = keepalive;
    options.patience = PATIENCE.as_secs();
    let stop = CancellationToken::new();
    Server::start_until(&options, stop).await.unwrap()
}

impl Service {
    /// Serves each connection so.
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

    /// A server that is served by this.
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

    /// How clients connect, of each kind.
    pub(crate) fn clients(&self) -> [ClientOptions; 2] {
        let mut plain = ClientOptions::to(self.tcp);
        plain.tcp = true;
        [ClientOptions::to(self.rdmsg), plain]
    }

    /// Where it listens for rdmsg.
    pub(crate) fn address(&self) -> SocketAddr {
        self.rdmsg
    }

    /// Connects over rdmsg.
    pub(crate) async fn connect(&self) -> Socket {
        connect(&self.clients()[0]).await
    }

    /// Ends it, as a signal does.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// Connects as the options say.
pub(crate) async fn connect(options: &ClientOptions) -> Socket {
    let engine = Engine::shared().unwrap();
    let socket = Socket::connect(options, &engine).await.unwrap();
    if let Socket::Rdmsg(stream) = &socket {
        assert_eq!(stream.transport(), place().1, "nothing stands in for it");
    }
    socket
}

/// Connects to a service of messages.
pub(crate) async fn endpoint(address: SocketAddr, config: Config) -> Endpoint {
    let connector = rdmsg::Connector::new().config(&config);
    let endpoint = Endpoint::connect_with(&connector, address).await.unwrap();
    assert_eq!(endpoint.transport(), place().1, "nothing stands in for it");
    endpoint
}

/// A server or client that is a process of its own.
pub(crate) struct Program(pub(crate) Process);

impl Program {
    /// Starts a server with these words, and one with the address to listen on where `ADDR` is.
    pub(crate) fn serve(program: &str, words: &[&str]) -> (Self, SocketAddr) {
        let mut server = Self::start(program, words, (place().0, 0).into());
        let listening = server.line("listening on ");
        let address = listening.parse().unwrap();
        (server, address)
    }

    /// Starts a program with these words, in which `ADDR` stands for this address.
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

    /// What follows this beginning, on the next line that has it.
    pub(crate) fn line(&mut self, beginning: &str) -> String {
        loop {
            match self.0.line(PATIENCE) {
                Some(Line::Out(line)) if line.starts_with(beginning) => {
                    return line[beginning.len()..].to_owned();
                }
                Some(line) => println!("{line:?}"),
                None => panic!("it has not said {beginning:?}"),
            }
        }
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.0.signal(signal).unwrap();
    }
}

/// A folder of a test's own, which is removed with it.
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
