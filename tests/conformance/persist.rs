//! Tests of [`Persistent`] clients, which connect again after the loss of a connection.

use std::{net::SocketAddr, thread, time::Duration};

use common::patient;
use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Error, Listener, Outgoing, Persistent,
    PersistentEvent, Redial, Request, Transport, TransportChoice, TrySendError,
    crossbeam_channel::Receiver,
};

use crate::stage::{
    Stage, TIME_LIMIT, engine, ip_and_transport, pair, pattern, rounds, unused_address,
};

const LARGE: usize = 2 << 20;

/// A server that can be stopped and started again at the same address, and a connector that uses
/// another engine.
struct Service {
    config: Config,
    addr: SocketAddr,
    listener: Option<Listener>,
    connector: Connector,
}

impl Service {
    fn new(config: Config) -> Self {
        let config = patient(&config);
        let engine = engine();
        let connector = Connector::new()
            .config(&config)
            .engine(&engine)
            .redial(short_pauses());
        let mut service = Self {
            config,
            addr: (ip_and_transport().0, 0).into(),
            listener: None,
            connector,
        };
        service.start();
        service
    }

    fn start(&mut self) {
        let engine = engine();
        let builder = Listener::builder().config(&self.config).engine(&engine);
        // A client that dials can occupy the port for a short time.
        let listener = builder.bind_within(TIME_LIMIT).bind(self.addr).unwrap();
        self.addr = listener.local_addr();
        self.listener = Some(listener);
    }

    fn stop(&mut self) {
        let listener = self.listener.take().unwrap();
        listener.close();
    }

    fn client(&self) -> Persistent {
        self.connector.persist(self.addr).unwrap()
    }

    /// Waits until the client is connected. Returns the server's end of the connection.
    fn accept(&self, client: &Persistent) -> Endpoint {
        let listener = self.listener.as_ref().unwrap();
        thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept_timeout(TIME_LIMIT).unwrap());
            assert_connected(client);
            accepting.join().unwrap()
        })
    }
}

/// Returns a redial policy with short pauses, so that the tests are fast.
fn short_pauses() -> Redial {
    let mut redial = Redial::default();
    redial.first_pause = Duration::from_millis(5);
    redial.longest_pause = Duration::from_millis(100);
    redial
}

fn next(client: &Persistent) -> PersistentEvent {
    client.next_event_timeout(TIME_LIMIT).unwrap()
}

fn assert_connected(client: &Persistent) {
    let (event, expected) = (next(client), ip_and_transport().1);
    assert!(
        matches!(event, PersistentEvent::Connected { transport, .. } if transport == expected),
        "{event:?}"
    );
}

fn next_loss(client: &Persistent) -> (CloseReason, Vec<u64>) {
    match next(client) {
        PersistentEvent::Lost {
            reason,
            unacknowledged,
        } => (reason, unacknowledged),
        other => panic!("{other:?}"),
    }
}

fn assert_sent(client: &Persistent, id: u64) {
    let event = next(client);
    assert!(
        matches!(event, PersistentEvent::Completion(Completion::Sent(sent)) if sent == id),
        "expected the completion of message {id}, received {event:?}"
    );
}

/// Returns a configuration with memory for one large message. The server's program must drop the
/// first large message before the library can receive the second one.
fn one_large_message() -> Config {
    Config::default().with(|config| {
        config.max_message = LARGE as u64;
        config.large_memory = LARGE as u64;
    })
}

#[test]
fn loss_names_the_unacknowledged_messages() {
    let mut service = Service::new(one_large_message());
    let client = service.client();
    let server = service.accept(&client);
    let large = pattern(LARGE);
    client.send(Outgoing::from(&large).with_id(1)).unwrap();
    let held = server.recv_timeout(TIME_LIMIT).unwrap();
    assert_sent(&client, 1);
    client.send(Outgoing::from(&large).with_id(2)).unwrap();
    client
        .send(Outgoing::from(b"behind it").with_id(7))
        .unwrap();
    client.send(b"without an id").unwrap();
    client.send(Outgoing::from(b"").with_id(7)).unwrap();
    server.abort(42);
    drop((held, server));
    let (reason, unacknowledged) = next_loss(&client);
    assert_eq!(reason, CloseReason::PeerAborted(42));
    assert_eq!(unacknowledged, [2, 7, 7]);

    service.stop();
    service.start();
    let server = service.accept(&client);
    client.send(Outgoing::from(b"again").with_id(7)).unwrap();
    let first = server.recv_timeout(TIME_LIMIT).unwrap();
    assert_eq!(*first, *b"again", "the library must not repeat a message");
    assert_sent(&client, 7);
    client.close().unwrap();
    assert_eq!(next_loss(&client), (CloseReason::LocallyClosed, vec![]));
    let end = client.next_event().unwrap_err();
    assert!(
        matches!(end, Error::Disconnected(CloseReason::LocallyClosed)),
        "{end}"
    );
}

