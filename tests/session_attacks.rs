//! Attacks on sessions over TCP. The attacker sends resume requests or replies that a conforming
//! side never sends. Each attack must end only its own connection attempt, and the session must
//! deliver each message once.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use common::{
    TIME_LIMIT,
    log_lines::Lines,
    raw_session::{
        Answer, BUSY, CLOSE, CLOSE_ACK, KEEPALIVE_TIMEOUT, PING, PONG, RESUMES, Raw, Recorder,
        SESSION, SESSION_ENDED, Server, UNKNOWN, WINDOW, epoch_and_received, request_resume,
        request_with, resume_data,
    },
    tcp_config,
};
use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, Outgoing,
};

fn config() -> Config {
    tcp_config().with(|config| {
        config.resume = TIME_LIMIT;
        config.eager_size = Some(1000);
        config.receive_window = Some(8);
        config.keepalive_interval = None;
    })
}

fn listen(engine: &Engine, config: &Config) -> Listener {
    let builder = Listener::builder().config(config).engine(engine);
    builder.bind("127.0.0.1:0").unwrap()
}

/// A session between an endpoint and a peer. The test itself produces all bytes from the peer.
struct Scene {
    lines: &'static Lines,
    listener: Listener,
    server: Endpoint,
    raw: Raw,
    id: [u8; 12],
    /// The epoch of the most recent request to resume.
    epoch: u32,
}

impl Scene {
    fn new() -> Self {
        let lines = Lines::collect();
        let listener = listen(&Engine::new().unwrap(), &config());
        let address = listener.local_addr();
        let (raw, answer) = request_with(address, SESSION, b"");
        let Answer::Accepted(data) = answer else {
            panic!("{answer:?}")
        };
        Self {
            lines,
            server: listener.accept_timeout(TIME_LIMIT).unwrap(),
            listener,
            raw,
            id: data[..].try_into().unwrap(),
            epoch: 0,
        }
    }

    /// Ends the peer's connection, and waits until the endpoint has detected the loss.
    fn lose(&mut self) {
        let lost = format!("to {}: was lost", self.raw.local_addr());
        self.raw.hang_up();
        self.lines.wait_for(&lost);
    }

    /// Sends a request to resume with the next epoch, and returns the reply.
    fn request_resume(&mut self, received: u32) -> (Raw, Answer) {
        self.epoch += 1;
        request_resume(self.listener.local_addr(), &self.id, self.epoch, received)
    }

    /// Resumes the session. The request reports `received` received messages. Asserts that the
    /// endpoint's reply reports `theirs` received messages.
    fn resume(&mut self, received: u32, theirs: u32) {
        let (raw, answer) = self.request_resume(received);
        assert_eq!(answer, Answer::Accepted(theirs.to_be_bytes().to_vec()));
        self.raw = raw;
    }

    /// Sends and receives a message in each direction.
    fn assert_unaffected(&mut self) {
        self.raw.send(b"well");
        assert_eq!(self.server.recv_timeout(TIME_LIMIT).unwrap(), b"well");
        self.server.send(b"so am I").unwrap();
        assert_eq!(self.raw.receive(), b"so am I");
    }
}

/// Repeats a request to resume a session until the endpoint is no longer busy. The request reports
/// that no message was received. Asserts that the reply reports `theirs` received messages.
fn resume_when_possible(address: SocketAddr, id: &[u8; 12], epoch: u32, theirs: u32) -> Raw {
    let began = Instant::now();
    loop {
        match request_resume(address, id, epoch, 0) {
            (_, Answer::Rejected(BUSY, 0, 0)) if began.elapsed() < TIME_LIMIT => {
                thread::sleep(Duration::from_millis(10));
            }
            (raw, answer) => {
                assert_eq!(answer, Answer::Accepted(theirs.to_be_bytes().to_vec()));
                return raw;
            }
        }
    }
}

/// A session between two conforming sides, through a proxy that records their requests and replies.
struct HonestSession {
    lines: &'static Lines,
    engine: Engine,
    listener: Listener,
    client: Endpoint,
    server: Endpoint,
    proxy: Recorder,
}

