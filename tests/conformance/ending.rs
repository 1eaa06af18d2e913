use std::{
    io::{ErrorKind, Read, Write},
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use rdmsg::{CloseReason, Completion, Config, Error, Stream};

use crate::stage::{Stage, TIME_LIMIT, pair, pair_with, pattern, rounds};

fn reason(result: Result<impl Sized, Error>) -> CloseReason {
    match result {
        Err(Error::Disconnected(reason)) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the connection continues"),
    }
}

#[test]
fn messages_before_close_arrive_before_the_end() {
    let (near, far) = pair();
    let closing = thread::spawn(move || {
        near.send(b"small").unwrap();
        near.send(&pattern(500_000)).unwrap();
        near.close().unwrap();
        near
    });
    assert_eq!(*far.recv_timeout(TIME_LIMIT).unwrap(), *b"small");
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(500_000)[..]);
    assert_eq!(
        reason(far.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
    assert_eq!(far.info().close_reason, Some(CloseReason::PeerClosed));
    assert!(far.info().close_reason.is_some() && CloseReason::PeerClosed.is_clean());
    let near = closing.join().unwrap();
    assert_eq!(reason(near.send(b"late")), CloseReason::LocallyClosed);
    assert_eq!(near.info().send_limit, 0);
}

#[test]
fn messages_of_dropped_endpoint_arrive() {
    let (near, far) = pair();
    near.send(&pattern(300_000)).unwrap();
    drop(near);
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(300_000)[..]);
    assert_eq!(
        reason(far.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
}

/// After the peer's close, writes succeed until they exceed 64 KiB in total, or until this side has
/// read the stream to its end.
#[test]
fn writer_reads_closed_stream_to_its_end() {
    let (near, far) = pair();
    let watched = far.clone();
    let (mut near, mut far) = (Stream::from(near), Stream::from(far));
    near.write_all(&pattern(100_000)).unwrap();
    drop(near);
    while watched.info().close_reason.is_none() {
        thread::yield_now();
    }
    far.write_all(&pattern(60_000)).unwrap();
    let mut first = vec![0; 50_000];
    far.read_exact(&mut first).unwrap();
    assert!(first == pattern(100_000)[..50_000]);
    // Write until the limit of 64 KiB is exceeded. This side has not read the stream to its end
    // yet.
    let mut late = 60_000;
    let error = loop {
        match far.write(&pattern(1000)) {
            Ok(count) => late += count,
            Err(error) => break error,
        }
    };
    assert_eq!((late, error.kind()), (64 << 10, ErrorKind::BrokenPipe));
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).unwrap();
    assert!(rest == pattern(100_000)[50_000..]);
}

#[test]
fn write_after_reading_closed_stream_to_end_fails() {
    let (near, far) = pair();
    let watched = far.clone();
    let (mut near, mut far) = (Stream::from(near), Stream::from(far));
    near.write_all(b"the last").unwrap();
    drop(near);
    let mut last = String::new();
    far.read_to_string(&mut last).unwrap();
    assert_eq!(last, "the last");
    while watched.info().close_reason.is_none() {
        thread::yield_now();
    }
    let error = far.write(b"late").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn an_abort_carries_its_code() {
    let (near, far) = pair();
    assert!(near.info().close_reason.is_none());
    near.abort(42);
    assert_eq!(
        reason(far.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerAborted(42)
    );
    assert!(!CloseReason::PeerAborted(42).is_clean());
    assert_eq!(
        reason(near.recv_timeout(TIME_LIMIT)),
        CloseReason::LocallyAborted
    );
}

/// One side closes while the other side aborts. The reason for the end depends only on whether the
/// aborting side confirmed the close before it aborted, not on which call was first.
#[test]
fn abort_is_the_reason_of_an_unconfirmed_close() {
    let stage = Stage::new(&Config::default());
    for _ in 0..rounds(100, 30) {
        let (near, far) = stage.pair();
        near.send(b"a message").unwrap();
        let start = Arc::new(Barrier::new(2));
        let aborting = thread::spawn({
            let (start, far) = (Arc::clone(&start), far.clone());
            move || {
                start.wait();
                far.abort(42);
            }
        });
        start.wait();
        let expected = match near.close() {
            Ok(()) => CloseReason::LocallyClosed,
            Err(Error::Undelivered(reason) | Error::Disconnected(reason)) => {
                assert_eq!(reason, CloseReason::PeerAborted(42));
                reason
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(reason(near.recv_timeout(TIME_LIMIT)), expected);
        aborting.join().unwrap();
    }
}

#[test]
fn close_times_out_if_peer_has_no_memory() {
    let mut config = Config::default();
    config.close_timeout = Duration::from_millis(200);
    config.max_message = 2 << 20;
    config.large_memory = 2 << 20;
    let (near, far) = pair_with(&config);
    near.send(&pattern(2 << 20)).unwrap();
    // The receiver has no memory for the second message while the program holds the first message.
    let first = far.recv_timeout(TIME_LIMIT).unwrap();
    near.send(&pattern(2 << 20)).unwrap();
    let given_up = near.close().unwrap_err();
    assert!(matches!(given_up, Error::Undelivered(_)), "{given_up}");
    drop(first);
    let ended = reason(far.recv_timeout(TIME_LIMIT));
    assert_ne!(
        ended,
        CloseReason::PeerClosed,
        "the loss of a message must not be reported as a clean close"
    );
}

#[test]
fn both_may_close_at_once() {
    let (near, far) = pair();
    let other = thread::spawn(move || far.close());
    near.close().unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn a_side_that_has_finished_goes_on_receiving() {
    let (near, far) = pair();
    near.send(b"small").unwrap();
    near.send(&pattern(300_000)).unwrap();
    near.finish().unwrap();
    assert!(matches!(near.send(b"more"), Err(Error::Finished)));
    assert_eq!(*far.recv_timeout(TIME_LIMIT).unwrap(), *b"small");
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(300_000)[..]);
    for _ in 0..2 {
        let end = far.recv_timeout(TIME_LIMIT);
        assert!(matches!(end, Err(Error::PeerFinished)), "{end:?}");
    }
    far.send(b"an answer").unwrap();
    assert_eq!(*near.recv_timeout(TIME_LIMIT).unwrap(), *b"an answer");
    far.finish().unwrap();
    let completion = near.next_completion_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(completion, Completion::Finished), "{completion:?}");
    near.close().unwrap();
    // Until the connection ends, `recv` returns `PeerFinished`. Wait for the completion that
    // reports the end.
    let end = far.next_completion_timeout(TIME_LIMIT).unwrap();
    assert!(
        matches!(end, Completion::Disconnected(CloseReason::PeerClosed)),
        "{end:?}"
    );
    assert_eq!(
        reason(far.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
}
