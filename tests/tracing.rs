//! Tests that log lines become events of `tracing`, as described in the guide. The test uses TCP,
//! so it needs no device.

use std::{
    io,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use common::{TIME_LIMIT, connector};
use rdmsg::Listener;
use tracing::{Level, info_span};
use tracing_subscriber::{filter::Targets, fmt, prelude::*};

/// A writer that collects the text of all events.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<u8>>>);

impl io::Write for Events {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_line_of_call_is_event_in_callers_span() {
    let (events, filter) = (Events::default(), Targets::new());
    let filter = filter.with_default(Level::INFO);
    let filter = filter.with_target("rdmsg::connection", Level::DEBUG);
    let writer = events.clone();
    let layer = fmt::layer().with_ansi(false).without_time();
    let layer = layer.with_writer(move || writer.clone());
    tracing_subscriber::registry()
        .with(layer)
        .with(filter)
        .init();

    let listener = Listener::bind("tcp://127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr());
    let endpoint = connector().label("orders").connect(address).unwrap();
    let (id, peer) = (endpoint.info().id, endpoint.peer_addr());
    info_span!("order", number = 4711).in_scope(|| endpoint.abort(1));

    let name = format!("conn {id} \"orders\" to {peer}");
    // Do not expect the line about the end of the connection, because either the engine's thread or
    // the caller's thread can log it.
    let of_call = format!(
        "DEBUG order{{number=4711}}: rdmsg::connection: {name}: closing the connection within "
    );
    let of_engine = format!(" INFO rdmsg::connection: {name}: established over TCP");
    let begun = Instant::now();
    // The engine's thread writes its lines between its other work.
    let text = loop {
        let text = String::from_utf8(events.0.lock().unwrap().clone()).unwrap();
        if text.contains(&of_engine) || begun.elapsed() > TIME_LIMIT {
            break text;
        }
        thread::sleep(Duration::from_millis(1));
    };
    for start in [&of_call, &of_engine] {
        let lines = text.lines().filter(|line| line.starts_with(start));
        assert_eq!(lines.count(), 1, "{start}: {text}");
    }
    let mut detailed = text.lines().filter(|line| line.contains("DEBUG"));
    assert!(
        detailed.all(|line| line.contains(" rdmsg::connection: conn ")),
        "{text}"
    );
}
