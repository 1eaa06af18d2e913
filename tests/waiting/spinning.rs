//! Tests that a waiting thread sleeps instead of spinning if it can run on only one processor.

use std::time::Duration;

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use rdmsg::{Config, Polling};

use crate::stage::{Stage, unprobed};

/// The timeout of the wait. The configured spin time is longer, so a spinning thread would spin
/// during the whole wait.
const WAIT: Duration = Duration::from_millis(500);

/// The maximum processor time that a sleeping wait may use.
const MAX_USED: Duration = Duration::from_millis(50);

/// Returns the processor time used by this thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

/// Restricts this thread, and the threads that it starts later, to one processor. Selects the first
/// processor on which this thread may run.
fn pin_to_one_processor() {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap());
    let mut one = CpuSet::new();
    one.set(first.unwrap()).unwrap();
    sched_setaffinity(this, &one).unwrap();
}

#[test]
fn wait_never_spins_on_one_processor() {
    pin_to_one_processor();
    let spin = Duration::from_secs(1);
    let config: Config = unprobed().with(|c| c.polling = Polling::Adaptive { spin });
    let stage = Stage::new(&config);
    let (near, _far) = stage.pair(&config);
    let before = thread_time();
    assert!(near.recv_timeout(WAIT).is_err(), "the wait must time out");
    let used = thread_time() - before;
    assert!(
        used < MAX_USED,
        "the wait must sleep, but used the processor for {used:?}"
    );
}
