//! The message layer between two hosts, with a wire between them. Both run this program: host `a` takes the listener's part in each
//! test, host `b` the connector's. Each test has a port of its own, and the connector waits until the listener is up.

use std::{thread, time::Duration};

use device::{Lab, Watchdog};
use rdmsg::{CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, Polling};

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one side of a test on each host, and checks that no receiver was ever without a receive.
fn on_two_hosts(
    what: &'static str,
    port: u16,
    config: &Config,
    listener: impl FnOnce(Endpoint),
    connector: impl FnOnce(Endpoint),
) {
    let _watchdog = Watchdog::new(what, 240);
    let lab = Lab::get();
    let rnr = lab.rnr_naks();
    match lab.host.as_str() {
        "a" => {
            let bound =
                Listener::bind_with(lab.at(port), config, &Engine::shared().unwrap()).unwrap();
            listener(bound.accept_timeout(PATIENCE).unwrap());
        }
        "b" => {
            let mut config = config.clone();
            config.retry_refused = true;
            config.connect_timeout = PATIENCE;
            connector(
                Connector::new()
                    .config(config)
                    .connect(lab.peer_at(port))
                    .unwrap(),
            );
        }
        other => panic!("{other} is no host of two"),
    }
    assert_eq!(lab.rnr_naks(), rnr);
}

fn echo(endpoint: &Endpoint) {
    loop {
        match endpoint.recv_timeout(PATIENCE) {
            Ok(message) => endpoint.send(&message).unwrap(),
            Err(error) => {
                assert!(
                    matches!(error, Error::Disconnected(CloseReason::PeerClosed)),
                    "{error:?}"
                );
                return;
            }
        }
    }
}

fn ask(endpoint: &Endpoint) {
    for size in [0, 1, 64, 4096, 16384] {
        for round in 0..100_usize {
            let message: Vec<u8> = (0..size).map(|i| (i * 3 + round) as u8).collect();
            endpoint.send(&message).unwrap();
            assert_eq!(
                *endpoint.recv_timeout(PATIENCE).unwrap(),
                *message,
                "{size} bytes, round {round}"
            );
        }
    }
    endpoint.close().unwrap();
}

#[test]
fn messages_come_back_as_they_went() {
    for (port, polling) in [
        (7501, Polling::Event),
        (7502, Polling::default()),
        (7503, Polling::Busy),
    ] {
        let mut config = Config::default();
        config.polling = polling;
        on_two_hosts(
            "messages_come_back_as_they_went",
            port,
            &config,
            |e| echo(&e),
            |e| ask(&e),
        );
    }
}

#[test]
fn both_directions_flow_at_once() {
    let flow = |endpoint: Endpoint, closes: bool| {
        let sender = thread::spawn({
            let endpoint = endpoint.clone();
            move || {
                (0..3000_u32).for_each(|i| {
                    endpoint
                        .send(&[&i.to_le_bytes()[..], &[7; 2000]].concat())
                        .unwrap()
                })
            }
        });
        for i in 0..3000_u32 {
            let message = endpoint.recv_timeout(PATIENCE).unwrap();
            assert_eq!((message.len(), &message[..4]), (2004, &i.to_le_bytes()[..]));
        }
        sender.join().unwrap();
        if closes {
            endpoint.close().unwrap();
        } else {
            let end = endpoint.recv_timeout(PATIENCE).unwrap_err();
            assert!(
                matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
                "{end:?}"
            );
        }
    };
    let config = Config::default();
    on_two_hosts(
        "both_directions_flow_at_once",
        7504,
        &config,
        |e| flow(e, false),
        |e| flow(e, true),
    );
}

#[test]
fn an_aborting_listener_is_noticed() {
    on_two_hosts(
        "an_aborting_listener_is_noticed",
        7505,
        &Config::default(),
        |endpoint| {
            assert_eq!(*endpoint.recv_timeout(PATIENCE).unwrap(), *b"go");
            endpoint.abort(5);
            assert!(matches!(
                endpoint.recv(),
                Err(Error::Disconnected(CloseReason::LocallyAborted))
            ));
        },
        |endpoint| {
            endpoint.send(b"go").unwrap();
            let end = endpoint.recv_timeout(PATIENCE).unwrap_err();
            assert!(
                matches!(end, Error::Disconnected(CloseReason::PeerAborted(5))),
                "{end:?}"
            );
        },
    );
}
