use std::{net::SocketAddr, thread, time::Duration};

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, ListenerBuilder,
    Message, Polling, RequestListener,
};
use toolbox::{Deadline, DeviceTest, Lab, PATIENCE, open_fds};

use crate::{
    bystander::Bystander,
    peer::{Peer, Server},
    wire::{EAGER_SIZE, Hello, MAX_MESSAGE, WINDOW},
};

/// Which side of the connection is hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It connects to a listener of the library.
    Client,
    /// A connector of the library connects to it.
    Server,
}

pub(crate) const ROLES: [Role; 2] = [Role::Client, Role::Server];

/// An engine with a listener for the hostile, and a connection that they are not to disturb.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    lab: DeviceTest,
    before: (String, usize),
    rnr_naks: u64,
}

/// What belongs to the engine.
pub(crate) struct Stage {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    pub(crate) listener: Listener,
    pub(crate) bystander: Bystander,
}

impl Stage {
    fn new(addr: SocketAddr, config: Config) -> Self {
        let engine = Engine::new().unwrap();
        Self {
            listener: Listener::builder()
                .config(&config)
                .engine(&engine)
                .bind(addr)
                .unwrap(),
            bystander: Bystander::new(&engine, addr),
            engine,
            config,
        }
    }

    fn clear(self) {
        self.bystander.finish();
        drop(self.listener);
        self.engine.shutdown();
    }
}

/// How the library's side is set up: nothing in these tests ends by one of these timeouts, but for
/// the tests of the timeouts.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.receive_window = WINDOW;
    config.eager_size = Some(EAGER_SIZE);
    config.max_message = MAX_MESSAGE;
    config.large_memory = MAX_MESSAGE;
    config.send_depth = 8;
    config.keepalive_interval = None;
    config.close_timeout = Duration::from_secs(600);
    config.connect_timeout = PATIENCE;
    config.polling = Polling::Event;
    config
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: Config) -> Self {
        let lab = DeviceTest::without_credits();
        // What librdmacm keeps on an opened device depends on what happened last: so count after
        // the same last act.
        Stage::new(lab.at(0), config.clone()).clear();
        Self {
            before: (lab.resources(), open_fds()),
            rnr_naks: lab.rnr_naks(),
            stage: Stage::new(lab.at(0), config),
            lab,
        }
    }

    /// A second listener of the library, whose requests the test answers.
    pub(crate) fn requests(&self) -> RequestListener {
        self.requests_with(|builder| builder)
    }

    /// As [`requests`](Self::requests), with the values of a listener that `set` sets.
    pub(crate) fn requests_with(
        &self,
        set: impl FnOnce(ListenerBuilder) -> ListenerBuilder,
    ) -> RequestListener {
        let Stage { config, engine, .. } = &self.stage;
        let builder = set(Listener::builder().config(config).engine(engine));
        builder.bind_requests(self.lab.at(0)).unwrap()
    }

    /// A server for the library to connect to.
    pub(crate) fn server(&self) -> Server {
        Server::new(self.lab.at(0))
    }

    /// What connects to such a server.
    pub(crate) fn connector(&self) -> Connector {
        Connector::new()
            .config(&self.stage.config)
            .engine(&self.stage.engine)
    }

    /// A hostile peer that has behaved well so far, and the library's side.
    pub(crate) fn connect(&self, role: Role) -> (Peer, Endpoint) {
        self.connect_with(role, &Hello::GOOD)
    }

    pub(crate) fn connect_with(&self, role: Role, hello: &Hello) -> (Peer, Endpoint) {
        let hello = &hello.bytes();
        thread::scope(|scope| match role {
            Role::Client => {
                let addr = self.stage.listener.local_addr();
                let peer = scope.spawn(move || Peer::connect(addr, hello));
                let endpoint = self.stage.listener.accept_timeout(PATIENCE).unwrap();
                (peer.join().unwrap(), endpoint)
            }
            Role::Server => {
                let server = self.server();
                let connector = self.connector();
                let endpoint = scope.spawn(move || connector.connect(server.addr).unwrap());
                let peer = server.accept(hello);
                (peer, endpoint.join().unwrap())
            }
        })
    }

    /// Clears up, and makes sure that the hostile left nothing behind and that there was a receive
    /// for every frame.
    pub(crate) fn finish(self) {
        let rnr_naks = self.rnr_naks;
        let lab = self.lab.clone();
        self.finish_with_rnr_naks();
        assert_eq!(lab.rnr_naks(), rnr_naks, "receiver not ready");
    }

    /// As `finish`, for a peer that sends without credit or takes nothing: that the device then
    /// says so is the peer's own affair.
    pub(crate) fn finish_with_rnr_naks(self) {
        self.stage.clear();
        // A driver may take queue pairs apart when the call that destroys them has come back.
        let mut deadline = Deadline::after(PATIENCE);
        while (self.lab.resources(), open_fds()) != self.before && !deadline.is_over() {
            thread::sleep(Duration::from_millis(5));
        }
        let after = (self.lab.resources(), open_fds());
        assert_eq!(after, self.before, "nothing is left behind");
    }
}

/// Whether a test that takes this of RoCE and InfiniBand applies; if not, it is said.
pub(crate) fn applies(capability: &str) -> bool {
    toolbox::applies(!Lab::get().is_iwarp(), capability)
}

/// Waits for the end and returns its reason and the messages before it. Later calls give the same
/// reason.
pub(crate) fn end(endpoint: &Endpoint) -> (CloseReason, Vec<Message>) {
    let mut messages = Vec::new();
    let reason = loop {
        match endpoint.recv_timeout(PATIENCE) {
            Ok(message) => messages.push(message),
            Err(Error::Disconnected(reason)) => break reason,
            // Which a frame of chance may say; `recv` repeats it until the end has come.
            Err(Error::PeerFinished) => match endpoint.next_completion_timeout(PATIENCE) {
                Ok(Completion::Disconnected(reason)) | Err(Error::Disconnected(reason)) => {
                    break reason;
                }
                other => panic!("no end came: {other:?}"),
            },
            Err(error) => panic!("no end came: {error}"),
        }
    };
    for error in [
        endpoint.recv().unwrap_err(),
        endpoint.send(b"more").unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::Disconnected(same) if *same == reason),
            "{error:?} after {reason:?}"
        );
    }
    (reason, messages)
}

/// As `end`, where the peer broke the protocol: the name of the field that tells.
pub(crate) fn violated_field(endpoint: &Endpoint) -> &'static str {
    match end(endpoint).0 {
        CloseReason::ProtocolViolation(violation) => violation.field(),
        other => panic!("no violation: {other:?}"),
    }
}
