use std::{io::IoSlice, sync::Barrier, thread, time::Duration};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{
    CloseReason, Completion, Endpoint, Error, Interest, Outgoing, RemoteAccess,
    crossbeam_channel::select,
};

use crate::stage::{TIME_LIMIT, pair, pair_with, small};

/// The maximum number of messages with ids that can be outstanding with the configuration `small`.
/// A message is outstanding until the program takes its completion.
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
fn requested_channel_has_the_rest_of_a_batch() {
    let (near, far) = pair();
    let batch: Vec<_> = (0..8).map(|number| [number]).collect();
    let slices: Vec<_> = batch.iter().map(|bytes| IoSlice::new(bytes)).collect();
    assert_eq!(near.send_batch(&slices).unwrap(), batch.len());
    assert_eq!(far.recv().unwrap(), [0]);
    assert_eq!(far.recv().unwrap(), [1]);
    let channel = far.completions().clone();
    let taking = thread::spawn(move || {
        let mut taken = Vec::new();
        loop {
            match channel.recv_timeout(TIME_LIMIT).unwrap() {
                Completion::Received(message) => taken.push(message[0]),
                Completion::Disconnected(reason) => break (taken, reason, channel.recv()),
                other => panic!("{other:?}"),
            }
        }
    });
    near.send(&[8]).unwrap();
    assert_eq!(near.send_batch(&slices).unwrap(), batch.len());
    near.close().unwrap();
    let (taken, reason, after) = taking.join().unwrap();
    assert_eq!(taken, (2..9).chain(0..8).collect::<Vec<u8>>());
    assert!(matches!(reason, CloseReason::PeerClosed), "{reason}");
    assert!(after.is_err(), "the channel must end after the connection");
    assert!(matches!(far.recv(), Err(Error::Disconnected(_))));
}

#[test]
fn fd_stays_readable_until_batch_is_taken() {
    let (near, far) = pair();
    let fd = far.event_fd(Interest::Readable).unwrap();
    let is_readable = |timeout: PollTimeout| {
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        poll(&mut fds, timeout).unwrap() > 0
    };
    let limit = PollTimeout::try_from(TIME_LIMIT).unwrap();
    assert_eq!(near.send_batch(&[IoSlice::new(b"part"); 4]).unwrap(), 4);
    let mut taken = 0;
    while taken < 4 {
        assert!(
            is_readable(limit),
            "the fd must stay readable after {taken} of 4 messages"
        );
        match taken {
            0 => taken += usize::from(far.try_recv().unwrap().is_some()),
            _ => {
                far.recv_timeout(TIME_LIMIT).unwrap();
                taken += 1;
            }
        }
    }
    // Internal events of the library can also make the fd readable. `try_recv` handles such events.
    while is_readable(PollTimeout::ZERO) {
        assert!(far.try_recv().unwrap().is_none());
    }
}

#[test]
fn threads_receive_each_message_of_batches_once() {
    const BATCHES: usize = 200;
    let (near, far) = pair();
    let receiving: Vec<_> = (0..3)
        .map(|_| {
            let far = far.clone();
            thread::spawn(move || {
                let mut taken = Vec::new();
                while let Ok(message) = far.recv() {
                    taken.push(u32::from_be_bytes(message[..].try_into().unwrap()));
                }
                taken
            })
        })
        .collect();
    for batch in 0..BATCHES as u32 {
        let numbers: [_; 5] =
            std::array::from_fn(|number| (5 * batch + number as u32).to_be_bytes());
        let slices = numbers.each_ref().map(|bytes| IoSlice::new(bytes));
        assert_eq!(near.send_batch(&slices).unwrap(), slices.len());
    }
    near.close().unwrap();
    let mut all = Vec::new();
    for thread in receiving {
        let taken = thread.join().unwrap();
        assert!(
            taken.is_sorted(),
            "each thread must receive its messages in order"
        );
        all.extend(taken);
    }
    all.sort_unstable();
    assert_eq!(all, (0..5 * BATCHES as u32).collect::<Vec<_>>());
}

#[test]
fn unread_messages_do_not_limit_sends_with_ids() {
    let (near, far) = pair_with(&small());
    for _ in 0..far.info().negotiated.unwrap().send_window {
        far.send(b"unread").unwrap();
    }
    // The flush waits until the near side's library has received all these messages.
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
                // wait until a completion is taken.
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
