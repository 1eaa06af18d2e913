//! Tests of large messages with memory windows. The preloaded library makes the device check that a
//! READ is within its window. Software RoCE itself does not check this.

use std::env;

use log::LevelFilter;
use rdmsg::{Completion, Connector, Endpoint, Engine, Listener, Outgoing, Transport};

use crate::{
    TIME_LIMIT,
    adapters::{logged, start_log, with_device},
    calls::Calls,
    config, ip_and_transport,
};

/// The length of a message in bytes. The message is one contiguous piece of memory. It is too long
/// for a few frames, so the peer reads it with a READ.
const LEN: usize = 64 << 10;
/// The eager size of both ends, in bytes.
const EAGER: u32 = 4096;

/// Returns both ends of a connection.
fn pair(engine: &Engine) -> (Endpoint, Endpoint) {
    let config = config().with(|c| c.eager_size = Some(EAGER));
    let listener = Listener::builder()
        .config(&config)
        .engine(engine)
        .bind((ip_and_transport().0, 0))
        .unwrap();
    let connector = Connector::new().config(&config).engine(engine);
    let client = connector.connect(listener.local_addr()).unwrap();
    assert_eq!(client.info().transport, Transport::Rdma);
    (client, listener.accept_timeout(TIME_LIMIT).unwrap())
}

/// Sends `count` messages, each after the previous one was received. Returns the values that the
/// preloaded library has recorded for calls of `function`.
fn record_while_sending(
    calls: &Calls,
    (from, to): (&Endpoint, &Endpoint),
    count: u8,
    function: &str,
) -> Vec<i64> {
    calls.clear_recorded();
    for number in 0..count {
        let mut message = vec![number; LEN];
        message[..4].copy_from_slice(b"head");
        let sent = Outgoing::from(&message[..]).with_id(number.into());
        from.send(sent).unwrap();
        assert!(*to.recv_timeout(TIME_LIMIT).unwrap() == message[..]);
        let sent = from.next_completion_timeout(TIME_LIMIT).unwrap();
        assert!(
            matches!(sent, Completion::Sent(id) if id == number.into()),
            "{sent:?}"
        );
    }
    calls.take_recorded(function)
}

/// Runs `body` with the preloaded library if the device is software RoCE, which supports memory
/// windows. Does nothing with other devices. Software iWARP does not support memory windows.
fn with_windows(name: &str, body: impl FnOnce(&Calls)) {
    if env::var("LAB_DEV").is_ok_and(|device| device.starts_with("rxe")) {
        with_device(name, |calls| {
            start_log(LevelFilter::Debug, &["memory windows"]);
            body(calls);
        });
    } else {
        println!("skipped {name}: only software RoCE in the lab supports memory windows");
    }
}

#[test]
fn windows_replace_registrations_of_messages() {
    with_windows(
        "windows::windows_replace_registrations_of_messages",
        |calls| {
            let engine = Engine::new().unwrap();
            calls.check_window_bounds();
            let (client, server) = pair(&engine);
            let ends = (&client, &server);
            record_while_sending(calls, ends, 10, "");
            let lines = logged();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(
                lines[0].ends_with(": exposes large messages to peers by memory windows"),
                "{lines:?}"
            );

            assert_eq!(record_while_sending(calls, ends, 40, "ibv_reg_mr"), []);
            assert_eq!(record_while_sending(calls, ends, 40, "ibv_dereg_mr"), []);
            assert_eq!(
                record_while_sending(calls, ends, 40, "bind_mw"),
                [LEN as i64; 40]
            );
            let keys = record_while_sending(calls, ends, 40, "local_inv");
            assert_eq!(keys.len(), 40);
            assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
            client.close().unwrap();
            drop(server);
            engine.shutdown();
        },
    );
}

#[test]
fn windows_without_bounds_are_not_used() {
    const REMOTE_READ: i64 = 1 << 2;
    with_windows("windows::windows_without_bounds_are_not_used", |calls| {
        let engine = Engine::new().unwrap();
        for _ in 0..2 {
            let (client, server) = pair(&engine);
            let ends = (&client, &server);
            record_while_sending(calls, ends, 5, "");
            assert_eq!(
                record_while_sending(calls, ends, 10, "ibv_reg_mr"),
                [REMOTE_READ; 10]
            );
            client.close().unwrap();
        }
        let lines = logged();
        assert_eq!(
            lines.len(),
            1,
            "the library must test the windows only once: {lines:?}"
        );
        let ending = "because its memory windows are unusable: a READ before a window succeeds";
        assert!(lines[0].ends_with(ending), "{lines:?}");
    });
}
