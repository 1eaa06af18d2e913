//! Runs what threads agree on without a lock through all interleavings, and all that weak memory
//! allows: `cargo test --manifest-path integration/models/Cargo.toml`. It compiles the sources
//! themselves.
#![cfg(test)]

#[path = "../../../src/link/poll_lease.rs"]
mod poll_lease;

use loom::{sync::Arc, thread};

use self::poll_lease::{PollLease, Term};

/// The engine looks after a lease while the thread that holds it sleeps, wakes up and polls.
#[test]
fn no_queue_is_left_that_nobody_watches() {
    loom::model(|| {
        let lease = Arc::new(PollLease::new());
        assert!(lease.renew(), "the engine is told of the first poll");
        let seen = lease.grant();
        let sleeper = {
            let lease = Arc::clone(&lease);
            thread::spawn(move || {
                lease.fall_asleep();
                lease.wake_up();
                lease.renew()
            })
        };
        let term = lease.look(seen);
        let told = sleeper.join().unwrap();
        match term {
            Term::Left => assert!(told, "the engine has left, and nobody told it to come back"),
            // It looks again, or watches.
            Term::Renewed(_) | Term::Expired => {}
        }
    });
}

/// The engine watches again because nothing was renewed, and a thread begins to poll.
#[test]
fn a_lease_that_expired_is_granted_again() {
    loom::model(|| {
        let lease = Arc::new(PollLease::new());
        assert!(lease.renew());
        let seen = lease.grant();
        let poller = {
            let lease = Arc::clone(&lease);
            thread::spawn(move || lease.renew())
        };
        let term = lease.look(seen);
        if term == Term::Expired {
            lease.expire();
        }
        let told = poller.join().unwrap();
        match term {
            Term::Expired => assert!(told || lease.renew(), "its next poll tells at the latest"),
            Term::Renewed(_) => assert!(!told, "the engine looks again anyway"),
            Term::Left => unreachable!("nobody sleeps"),
        }
    });
}

/// A thread holds something back while another begins to poll, so that the engine stays away.
#[test]
fn the_engine_knows_of_a_lease_that_is_pressed() {
    loom::model(|| {
        let lease = Arc::new(PollLease::new());
        let presser = {
            let lease = Arc::clone(&lease);
            thread::spawn(move || lease.press())
        };
        let told = lease.renew();
        assert!(told, "the engine hears of the lease, and grants it");
        let pressed = lease.is_pressed();
        let told = presser.join().unwrap();
        assert!(told || pressed, "it would take its time to look");
        lease.relax();
        assert!(lease.press(), "it is told again");
    });
}
