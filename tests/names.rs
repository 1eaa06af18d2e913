//! Tests of the names of connections and listeners: their numbers and labels in the log, in `Info`
//! and in statistics. Also tests the log lines about connection setup. The tests need no RDMA
//! device.

use std::{
    fs,
    thread::{self, JoinHandle},
};

use common::{TIME_LIMIT, connect_and_accept, log_lines::Lines, tcp_config};
use log::Level;
use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Engine, Error, Group, Listener, RequestListener,
    StreamListener, TransportChoice,
    observe::{self, ConnectionSnapshot},
};

/// Returns both ends of a connection. Both ends use `engine`. The connecting end comes first and
/// has the label `ours`. The accepting end has the label `theirs`.
fn pair(engine: &Engine, ours: &str, theirs: &str) -> (Endpoint, Endpoint) {
    let listener = Listener::builder()
        .label(theirs)
        .config(&tcp_config())
        .engine(engine)
        .bind("127.0.0.1:0")
        .unwrap();
    let connector = Connector::new()
        .label(ours)
        .config(&tcp_config())
        .engine(engine);
    connect_and_accept(&connector, &listener)
}

/// Returns the statistics of the connection with the number `id`.
fn listed(id: u64) -> ConnectionSnapshot {
    let all = observe::snapshot().connections;
    let mut found = all.into_iter().filter(|connection| connection.id == id);
    let entry = found
        .next()
        .expect("the connection must be listed by its number");
    assert!(
        found.next().is_none(),
        "the number must identify one connection"
    );
    entry
}