impl HonestSession {
    fn new() -> Self {
        let lines = Lines::collect();
        let engine = Engine::new().unwrap();
        let listener = listen(&engine, &config());
        let proxy = Recorder::new(listener.local_addr());
        let connector = Connector::new().config(&config());
        let client = connector.connect(proxy.address).unwrap();
        Self {
            lines,
            server: listener.accept_timeout(TIME_LIMIT).unwrap(),
            engine,
            listener,
            client,
            proxy,
        }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn assert_unaffected(&self, resumes: u64) {
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            from.send(b"well").unwrap();
            assert_eq!(to.recv_timeout(TIME_LIMIT).unwrap(), b"well");
            assert!(to.try_recv().unwrap().is_none());
        }
        assert_eq!(self.client.statistics().resumes, resumes);
        // The server also counts a connection that the client abandons because the answer is late.
        assert!(self.server.statistics().resumes >= resumes);
    }
}

#[test]
fn guessed_identities_are_not_known() {
    let honest = HonestSession::new();
    let id = honest.proxy.session();
    for at in 0..id.len() {
        let mut guess = id;
        guess[at] ^= 1;
        let (_, answer) = request_resume(honest.address(), &guess, 1, 0);
        assert_eq!(answer, Answer::Rejected(UNKNOWN, 0, 0), "byte {at}");
    }
    // An engine that has no sessions sends the same rejection.
    let plain = config().with(|config| config.resume = Duration::ZERO);
    let other = listen(&Engine::new().unwrap(), &plain);
    let (_, answer) = request_resume(other.local_addr(), &id, 1, 0);
    assert_eq!(answer, Answer::Rejected(UNKNOWN, 0, 0));
    assert!(other.try_accept().unwrap().is_none());
    assert!(honest.listener.try_accept().unwrap().is_none());
    honest.assert_unaffected(0);
}

#[test]
fn storm_of_guesses_leaves_no_connection() {
    let honest = HonestSession::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..2000_u32 {
                let mut guess = [0x5a; 12];
                guess[..4].copy_from_slice(&number.to_be_bytes());
                let (_, answer) = request_resume(honest.address(), &guess, 1, 0);
                assert_eq!(answer, Answer::Rejected(UNKNOWN, 0, 0));
            }
        });
        for _ in 0..200 {
            honest.assert_unaffected(0);
        }
    });
    let statistics = honest.engine.statistics().unwrap();
    assert_eq!((statistics.connections, statistics.ended), (1, 0));
    assert!(honest.listener.try_accept().unwrap().is_none());
}

#[test]
fn stranger_is_refused_while_connection_works() {
    let honest = HonestSession::new();
    let id = honest.proxy.session();
    for epoch in [1, 2, 1000, u32::MAX] {
        let (_, answer) = request_resume(honest.address(), &id, epoch, 0);
        assert_eq!(answer, Answer::Rejected(BUSY, 0, 0));
        // The refused request has caused a Ping. The flush sends a later Ping and waits for its
        // Pong, so the Pong for the earlier Ping has arrived, too.
        honest.server.flush().unwrap();
        honest.assert_unaffected(0);
    }
    // A refused request does not advance the epoch, so the session can resume.
    honest.proxy.cut();
    honest.assert_unaffected(1);
}

#[test]
fn silent_connection_gives_way_to_later_request() {
    let mut scene = Scene::new();
    scene.raw.send(b"before");
    assert_eq!(scene.server.recv_timeout(TIME_LIMIT).unwrap(), b"before");
    let (_, first) = scene.request_resume(0);
    assert_eq!(first, Answer::Rejected(BUSY, 0, 0));
    // The endpoint still considers its connection alive, and checks it with a Ping.
    assert_eq!(scene.raw.next_kind(), PING);
    scene.raw.send(b"a message is no answer");
    assert_eq!(
        scene.server.recv_timeout(TIME_LIMIT).unwrap(),
        b"a message is no answer"
    );
    scene.raw = resume_when_possible(scene.listener.local_addr(), &scene.id, 2, 2);
    scene.assert_unaffected();
}

