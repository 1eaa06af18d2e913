use std::{net::SocketAddr, thread, time::Duration};

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, ListenerBuilder,
    Message, Polling, RequestListener,
};
use toolbox::{Deadline, DeviceTest, Lab, TIME_LIMIT, open_fds};

use crate::{
    bystander::Bystander,
    peer::{Peer, Server},
    wire::{EAGER_SIZE, Hello, MAX_MESSAGE, WINDOW},
};

/// The role of the hostile peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The hostile peer connects to a listener of the library.
    Client,
    /// A connector of the library connects to the hostile peer.
    Server,
}

pub(crate) const ROLES: [Role; 2] = [Role::Client, Role::Server];

/// An engine with a listener for hostile peers, and a healthy connection that they must not
/// disturb.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    lab: DeviceTest,
    before: (String, usize),
    rnr_naks: u64,
}

/// The engine and the objects that use it.
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

/// Returns the library's configuration. Its timeouts are too long to end a connection in these
/// tests; the tests of timeouts change theirs.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.receive_window = WINDOW;
    config.eager_size = Some(EAGER_SIZE);
    config.max_message = MAX_MESSAGE;
    config.large_memory = MAX_MESSAGE;
    config.send_depth = 8;
    config.keepalive_interval = None;
    config.close_timeout = Duration::from_secs(600);
    config.connect_timeout = TIME_LIMIT;
    config.polling = Polling::Event;
    config
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: Config) -> Self {
        let lab = DeviceTest::without_credits();
        // librdmacm caches objects of an opened device, depending on the last operation. So take
        // the baseline after a stage has been built and cleared, as at the end.
        Stage::new(lab.at(0), config.clone()).clear();
        Self {
            before: (lab.resources(), open_fds()),
            rnr_naks: lab.rnr_naks(),
            stage: Stage::new(lab.at(0), config),
            lab,
        }
    }

    /// Binds a second listener of the library, whose requests the test answers.
    pub(crate) fn requests(&self) -> RequestListener {
        self.requests_with(|builder| builder)
    }

    /// As [`requests`](Self::requests), with the options that `set` sets.
    pub(crate) fn requests_with(
        &self,
        set: impl FnOnce(ListenerBuilder) -> ListenerBuilder,
    ) -> RequestListener {
        let Stage { config, engine, .. } = &self.stage;
        let builder = set(Listener::builder().config(config).engine(engine));
        builder.bind_requests(self.lab.at(0)).unwrap()
    }

    /// Binds a hostile server for the library to connect to.
    pub(crate) fn server(&self) -> Server {
        Server::new(self.lab.at(0))
    }

    /// Returns a connector of the library for such a server.
    pub(crate) fn connector(&self) -> Connector {
        Connector::new()
            .config(&self.stage.config)
            .engine(&self.stage.engine)
    }

    /// Connects a hostile peer that has kept to the protocol so far. Returns it and the library's
    /// endpoint.
    pub(crate) fn connect(&self, role: Role) -> (Peer, Endpoint) {
        self.connect_with(role, &Hello::GOOD)
    }

    pub(crate) fn connect_with(&self, role: Role, hello: &Hello) -> (Peer, Endpoint) {
        let hello = &hello.bytes();
        thread::scope(|scope| match role {
            Role::Client => {
                let addr = self.stage.listener.local_addr();
                let peer = scope.spawn(move || Peer::connect(addr, hello));
                let endpoint = self.stage.listener.accept_timeout(TIME_LIMIT).unwrap();
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

    /// Ends the scene, and checks that no resource leaked and that each frame found a posted
    /// receive.
    pub(crate) fn finish(self) {
        let rnr_naks = self.rnr_naks;
        let lab = self.lab.clone();
        self.finish_with_rnr_naks();
        assert_eq!(lab.rnr_naks(), rnr_naks, "receiver not ready");
    }

    /// As `finish`, for a peer that sends without credit or does not read: the RNR NAKs of its own
    /// device are expected.
    pub(crate) fn finish_with_rnr_naks(self) {
        self.stage.clear();
        // A driver may free a queue pair after the call that destroys it has returned.
        let mut deadline = Deadline::after(TIME_LIMIT);
        while (self.lab.resources(), open_fds()) != self.before && !deadline.is_over() {
            thread::sleep(Duration::from_millis(5));
        }
        let after = (self.lab.resources(), open_fds());
        assert_eq!(after, self.before, "nothing is left behind");
    }
}

/// Returns whether the device has this capability of RoCE and InfiniBand; otherwise prints it as
/// missing.
pub(crate) fn applies(capability: &str) -> bool {
    toolbox::applies(!Lab::get().is_iwarp(), capability)
}

/// Waits for the end of the connection. Returns its reason and the messages before it, and checks
/// that later calls report the same reason.
pub(crate) fn end(endpoint: &Endpoint) -> (CloseReason, Vec<Message>) {
    let mut messages = Vec::new();
    let reason = loop {
        match endpoint.recv_timeout(TIME_LIMIT) {
            Ok(message) => messages.push(message),
            Err(Error::Disconnected(reason)) => break reason,
            // A random frame may be a valid Finish; `recv` then repeats this error until the
            // connection ends.
            Err(Error::PeerFinished) => match endpoint.next_completion_timeout(TIME_LIMIT) {
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

/// As `end`, for a protocol violation: returns the name of the invalid field.
pub(crate) fn violated_field(endpoint: &Endpoint) -> &'static str {
    match end(endpoint).0 {
        CloseReason::ProtocolViolation(violation) => violation.field(),
        other => panic!("no violation: {other:?}"),
    }
}
