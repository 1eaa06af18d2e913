use std::{net::SocketAddr, thread, time::Duration};

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, ListenerBuilder,
    Message, Polling, RequestListener,
};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, Usage};

use crate::{
    bystander::Bystander,
    peer::{Peer, Server},
    wire::{EAGER_SIZE, Hello, MAX_MESSAGE, WINDOW},
};

/// The role of the hostile peer when the connection is established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The hostile peer connects to a listener of the library.
    Client,
    /// A connector of the library connects to the hostile peer.
    Server,
}

pub(crate) const ROLES: [Role; 2] = [Role::Client, Role::Server];

/// An engine with a listener for hostile peers, and with a healthy connection that the hostile
/// peers must not affect.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    lab: DeviceTest,
    before: Usage,
    rnr_naks: u64,
}

/// The engine, and all objects that use the engine.
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

/// Returns the configuration of the library's side. Each timeout is longer than any of these tests.
/// A test that waits for a timeout sets a shorter timeout.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.receive_window = Some(WINDOW);
    config.eager_size = Some(EAGER_SIZE);
    config.max_message = MAX_MESSAGE;
    config.large_memory = MAX_MESSAGE;
    config.send_depth = Some(8);
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
        // librdmacm retains some objects of an opened device. The last calls to librdmacm determine
        // which objects it retains. The test clears a stage before the final count of resources, so
        // clear a stage before this first count, too.
        Stage::new(lab.at(0), config.clone()).clear();
        Self {
            before: lab.usage(),
            rnr_naks: lab.rnr_naks(),
            stage: Stage::new(lab.at(0), config),
            lab,
        }
    }

    /// Binds another listener of the library, on which the test answers each request.
    pub(crate) fn requests(&self) -> RequestListener {
        self.requests_with(|builder| builder)
    }

    /// Like [`requests`](Self::requests), but calls `set`, which can set further options on the
    /// builder.
    pub(crate) fn requests_with(
        &self,
        set: impl FnOnce(ListenerBuilder) -> ListenerBuilder,
    ) -> RequestListener {
        let Stage { config, engine, .. } = &self.stage;
        let builder = set(Listener::builder().config(config).engine(engine));
        builder.bind_requests(self.lab.at(0)).unwrap()
    }

    /// Binds a hostile server, to which the library connects.
    pub(crate) fn server(&self) -> Server {
        Server::new(self.lab.at(0))
    }

    /// Returns a connector of the library that uses the scene's engine and configuration.
    pub(crate) fn connector(&self) -> Connector {
        Connector::new()
            .config(&self.stage.config)
            .engine(&self.stage.engine)
    }

    /// Connects a hostile peer, which follows the protocol until it is connected. Returns the peer
    /// and the library's endpoint.
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

    /// Ends the scene. Checks that no resource has leaked, and that a receive was posted for each
    /// frame that arrived (no RNR NAK).
    pub(crate) fn finish(self) {
        let rnr_naks = self.rnr_naks;
        let lab = self.lab.clone();
        self.finish_with_rnr_naks();
        assert_eq!(
            lab.rnr_naks(),
            rnr_naks,
            "a receive must be posted for each frame that arrives (no RNR NAK)"
        );
    }

    /// Like `finish`, but permits RNR NAKs. Peers that send without credit cause them.
    pub(crate) fn finish_with_rnr_naks(self) {
        self.stage.clear();
        self.lab.assert_no_leak(&self.before);
    }
}

/// Returns true if the lab's device has `capability`, which only iWARP devices lack. For an iWARP
/// device, prints that the device lacks the capability, and returns false.
pub(crate) fn applies(capability: &str) -> bool {
    toolbox::applies(!Lab::get().is_iwarp(), capability)
}

/// Waits until the connection has ended. Returns the reason and the messages received before the
/// end. Checks that later calls report the same reason.
pub(crate) fn end(endpoint: &Endpoint) -> (CloseReason, Vec<Message>) {
    let mut messages = Vec::new();
    let reason = loop {
        match endpoint.recv_timeout(TIME_LIMIT) {
            Ok(message) => messages.push(message),
            Err(Error::Disconnected(reason)) => break reason,
            // A random frame can be a valid Finish. After such a frame, `recv` returns this error
            // until the connection ends.
            Err(Error::PeerFinished) => match endpoint.next_completion_timeout(TIME_LIMIT) {
                Ok(Completion::Disconnected(reason)) | Err(Error::Disconnected(reason)) => {
                    break reason;
                }
                other => panic!("the connection did not end: {other:?}"),
            },
            Err(error) => panic!("the connection did not end: {error}"),
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

/// Like `end`, for a connection that a protocol violation has ended. Returns the name of the
/// invalid field.
pub(crate) fn violated_field(endpoint: &Endpoint) -> &'static str {
    match end(endpoint).0 {
        CloseReason::ProtocolViolation(violation) => violation.field(),
        other => panic!("no violation: {other:?}"),
    }
}