#[test]
fn answer_to_earlier_ping_proves_nothing() {
    let mut scene = Scene::new();
    thread::scope(|scope| {
        let server = &scene.server;
        let flush = scope.spawn(move || server.flush());
        assert_eq!(scene.raw.next_kind(), PING);
        let asked = format!(
            "to {}: rejected a request to resume the session, because the current connection",
            scene.raw.local_addr()
        );
        // Repeat the request: while the flush polls the connection, the engine may refuse a request
        // without sending a Ping.
        let began = Instant::now();
        while scene.lines.count(&asked) == 0 {
            assert!(
                began.elapsed() < TIME_LIMIT,
                "the engine must send a Ping for a refused request"
            );
            let (_, answer) = request_resume(scene.listener.local_addr(), &scene.id, 1, 0);
            assert_eq!(answer, Answer::Rejected(BUSY, 0, 0));
        }
        // This Pong replies to the flush's Ping, not to the Ping that the request has caused.
        scene.raw.control(PONG);
        flush.join().unwrap().unwrap();
    });
    assert_eq!(scene.raw.next_kind(), PING);
    scene.epoch = 1;
    while let (_, Answer::Rejected(BUSY, 0, 0)) = scene.request_resume(0) {
        thread::sleep(Duration::from_millis(10));
    }
    let resumes = format!(
        "to {}: the peer resumes the session",
        scene.raw.local_addr()
    );
    scene.lines.wait_for(&resumes);
}

#[test]
fn recorded_request_is_refused_when_repeated() {
    let honest = HonestSession::new();
    honest.proxy.cut();
    honest.assert_unaffected(1);
    let recorded = honest.proxy.last_request();
    assert_eq!(recorded.len(), 8 + 56);
    for _ in 0..5 {
        let mut raw = Raw::connect(honest.address());
        raw.write(&recorded);
        assert_eq!(raw.answer(), Answer::Rejected(BUSY, 0, 0));
    }
    honest.assert_unaffected(1);
    honest.proxy.cut();
    let mut raw = Raw::connect(honest.address());
    raw.write(&recorded);
    assert_eq!(raw.answer(), Answer::Rejected(BUSY, 0, 0));
    honest.assert_unaffected(2);
}

#[test]
fn end_of_resumed_connection_is_noticed() {
    let mut scene = Scene::new();
    scene.lose();
    scene.resume(0, 0);
    scene.lose();
    scene.resume(0, 0);
    scene.assert_unaffected();
}

#[test]
fn epoch_that_does_not_grow_is_refused() {
    let mut scene = Scene::new();
    scene.lose();
    scene.epoch = 4;
    scene.resume(0, 0);
    for suspended in [false, true] {
        if suspended {
            scene.lose();
        }
        for epoch in [5, 4, 1, 0] {
            let (_, answer) = request_resume(scene.listener.local_addr(), &scene.id, epoch, 0);
            assert_eq!(answer, Answer::Rejected(BUSY, 0, 0), "{epoch}");
        }
    }
    scene.resume(0, 0);
    scene.assert_unaffected();
}

#[test]
fn impossible_numbers_are_refused() {
    let mut scene = Scene::new();
    for number in 0..4_u8 {
        scene.server.send(&[number]).unwrap();
        assert_eq!(scene.raw.receive(), [number]);
    }
    // The peer grants credits for two further messages, so it must have received at least two.
    scene.raw.granted = WINDOW + 2;
    scene.raw.send(b"granted");
    assert_eq!(scene.server.recv_timeout(TIME_LIMIT).unwrap(), b"granted");
    scene.server.send(&[4]).unwrap();
    scene.lose();
    for received in [0, 1, 6, 1 << 31, u32::MAX] {
        let (_, answer) = scene.request_resume(received);
        assert_eq!(answer, Answer::Rejected(BUSY, 0, 0), "{received}");
    }
    scene.resume(3, 1);
    assert_eq!(scene.raw.receive(), [3]);
    assert_eq!(scene.raw.receive(), [4]);
    scene.lose();
    // The peer has already confirmed three messages, so a report of only two is impossible.
    let (_, answer) = scene.request_resume(2);
    assert_eq!(answer, Answer::Rejected(BUSY, 0, 0));
    scene.resume(5, 1);
    scene.assert_unaffected();
}