#[test]
fn messages_arrive_before_the_loss() {
    let service = Service::new(Config::default());
    let client = service.client();
    let server = service.accept(&client);
    server.send(b"first").unwrap();
    server.send(b"second").unwrap();
    server.close().unwrap();
    for expected in ["first", "second"] {
        let event = next(&client);
        assert!(
            matches!(&event, PersistentEvent::Completion(Completion::Received(message))
                if **message == *expected.as_bytes()),
            "{event:?}"
        );
    }
    assert_eq!(next_loss(&client), (CloseReason::PeerClosed, vec![]));
    service.accept(&client);
}

#[test]
fn sends_fail_until_the_loss_is_taken() {
    let service = Service::new(Config::default());
    let client = service.client();
    let full = client.try_send(b"early").unwrap_err();
    assert!(
        matches!(full, TrySendError::Failed(Error::NotConnected)),
        "{full}"
    );
    let server = service.accept(&client);
    server.abort(1);
    let refused = loop {
        if let Err(error) = client.send(b"late") {
            break error;
        }
    };
    assert!(matches!(refused, Error::NotConnected), "{refused}");
    let refused = client.try_send(b"late").unwrap_err();
    assert!(
        matches!(refused, TrySendError::Failed(Error::NotConnected)),
        "{refused}"
    );
    assert_eq!(next_loss(&client).0, CloseReason::PeerAborted(1));
    // The thread that calls `send` also establishes the new connection.
    thread::scope(|scope| {
        scope.spawn(|| client.send(b"on time").unwrap());
        let listener = service.listener.as_ref().unwrap();
        let server = listener.accept_timeout(TIME_LIMIT).unwrap();
        assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"on time");
        server.abort(2);
    });
    assert_connected(&client);
}

#[test]
fn sender_waits_for_thread_that_takes_events() {
    let service = Service::new(Config::default());
    let client = service.client();
    let server = service.accept(&client);
    server.abort(1);
    // `try_send` would return Full on a busy machine, and would cause a Room completion.
    while client.send(b"lost").is_ok() {}
    thread::scope(|scope| {
        let early = scope.spawn(|| client.send_timeout(b"early", Duration::from_millis(20)));
        let early = early.join().unwrap().unwrap_err();
        assert!(matches!(early, Error::TimedOut), "{early}");
        let sender = scope.spawn(|| client.send(b"after the loss"));
        assert_eq!(next_loss(&client).0, CloseReason::PeerAborted(1));
        let server = service.accept(&client);
        assert_eq!(
            *server.recv_timeout(TIME_LIMIT).unwrap(),
            *b"after the loss"
        );
        sender.join().unwrap().unwrap();
    });
}

#[test]
fn dial_ends_with_its_error_at_the_limit() {
    let (unused, _taken) = unused_address();
    let mut redial = short_pauses();
    redial.limit = Some(Duration::from_millis(300));
    let connector = Connector::new().engine(&engine()).redial(redial);
    let client = connector.persist(unused).unwrap();
    for _ in 0..2 {
        let error = client.next_event_timeout(TIME_LIMIT).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
    }
    let error = client.send(b"late").unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}

/// Asserts that the accept fails, or that the accepted connection ends without a message.
fn assert_abandoned(request: Request) {
    let end = request.accept().and_then(|endpoint| {
        let message = endpoint.recv_timeout(TIME_LIMIT)?;
        Ok(message.len())
    });
    assert!(
        !matches!(end, Ok(_) | Err(Error::TimedOut)),
        "the connection continues: {end:?}"
    );
}

