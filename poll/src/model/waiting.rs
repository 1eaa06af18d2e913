//! Loom tests of each kind of waiter. In most tests, the engine's thread also runs.

use loom::{model::Builder, sync::Arc, thread};

use super::connection::{Connection, Mistake};
use crate::{AttendedConnection, Owner, Reliance};

/// Runs all interleavings with at most `preemptions` preemptions.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(run);
}

fn spawn(
    connection: &Arc<Connection>,
    run: impl FnOnce(&Connection) + 'static,
) -> thread::JoinHandle<()> {
    let connection = Arc::clone(connection);
    thread::spawn(move || run(&connection))
}

/// A thread waits for one message and returns, while a second message arrives. The engine's thread
/// must poll and deliver the second message.
fn thread_waits(mistake: Option<Mistake>) {
    let connection = Connection::new(mistake);
    let engine = Connection::engine(&connection);
    let device = spawn(&connection, |connection| {
        connection.complete();
        connection.complete();
    });
    connection.recv();
    device.join().unwrap();
    connection.stop(engine);
    assert_eq!(connection.messages(), 1, "nobody polls");
}

/// A thread calls `try_recv` once and never polls again. If the message arrives after that call,
/// the engine's thread must poll and deliver it.
fn thread_stops_polling(mistake: Option<Mistake>) {
    let connection = Connection::new(mistake);
    let engine = Connection::engine(&connection);
    let device = spawn(&connection, Connection::complete);
    let taken = connection.try_recv().is_some();
    device.join().unwrap();
    connection.stop(engine);
    let left = connection.messages();
    assert_eq!(u64::from(taken) + left, 1, "nobody polls");
}

#[test]
fn waiting_thread_takes_arriving_message() {
    model(2, || thread_waits(None));
}

#[test]
fn engine_polls_after_a_thread_that_left() {
    model(2, || thread_stops_polling(None));
}

#[test]
fn leader_and_follower_take_a_message_each() {
    model(2, || {
        let connection = Connection::new(None);
        let device = spawn(&connection, |connection| {
            connection.complete();
            connection.complete();
        });
        let other = spawn(&connection, Connection::recv);
        connection.recv();
        other.join().unwrap();
        device.join().unwrap();
    });
}

#[test]
fn leader_is_woken_by_each_of_two_threads() {
    model(3, || {
        let connection = Connection::new(None);
        let one = spawn(&connection, Connection::deliver);
        let two = spawn(&connection, |connection| {
            connection.deliver();
            connection.deliver();
        });
        for _ in 0..3 {
            connection.recv();
        }
        one.join().unwrap();
        two.join().unwrap();
    });
}

#[test]
fn engine_polls_after_a_thread_that_took_its_event() {
    model(2, || {
        let connection = Connection::new(None);
        let engine = Connection::engine(&connection);
        let device = spawn(&connection, |connection| {
            for _ in 0..3 {
                connection.complete();
            }
        });
        connection.recv();
        device.join().unwrap();
        connection.stop(engine);
        assert_eq!(connection.messages(), 2, "nobody polls");
    });
}

#[test]
fn engine_polls_for_a_loop_that_left() {
    model(2, || {
        let connection = Connection::new(None);
        connection.poller.rely(Reliance::Readable);
        let engine = Connection::engine(&connection);
        let device = spawn(&connection, Connection::complete);
        let taken = connection.try_recv().is_some();
        device.join().unwrap();
        connection.stop(engine);
        assert_eq!(u64::from(taken) + connection.messages(), 1, "nobody polls");
    });
}

#[test]
fn engine_polls_for_a_task_next_to_a_thread() {
    model(2, || {
        let connection = Connection::new(None);
        let engine = Connection::engine(&connection);
        let device = spawn(&connection, |connection| {
            connection.poller.rely(Reliance::Tasks);
            connection.complete();
            connection.complete();
        });
        connection.recv();
        device.join().unwrap();
        connection.stop(engine);
        assert_eq!(connection.poller.owner(), Owner::Engine);
        assert_eq!(connection.messages(), 1, "nobody polls the task's message");
    });
}