#[test]
fn request_of_another_form_is_refused() {
    let mut scene = Scene::new();
    scene.lose();
    let address = scene.listener.local_addr();
    let whole = [&scene.id[..], &[0, 0, 0, 9], &[0; 4], &[0; 40]].concat();
    for len in [0, 1, 11, 12, 16, 19, 21, 60] {
        let (_, answer) = request_with(address, SESSION | RESUMES, &whole[..len]);
        let expected = Answer::Rejected(UNKNOWN, 0, len as u64);
        assert_eq!(answer, expected, "{len} bytes");
    }
    let (_, answer) = request_with(address, RESUMES, &whole[..20]);
    assert_eq!(
        answer,
        Answer::Rejected(UNKNOWN, 0, 20),
        "a request without the feature SESSION must be rejected"
    );
    assert!(scene.listener.try_accept().unwrap().is_none());
    scene.resume(0, 0);
    scene.assert_unaffected();
}

#[test]
fn one_of_two_requests_at_a_time_gets_the_session() {
    for second in [1, 2] {
        let mut scene = Scene::new();
        scene.lose();
        let address = scene.listener.local_addr();
        let mut both = [1, second].map(|epoch| {
            let mut raw = Raw::connect(address);
            let data = resume_data(&scene.id, epoch, 0);
            raw.request(SESSION | RESUMES, &data);
            raw
        });
        let answers = both.each_mut().map(Raw::try_answer);
        let accepted = Some(Answer::Accepted(vec![0; 4]));
        // The engine can receive the two requests in either order.
        let winner = answers.iter().rposition(|answer| *answer == accepted);
        let winner = winner.unwrap_or_else(|| panic!("{answers:?}"));
        if second == 1 || winner == 0 {
            let busy = Some(Answer::Rejected(BUSY, 0, 0));
            assert_eq!(answers[1 - winner], busy);
        }
        scene.raw = both.into_iter().nth(winner).unwrap();
        scene.assert_unaffected();
    }
}

/// Connects to a server that assigns the identity `id` to the session.
fn connect_to(server: &Server, id: &[u8; 12]) -> (Endpoint, Raw) {
    let address = server.address();
    let connecting = thread::spawn(move || {
        let connector = Connector::new().config(&config());
        connector.connect(address).unwrap()
    });
    let (raw, _) = server.accept(SESSION, id);
    (connecting.join().unwrap(), raw)
}

#[test]
fn wrong_answers_end_their_attempt_alone() {
    let lines = Lines::collect();
    let (server, id) = (Server::bind(), *b"twelve bytes");
    let (client, mut raw) = connect_to(&server, &id);
    client.send(Outgoing::from(b"once").with_id(7)).unwrap();
    assert_eq!(raw.receive(), b"once");
    raw.send(b"received");
    assert_eq!(client.recv_timeout(TIME_LIMIT).unwrap(), b"received");
    raw.hang_up();
    let mut last = 0;
    for (features, data) in [
        (SESSION, &[][..]),
        (SESSION, &[0, 0, 0]),
        (SESSION, &[0, 0, 0, 0, 0]),
        (SESSION, &id),
        (0, &[0, 0, 0, 0]),
        (SESSION, &[0, 0, 0, 2]),
        (SESSION, &[0xff; 4]),
        (SESSION, &[0, 0, 0, 1]),
    ] {
        let (next, asked) = server.accept(features, data);
        let (epoch, received) = epoch_and_received(&asked, &id);
        assert!(
            epoch > last,
            "epoch {epoch} must be greater than the previous epoch {last}"
        );
        assert_eq!(received, 1, "{features}, {data:?}");
        (last, raw) = (epoch, next);
    }
    client.send(b"twice is not sent").unwrap();
    assert_eq!(raw.receive(), b"twice is not sent");
    raw.send(b"well");
    assert_eq!(client.recv_timeout(TIME_LIMIT).unwrap(), b"well");
    assert_eq!(client.statistics().resumes, 1);
    assert!(matches!(
        client.next_completion_timeout(TIME_LIMIT).unwrap(),
        Completion::Sent(7)
    ));
    lines.assert_not_logged(&id);
}