/// The test does not answer the request, so the connect attempt is pending when the client is
/// closed or dropped.
#[test]
fn close_and_drop_end_a_dial_at_once() {
    let config = Config::default().with(|config| {
        config.connect_timeout = 2 * TIME_LIMIT;
        config.transport = match ip_and_transport().1 {
            Transport::Rdma => TransportChoice::Rdma,
            Transport::Memory => TransportChoice::Memory,
            _ => TransportChoice::Tcp,
        };
    });
    let stage = Stage::new(&config);
    let listener = stage.requests(&config);
    let request = || listener.requests().recv_timeout(TIME_LIMIT).unwrap();

    let client = stage.connector.persist(listener.local_addr()).unwrap();
    let waiting = thread::spawn({
        let client = client.clone();
        move || client.next_event().unwrap_err()
    });
    let unanswered = request();
    client.close().unwrap();
    let error = waiting.join().unwrap();
    assert!(
        matches!(error, Error::Disconnected(CloseReason::LocallyClosed)),
        "{error}"
    );
    assert_abandoned(unanswered);
    assert!(client.send(b"late").is_err());

    let client = stage.connector.persist(listener.local_addr()).unwrap();
    let error = client.next_event_timeout(Duration::ZERO).unwrap_err();
    assert!(matches!(error, Error::TimedOut), "{error}");
    // The timeout of `next_event_timeout` does not end the connect attempt.
    let unanswered = request();
    drop(client);
    assert_abandoned(unanswered);
}

#[test]
fn events_come_through_a_channel() {
    let service = Service::new(Config::default());
    let client = service.client();
    let events = client.events().unwrap();
    let listener = service.listener.as_ref().unwrap();
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    client.send(Outgoing::from(b"hello").with_id(3)).unwrap();
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"hello");
    let next = || events.recv_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(next(), PersistentEvent::Connected { .. }));
    assert!(matches!(
        next(),
        PersistentEvent::Completion(Completion::Sent(3))
    ));
    server.abort(1);
    assert!(matches!(next(), PersistentEvent::Lost { .. }));
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(next(), PersistentEvent::Connected { .. }));
    client.send(b"the last").unwrap();
    drop(client);
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"the last");
    let end = server.recv_timeout(TIME_LIMIT).unwrap_err();
    assert!(
        matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
        "{end}"
    );
    // The channel closes when the thread that fills it has ended.
    while events.recv_timeout(TIME_LIMIT).is_ok() {}
    assert!(events.try_recv().unwrap_err().is_disconnected());
}

/// A server that is about to restart asks its clients to leave. The client receives the reply to
/// its request, and then connects to the restarted server.
#[test]
fn client_leaves_a_server_that_asks() {
    let mut service = Service::new(Config::default());
    let client = service.client();
    assert!(client.info().is_none());
    assert_eq!(client.statistics().messages_sent, 0);
    let refused = client.send_control(b"early").unwrap_err();
    assert!(matches!(refused, Error::NotConnected), "{refused}");
    client.redial().unwrap();
    let server = service.accept(&client);
    let first = client.info().unwrap();
    client.send(Outgoing::from(b"request").with_id(1)).unwrap();
    client.send_control(b"hurry").unwrap();
    let mut arrived = (false, false);
    while arrived != (true, true) {
        match server.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::Received(message) => arrived.0 = message == b"request",
            Completion::Control(message) => arrived.1 = message == b"hurry",
            other => panic!("{other:?}"),
        }
    }
    service.stop();
    server.ask_to_leave().unwrap();
    server.send(b"answer").unwrap();
    let (mut leaves, mut answered, mut sent) = (false, false, false);
    while !(leaves && answered && sent) {
        match next(&client) {
            PersistentEvent::Completion(Completion::PeerLeaving) => leaves = true,
            PersistentEvent::Completion(Completion::Received(it)) => answered = it == b"answer",
            PersistentEvent::Completion(Completion::Sent(1)) => sent = true,
            other => panic!("{other:?}"),
        }
    }
    client.send(Outgoing::from(b"last").with_id(2)).unwrap();
    client.redial().unwrap();
    client.redial().unwrap();
    let refused = client.send(b"late").unwrap_err();
    assert!(matches!(refused, Error::NotConnected), "{refused}");
    let refused = client.try_send(b"late").unwrap_err();
    let is_expected = matches!(refused, TrySendError::Failed(Error::NotConnected));
    assert!(is_expected, "{refused}");
    let refused = client.send_control(b"late").unwrap_err();
    assert!(matches!(refused, Error::NotConnected), "{refused}");
    assert_eq!(server.recv_timeout(TIME_LIMIT).unwrap(), b"last");
    let end = server.recv_timeout(TIME_LIMIT).unwrap_err();
    let is_expected = matches!(end, Error::Disconnected(CloseReason::PeerClosed));
    assert!(is_expected, "{end}");
    assert_sent(&client, 2);
    assert_eq!(next_loss(&client), (CloseReason::LocallyClosed, vec![]));
    assert!(client.info().is_none());
    service.start();
    let server = service.accept(&client);
    assert_ne!(client.info().unwrap().id, first.id);
    client.send(b"next").unwrap();
    assert_eq!(server.recv_timeout(TIME_LIMIT).unwrap(), b"next");
    assert_eq!(client.statistics().messages_sent, 3);
    client.close().unwrap();
    for _ in 0..2 {
        let refused = client.redial().unwrap_err();
        let is_expected = matches!(refused, Error::Disconnected(CloseReason::LocallyClosed));
        assert!(is_expected, "{refused}");
        if let Ok(event) = client.next_event() {
            let is_expected = matches!(event, PersistentEvent::Lost { .. });
            assert!(is_expected, "{event:?}");
        }
    }
    assert!(client.next_event().is_err());
}

