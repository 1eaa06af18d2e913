//! Tests of services that answer and close a connection before they have read the whole request.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener},
    thread,
};

use rdmsg::{Engine, Listener};
use toolbox::Bridge;

use crate::{
    BridgePair,
    stage::{self, connect, random},
};

const ROUNDS: u64 = 30;

/// The length in bytes of a request. The service reads only the first byte of each request.
const REQUEST: usize = 3_000_000;

/// The length in bytes of an answer.
const ANSWER: usize = 20_000;

/// Sends a request, and asserts that its answer arrives. Returns `Ok` if an end of file follows the
/// answer, and the error if the connection fails.
fn ask(bridge: &Bridge, answer: &[u8]) -> io::Result<()> {
    let mut client = connect(bridge.address);
    let mut writer = client.try_clone().unwrap();
    let written = thread::scope(|scope| {
        let writing = scope.spawn(move || writer.write_all(&random(1, REQUEST)));
        let mut received = vec![0; answer.len()];
        client.read_exact(&mut received).unwrap();
        assert!(received == answer);
        writing.join().unwrap()
    });
    // The kernel reports a reset only once. Either the write or this read returns the error.
    written.and_then(|()| client.read(&mut [0]).map(|len| assert_eq!(len, 0)))
}

fn answers_arrive(finishes: bool) {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut way = BridgePair::to(service.local_addr().unwrap());
    let answer = random(2, ANSWER);
    let said = answer.clone();
    thread::spawn(move || {
        for _ in 0..ROUNDS {
            let (mut server, _) = service.accept().unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(&said).unwrap();
            if finishes {
                server.shutdown(Shutdown::Write).unwrap();
            }
        }
    });
    for _ in 0..ROUNDS {
        let ended = ask(&way.near, &answer).map_err(|error| error.kind());
        if !finishes {
            assert_eq!(ended, Err(ErrorKind::ConnectionReset));
        }
    }
    way.both_report(&format!("0 open, {ROUNDS} total, 0 refused, "));
}

#[test]
fn answer_before_a_reset_arrives() {
    answers_arrive(false);
}

#[test]
fn answer_before_end_and_reset_arrives() {
    answers_arrive(true);
}

#[test]
fn early_answer_of_an_rdmsg_service_arrives() {
    let engine = Engine::new().unwrap();
    let service = Listener::builder()
        .engine(&engine)
        .bind_stream("tcp://127.0.0.1:0")
        .unwrap();
    let to = format!("rdmsg+tcp://{}", service.local_addr().unwrap());
    let mut near = stage::start("tcp://127.0.0.1:0", &to, &[]);
    let answer = random(2, ANSWER);
    let said = answer.clone();
    thread::spawn(move || {
        for _ in 0..ROUNDS {
            let (mut server, _) = service.accept().unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(&said).unwrap();
        }
    });
    for _ in 0..ROUNDS {
        // Ignore the result: it depends on timing whether an end of file or a reset follows.
        let _ = ask(&near, &answer);
    }
    near.reports(&format!("0 open, {ROUNDS} total, 0 refused, "))
        .unwrap();
}