#[test]
fn forged_numbers_of_closed_session_confirm_nothing() {
    for (received, sent) in [
        (2_u64, 0_u64),
        (u64::from(u32::MAX), 0),
        (1, u64::from(u32::MAX)),
    ] {
        let server = Server::bind();
        let (client, mut raw) = connect_to(&server, b"twelve bytes");
        client.send(b"sent").unwrap();
        assert_eq!(raw.receive(), b"sent");
        raw.hang_up();
        server.reject(SESSION_ENDED, received, sent);
        let end = loop {
            match client.next_completion_timeout(TIME_LIMIT).unwrap() {
                Completion::Disconnected(reason) => break reason,
                other => println!("{other:?}"),
            }
        };
        assert_eq!(end, CloseReason::SessionLost, "{received}, {sent}");
        assert!(client.close().is_err());
    }
}

#[test]
fn clean_close_causes_no_resume_request() {
    for client_closes in [true, false] {
        let honest = HonestSession::new();
        honest.assert_unaffected(0);
        let (closer, other) = match client_closes {
            true => (&honest.client, &honest.server),
            false => (&honest.server, &honest.client),
        };
        closer.close().unwrap();
        assert!(other.recv_timeout(TIME_LIMIT).is_err());
        other.close().unwrap();
        assert_eq!(honest.proxy.requests(), 1);
    }
}

/// The endpoint must acknowledge the peer's final frame. Without this acknowledgement, the peer
/// would resume the session to find out whether the close is complete.
#[test]
fn last_frame_of_the_peer_is_acknowledged() {
    let mut scene = Scene::new();
    thread::scope(|scope| {
        let server = &scene.server;
        let closing = scope.spawn(move || server.close());
        assert_eq!(scene.raw.next_kind(), CLOSE);
        scene.raw.control(CLOSE);
        assert_eq!(scene.raw.next_kind(), CLOSE_ACK);
        assert_eq!(scene.raw.finish(CLOSE_ACK), 2);
        closing.join().unwrap().unwrap();
    });
}

/// During the close, the peer sends a Failure frame, because its keepalive has timed out. The
/// endpoint must still repeat the close on the next connection.
#[test]
fn close_is_repeated_after_the_peer_gave_up() {
    let mut scene = Scene::new();
    thread::scope(|scope| {
        let server = &scene.server;
        let closing = scope.spawn(move || server.close());
        assert_eq!(scene.raw.next_kind(), CLOSE);
        scene.raw.fail(KEEPALIVE_TIMEOUT);
        let lost = format!("to {}: was lost", scene.raw.local_addr());
        scene.lines.wait_for(&lost);
        // The thread that closes may hold the poll lock. The endpoint is then busy.
        let mut raw = resume_when_possible(scene.listener.local_addr(), &scene.id, 1, 0);
        assert_eq!(raw.next_kind(), CLOSE);
        raw.control(CLOSE);
        assert_eq!(raw.next_kind(), CLOSE_ACK);
        raw.finish(CLOSE_ACK);
        closing.join().unwrap().unwrap();
    });
}

/// A log must not contain the identity of a session, because any host that knows the identity can
/// take over the session.
#[test]
fn session_ids_are_not_logged() {
    let honest = HonestSession::new();
    let id = honest.proxy.session();
    honest.proxy.cut();
    honest.assert_unaffected(1);
    let (_, answer) = request_resume(honest.address(), &id, 0, 0);
    assert_eq!(answer, Answer::Rejected(BUSY, 0, 0));
    honest.lines.assert_not_logged(&id);
}

#[test]
fn close_before_all_is_sent_again_confirms_nothing() {
    let server = Server::bind();
    let (client, raw) = connect_to(&server, &[7; 12]);
    for id in 1..=3 {
        client
            .send(Outgoing::from(&b"kept"[..]).with_id(id))
            .unwrap();
    }
    raw.hang_up();
    // The reply states that the server has received no message, and grants one credit.
    let mut raw = server.accept_with_credits(1, &0_u32.to_be_bytes());
    assert_eq!(raw.receive(), b"kept");
    raw.control(CLOSE);
    while raw.next_kind() != CLOSE {}
    raw.control(CLOSE_ACK);
    while raw.next_kind() != CLOSE_ACK {}
    raw.hang_up();
    let verdict = client.close();
    assert!(matches!(verdict, Err(Error::Undelivered(_))), "{verdict:?}");
}