#[test]
fn connection_has_one_number_in_its_process() {
    let lines = Lines::collect();
    observe::enable();
    let engines = [Engine::new().unwrap(), Engine::new().unwrap()];
    let pairs = engines.each_ref().map(|engine| pair(engine, "", ""));
    let group = Group::new();
    let mut numbers = Vec::new();
    for endpoint in pairs.iter().flat_map(|(client, server)| [client, server]) {
        let id = endpoint.info().id;
        let (peer, entry) = (endpoint.peer_addr(), listed(id));
        assert_eq!(
            (entry.peer, entry.local),
            (peer, endpoint.info().local_addr)
        );
        assert_eq!(entry.label, None);
        lines.wait_for(&format!("conn {id} to {peer}: established over TCP"));
        let text = observe::snapshot().to_prometheus();
        let labels = format!("{{connection=\"{id}\",peer=\"{peer}\",");
        assert!(text.contains(&labels), "{labels}: {text}");
        assert_eq!(group.add(endpoint).unwrap(), id);
        numbers.push(id);
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(
        numbers.len(),
        4,
        "connections of two engines must have different numbers"
    );
}

#[test]
fn label_is_in_the_log_and_in_statistics() {
    let lines = Lines::collect();
    observe::enable();
    let engine = Engine::new().unwrap();
    let (client, server) = pair(&engine, "orders", "a\"b\\\n\u{1b}\r");
    let address = client.peer_addr();
    for (endpoint, label, logged, exposed) in [
        (&client, "orders", r#""orders""#, r#"label="orders""#),
        (
            &server,
            "a\"b\\\n\u{1b}\r",
            r#""a\"b\\\n\u{1b}\r""#,
            // The exposition format of Prometheus has escapes only for the quotation mark, the
            // backslash and the line feed.
            concat!(r#"label="a\"b\\\n"#, "\u{1b}\r\""),
        ),
    ] {
        let (info, peer) = (endpoint.info(), endpoint.peer_addr());
        let id = info.id;
        assert_eq!(info.label.as_deref(), Some(label));
        assert_eq!(listed(id).label.as_deref(), Some(label));
        lines.wait_for(&format!("conn {id} {logged} to {peer}: established"));
        let text = observe::snapshot().to_prometheus();
        let labels = format!("{{connection=\"{id}\",{exposed},peer=\"{peer}\",");
        assert!(text.contains(&labels), "{labels}: {text}");
        assert!(format!("{endpoint:?}").contains(&format!("{label:?}")));
    }
    let name = r#" "a\"b\\\n\u{1b}\r""#;
    lines.wait_for(&format!("{name} on {address}: listens over TCP"));
}

#[test]
fn resume_on_one_side_is_logged_there() {
    let lines = Lines::collect();
    let resuming = tcp_config().with(|config| config.resume = TIME_LIMIT);
    for (ours, theirs, resumes) in [
        (&resuming, &tcp_config(), false),
        (&tcp_config(), &resuming, false),
        (&resuming, &resuming, true),
    ] {
        let listener = Listener::builder().config(theirs);
        let listener = listener.bind("127.0.0.1:0").unwrap();
        let (client, server) = connect_and_accept(&Connector::new().config(ours), &listener);
        for (endpoint, config) in [(&client, ours), (&server, theirs)] {
            let info = endpoint.info();
            assert_eq!(info.negotiated.unwrap().resumes, resumes);
            let line = |text: &str| format!("conn {} to {}: {text}", info.id, endpoint.peer_addr());
            let text =
                line("the session cannot resume if the connection is lost; to allow it, set ");
            let text = text + "`Config::resume` on both sides and accept with at most 148 bytes";
            lines.wait_for(&line("established over TCP"));
            let expected = usize::from(!config.resume.is_zero() && !resumes);
            lines.wait_for_count(&text, expected);
            assert_eq!(lines.count(&text), expected);
            if expected > 0 {
                assert_eq!(lines.level_of(&text), Some(Level::Info));
            }
        }
    }
}

#[test]
fn bind_within_logs_its_wait_once() {
    let lines = Lines::collect();
    let builder = Listener::builder().config(&tcp_config());
    let first = builder.bind("127.0.0.1:0").unwrap();
    let address = first.local_addr();
    let text = format!("listener: cannot listen on {address}");
    let waits = builder.bind_within(TIME_LIMIT);
    let waits = thread::spawn(move || waits.bind(address).unwrap());
    lines.wait_for(&text);
    lines.wait_for("; retrying for up to 60s");
    drop(first);
    assert_eq!(waits.join().unwrap().local_addr(), address);
    assert_eq!(
        (lines.count(&text), lines.level_of(&text)),
        (1, Some(Level::Info))
    );
}

/// Binds a listener with the label `replicas`, and starts a thread that connects to the listener.
fn requested(engine: &Engine) -> (RequestListener, JoinHandle<Result<Endpoint, Error>>) {
    let listener = Listener::builder()
        .label("replicas")
        .config(&tcp_config())
        .engine(engine)
        .bind_requests("127.0.0.1:0")
        .unwrap();
    let address = listener.local_addr();
    let connector = Connector::new().config(&tcp_config()).engine(engine);
    let client = thread::spawn(move || connector.connect(address));
    (listener, client)
}

#[test]
fn accepted_request_has_a_label_of_its_own() {
    let lines = Lines::collect();
    observe::enable();
    let engine = Engine::new().unwrap();
    for (label, shown) in [(Some("alice"), Some("alice")), (Some(""), None)]
        .into_iter()
        .chain([(None, Some("replicas"))])
    {
        let (listener, client) = requested(&engine);
        let mut request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        if let Some(label) = label {
            request = request.label("another").label(label);
        }
        let server = request.accept_with(b"welcome").unwrap();
        let client = client.join().unwrap().unwrap();
        let (info, peer) = (server.info(), server.peer_addr());
        assert_eq!(info.label.as_deref(), shown);
        assert_eq!(listed(info.id).label.as_deref(), shown);
        let name = shown.map_or(String::new(), |label| format!(" {label:?}"));
        lines.wait_for(&format!("conn {}{name} to {peer}: established", info.id));
        let label = shown.map_or(String::new(), |label| format!("label={label:?},"));
        let labels = format!("{{connection=\"{}\",{label}peer=\"{peer}\",", info.id);
        let text = observe::snapshot().to_prometheus();
        assert!(text.contains(&labels), "{labels}: {text}");
        assert_eq!(client.info().label, None, "the peer must not see the label");
        client.send(b"hello").unwrap();
        assert_eq!(server.recv().unwrap(), b"hello");
    }
}

#[test]
fn too_long_label_rejects_the_request() {
    let engine = Engine::new().unwrap();
    let (listener, client) = requested(&engine);
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    let refused = request.label(&"x".repeat(65)).accept().unwrap_err();
    let expected = "invalid configuration: label is 65 bytes long, allowed is 0 to 64 bytes";
    assert_eq!(refused.to_string(), expected);
    let reason = match client.join().unwrap() {
        Err(Error::Connect { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(matches!(reason, CloseReason::Rejected { .. }), "{reason}");
}

/// A listener for in-memory connections has an artificial socket address. Logs and statistics show
/// the listener's name instead.
#[test]
fn memory_peer_is_shown_by_its_name() {
    let lines = Lines::collect();
    observe::enable();
    let listener = Listener::bind("memory://a \"shown\" name").unwrap();
    let client = Endpoint::connect("memory://a \"shown\" name").unwrap();
    let id = client.info().id;
    let name = r#"memory://a "shown" name"#;
    lines.wait_for(&format!("on {name}: listens over memory"));
    lines.wait_for(&format!("conn {id} to {name}: established over memory"));
    assert!(format!("{listener:?}").contains(name), "{listener:?}");
    assert!(format!("{client:?}").contains(name), "{client:?}");
    let text = observe::snapshot().to_prometheus();
    let labels = format!("{{connection=\"{id}\",peer=\"memory://a \\\"shown\\\" name\",");
    assert!(text.contains(&labels), "{labels}: {text}");
    let requests = Listener::builder()
        .bind_requests("memory://requests")
        .unwrap();
    assert!(format!("{requests:?}").contains("memory://requests"));
    assert_eq!(lines.count("[100::7264"), 0);
}

/// A listener that cannot use RDMA logs a warning only if the host has an RDMA device.
#[test]
fn missing_device_is_no_warning() {
    let lines = Lines::collect();
    let config = Config::default().with(|config| config.transport = TransportChoice::Auto);
    let builder = Listener::builder().config(&config);
    // No RDMA device serves this address.
    let listener = builder.bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let devices = fs::read_dir("/sys/class/infiniband");
    let (level, because) = if devices.is_ok_and(|mut devices| devices.next().is_some()) {
        (Level::Warn, "RDMA failed")
    } else {
        (Level::Info, "this host has no RDMA device")
    };
    let text = format!("on {address}: listens over TCP only, because {because}: ");
    lines.wait_for(&text);
    assert_eq!(lines.level_of(&text), Some(level));
}

#[test]
fn label_of_10_kb_is_an_error_that_names_the_field() {
    let long = "x".repeat(10_000);
    let expected = "invalid configuration: label is 10000 bytes long, allowed is 0 to 64 bytes";
    let connector = Connector::new().label(&long).config(&tcp_config());
    let builder = Listener::builder().label(&long).config(&tcp_config());
    let errors = [
        connector.connect("127.0.0.1:1").map(drop),
        connector.start("127.0.0.1:1").map(drop),
        builder.bind("127.0.0.1:0").map(drop),
        builder
            .bind_requests("127.0.0.1:0")
            .map(drop::<RequestListener>),
    ];
    for result in errors {
        let error = result.unwrap_err();
        let field = matches!(&error, Error::InvalidConfig { field: "label", .. });
        assert!(field && error.to_string() == expected, "{error}");
    }
    let streams = builder
        .bind_stream("127.0.0.1:0")
        .map(drop::<StreamListener>);
    assert_eq!(streams.unwrap_err().to_string(), expected);
    builder.label(&long[..64]).bind("127.0.0.1:0").unwrap();
}