/// The client leaves its connection while one message is still unacknowledged.
#[test]
fn left_connection_names_unconfirmed_messages() {
    let service = Service::new(one_large_message());
    let client = service.client();
    let server = service.accept(&client);
    let large = pattern(LARGE);
    client.send(Outgoing::from(&large).with_id(1)).unwrap();
    let held = server.recv_timeout(TIME_LIMIT).unwrap();
    assert_sent(&client, 1);
    client.send(Outgoing::from(&large).with_id(2)).unwrap();
    client.redial().unwrap();
    server.abort(7);
    let (reason, unacknowledged) = next_loss(&client);
    assert!(!reason.is_clean(), "{reason}");
    assert_eq!(unacknowledged, [2]);
    drop((held, server));
    service.accept(&client);
}

/// The program receives events through the channel. After `redial`, a send waits for the new
/// connection.
#[test]
fn sender_continues_after_redial() {
    let service = Service::new(Config::default());
    let client = service.client();
    let events = client.events().unwrap();
    let listener = service.listener.as_ref().unwrap();
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    client.send(b"first").unwrap();
    client.redial().unwrap();
    thread::scope(|scope| {
        let sending = scope.spawn(|| client.send(b"second"));
        let next = listener.accept_timeout(TIME_LIMIT).unwrap();
        sending.join().unwrap().unwrap();
        assert_eq!(next.recv_timeout(TIME_LIMIT).unwrap(), b"second");
    });
    assert_eq!(server.recv_timeout(TIME_LIMIT).unwrap(), b"first");
    let event = || events.recv_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(event(), PersistentEvent::Connected { .. }));
    let event_of_loss = event();
    assert!(
        matches!(
            event_of_loss,
            PersistentEvent::Lost {
                reason: CloseReason::LocallyClosed,
                ..
            }
        ),
        "{event_of_loss:?}"
    );
    assert!(matches!(event(), PersistentEvent::Connected { .. }));
}

/// The clients dial while the server is restarted. Over software iWARP, the test uses only ten
/// clients, and the listener continues to listen: the driver supports neither 50 connections nor a
/// connect while a listener starts (`docs/lab.md`).
#[test]
fn fifty_clients_connect_again() {
    let (near, far) = pair();
    let is_iwarp = !near.info().capabilities.unwrap().write_with_imm;
    drop((near, far));
    let count = if is_iwarp { 10 } else { 50 };
    let mut service = Service::new(small_window());
    let clients: Vec<_> = (0..count).map(|_| service.client()).collect();
    let events: Vec<_> = clients
        .iter()
        .map(|client| client.events().unwrap())
        .collect();
    let next = |events: &Receiver<PersistentEvent>| events.recv_timeout(TIME_LIMIT).unwrap();
    for round in 0..rounds(3, 2) as u8 {
        let listener = service.listener.as_ref().unwrap();
        let servers: Vec<_> = clients
            .iter()
            .map(|_| listener.accept_timeout(TIME_LIMIT).unwrap())
            .collect();
        for (client, events) in clients.iter().zip(&events) {
            let event = next(events);
            assert!(
                matches!(event, PersistentEvent::Connected { .. }),
                "{event:?}"
            );
            client.send(&[round]).unwrap();
        }
        for server in &servers {
            assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), [round]);
        }
        if !is_iwarp {
            service.stop();
        }
        drop(servers);
        for events in &events {
            let event = next(events);
            assert!(matches!(event, PersistentEvent::Lost { .. }), "{event:?}");
        }
        if !is_iwarp {
            service.start();
        }
    }
}

fn small_window() -> Config {
    Config::default().with(|config| {
        config.receive_window = Some(4);
        config.send_depth = Some(4);
        config.eager_size = Some(1024);
    })
}
