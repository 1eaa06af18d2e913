//! Tests of control messages in sessions: each message arrives once and in order, even if
//! connections are lost.

use std::thread;

use rdmsg::{Completion, Endpoint, Error};

use super::{TIME_LIMIT, pair};

/// Receives the next control message, and returns its number.
fn control(endpoint: &Endpoint) -> u32 {
    loop {
        match endpoint.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::Control(message) => {
                break u32::from_be_bytes(message[..].try_into().unwrap());
            }
            Completion::Suspended { .. } | Completion::Resumed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn control_messages_survive_cuts_once_and_in_order() {
    const COUNT: u32 = 3000;
    let (client, server, proxy, _listener) = pair();
    let receiving = thread::spawn(move || {
        for expected in 0..COUNT {
            assert_eq!(control(&server), expected);
        }
        server
    });
    for number in 0..COUNT {
        loop {
            match client.send_control(&number.to_be_bytes()) {
                Ok(()) => break,
                // Retry: the receiver has not yet taken earlier control messages, or the connection
                // is lost.
                Err(Error::ControlMessagesNotTaken { .. }) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        if number % 300 == 150 {
            proxy.cut();
        }
    }
    let server = receiving.join().unwrap();
    assert!(client.statistics().resumes > 0);
    client.close().unwrap();
    drop(server);
}

#[test]
fn ask_to_leave_survives_a_lost_connection() {
    let (client, server, proxy, _listener) = pair();
    server.ask_to_leave().unwrap();
    let leaving = |endpoint: &Endpoint| loop {
        match endpoint.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::PeerLeaving => break,
            Completion::Suspended { .. } | Completion::Resumed { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    leaving(&client);
    proxy.close();
    while !client.info().is_suspended {
        thread::yield_now();
    }
    client.ask_to_leave().unwrap();
    proxy.open();
    leaving(&server);
    client.flush().unwrap();
    server.flush().unwrap();
    loop {
        match client.try_next_completion().unwrap() {
            Some(Completion::Suspended { .. } | Completion::Resumed { .. }) => {}
            Some(other) => panic!("the client must get no further completion: {other:?}"),
            None => break,
        }
    }
}

#[test]
fn suspended_session_keeps_untaken_control_messages() {
    let (client, server, proxy, _listener) = pair();
    client.send_control(&0_u32.to_be_bytes()).unwrap();
    client.flush().unwrap();
    let held = server.next_completion_timeout(TIME_LIMIT).unwrap();
    proxy.close();
    while !client.info().is_suspended {
        thread::yield_now();
    }
    client.send_control(&1_u32.to_be_bytes()).unwrap();
    let refused = client.send_control(b"the third").unwrap_err();
    let untaken = matches!(refused, Error::ControlMessagesNotTaken { untaken: 2 });
    assert!(untaken, "{refused}");
    // The server held this message while the connection was lost. When the server drops the
    // message, the credit of the message is returned on the next connection.
    drop(held);
    proxy.open();
    assert_eq!(control(&server), 1);
    client.flush().unwrap();
    client.send_control(&2_u32.to_be_bytes()).unwrap();
    assert_eq!(control(&server), 2);
}