#[test]
fn engine_polls_for_a_task_that_waits() {
    model(2, || {
        let connection = Connection::new(None);
        let engine = Connection::engine(&connection);
        let device = spawn(&connection, Connection::complete);
        connection.recv_in_task();
        device.join().unwrap();
        connection.stop(engine);
    });
}

#[test]
fn engine_sends_what_a_thread_held_back() {
    model(2, || {
        let connection = Connection::new(None);
        let engine = Connection::engine(&connection);
        let holder = spawn(&connection, Connection::hold_back);
        connection.try_recv();
        holder.join().unwrap();
        let owned = connection.poller.owner() == Owner::Engine;
        connection.stop(engine);
        // If the engine owns the connection, the engine will send the held-back message when room
        // becomes available. If a thread owns the connection, the message must already have been
        // sent.
        assert!(owned || !AttendedConnection::holds_back(&*connection));
    });
}

/// A thread waits for one message of a group and returns, while a second message arrives. The
/// engine's thread must poll and deliver the second message.
fn thread_waits_for_group(mistake: Option<Mistake>) {
    let connection = Connection::in_group(mistake);
    let engine = Connection::engine(&connection);
    let device = spawn(&connection, |connection| {
        connection.complete();
        connection.complete();
    });
    connection.recv_in_group();
    device.join().unwrap();
    connection.stop(engine);
    assert_eq!(connection.messages(), 1, "nobody polls");
}

#[test]
fn thread_that_waits_for_a_group_takes_a_message() {
    model(2, || thread_waits_for_group(None));
}

#[test]
fn two_threads_of_a_group_take_a_message_each() {
    model(2, || {
        let connection = Connection::in_group(None);
        let device = spawn(&connection, |connection| {
            connection.complete();
            connection.complete();
        });
        let other = spawn(&connection, Connection::recv_in_group);
        connection.recv_in_group();
        other.join().unwrap();
        device.join().unwrap();
    });
}

#[test]
fn group_is_woken_for_messages_of_other_threads() {
    model(2, || {
        let connection = Connection::in_group(None);
        let other = spawn(&connection, Connection::deliver);
        connection.recv_in_group();
        other.join().unwrap();
    });
}

#[test]
fn engine_polls_a_member_that_leaves_its_group() {
    model(2, || {
        let connection = Connection::in_group(None);
        let engine = Connection::engine(&connection);
        let device = spawn(&connection, |connection| {
            connection.complete();
            connection.complete();
        });
        connection.recv_in_group();
        connection.poller.stop_relying(Reliance::Group);
        connection.poller.leave_group();
        device.join().unwrap();
        connection.stop(engine);
        assert_eq!(connection.messages(), 1, "nobody polls");
    });
}

// In each of the following tests, loom must find the inserted bug.

#[test]
#[should_panic = "nobody polls"]
fn lost_renewal_is_found() {
    model(3, || thread_stops_polling(Some(Mistake::LostRenewal)));
}

#[test]
#[should_panic = "nobody polls"]
fn missed_arm_is_found() {
    model(3, || thread_stops_polling(Some(Mistake::MissedArm)));
}

#[test]
#[should_panic = "nobody polls"]
fn unchecked_expiry_is_found() {
    model(3, || thread_waits(Some(Mistake::UncheckedExpiry)));
}

#[test]
#[should_panic = "deadlock"]
fn missed_arm_in_a_group_is_found() {
    model(2, || thread_waits_for_group(Some(Mistake::MissedArm)));
}

#[test]
#[should_panic = "deadlock"]
fn unwoken_group_is_found() {
    model(2, || {
        let connection = Connection::in_group(Some(Mistake::UnwokenGroup));
        let other = spawn(&connection, Connection::deliver);
        connection.recv_in_group();
        other.join().unwrap();
    });
}
