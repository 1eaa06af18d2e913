use std::{sync::Barrier, thread, time::Duration};

use rdmsg::{Completion, Endpoint, Error, Outgoing, RemoteAccess, crossbeam_channel::select};

use crate::stage::{TIME_LIMIT, pair, pair_with, small};

/// The maximum number of untaken completions of messages with ids, in the configuration `small`.
const MAX_OUTSTANDING: u64 = 8;

/// Spawns a thread that receives messages until the connection ends.
fn receive_all(endpoint: Endpoint) -> thread::JoinHandle<()> {
    thread::spawn(move || while endpoint.recv().is_ok() {})
}

#[test]
fn completions_arrive_through_each_method() {
    let (near, far) = pair();
    assert!(far.try_next_completion().unwrap().is_none());
    let waited = far.next_completion_timeout(Duration::from_millis(20));
    assert!(matches!(waited, Err(Error::TimedOut)));
    near.send(b"one").unwrap();
    assert!(matches!(far.next_completion().unwrap(), Completion::Received(m) if *m == *b"one"));
    near.send(b"two").unwrap();
    select! {
        recv(far.completions()) -> completion => {
            assert!(matches!(completion.unwrap(), Completion::Received(m) if *m == *b"two"));
        }
        default(TIME_LIMIT) => panic!("no completion arrived"),
    }
    near.close().unwrap();
    assert!(matches!(
        far.next_completion().unwrap(),
        Completion::Disconnected(_)
    ));
    assert!(matches!(far.next_completion(), Err(Error::Disconnected(_))));
}

#[test]
fn unread_messages_take_no_place_of_an_id() {
    let (near, far) = pair_with(&small());
    for _ in 0..far.info().negotiated.unwrap().send_window {
        far.send(b"unread").unwrap();
    }
    // The flush waits until the library of the near side has received all these messages.
    far.flush_timeout(TIME_LIMIT).unwrap();
    let reading = receive_all(far);
    for id in 0..MAX_OUTSTANDING {
        near.send(Outgoing::from(b"x").with_id(id)).unwrap();
    }
    let refused = near
        .send(Outgoing::from(b"x").with_id(MAX_OUTSTANDING))
        .unwrap_err();
    assert!(matches!(refused, Error::CompletionsNotTaken), "{refused}");
    near.close().unwrap();
    reading.join().unwrap();
}

#[test]
fn call_waits_for_thread_that_takes_completions() {
    const ROUNDS: u64 = 100;
    let (near, far) = pair_with(&small());
    let theirs = far.one_sided().region(64, RemoteAccess::WRITE).unwrap();
    let ours = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    let reading = receive_all(far);
    let begun = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(near.try_next_completion().unwrap().is_none());
            begun.wait();
            for _ in 0..2 * ROUNDS {
                let completion = near.next_completion_timeout(TIME_LIMIT).unwrap();
                assert!(
                    matches!(completion, Completion::Sent(_) | Completion::Written(_)),
                    "{completion:?}"
                );
                // Take completions more slowly than the sender sends, so that the sender has to
                // wait for room.
                thread::sleep(Duration::from_micros(500));
            }
        });
        begun.wait();
        for id in 0..ROUNDS {
            near.send(Outgoing::from(b"x").with_id(id)).unwrap();
            near.one_sided()
                .write(&ours, 0..64, &theirs.remote(), 0, id)
                .unwrap();
        }
    });
    near.close().unwrap();
    reading.join().unwrap();
}

#[test]
fn bounded_call_reports_untaken_completions() {
    let (near, far) = pair_with(&small());
    let reading = receive_all(far);
    thread::scope(|scope| {
        scope.spawn(|| assert!(near.try_next_completion().unwrap().is_none()));
    });
    for id in 0..MAX_OUTSTANDING {
        near.send(Outgoing::from(b"x").with_id(id)).unwrap();
    }
    let bound = Duration::from_millis(50);
    let refused = near
        .send_timeout(Outgoing::from(b"x").with_id(MAX_OUTSTANDING), bound)
        .unwrap_err();
    assert!(matches!(refused, Error::CompletionsNotTaken), "{refused}");
    near.close().unwrap();
    reading.join().unwrap();
}
