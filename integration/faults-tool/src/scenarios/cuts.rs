//! Wires that are cut for a while. A short cut is none of the connections' business; of a long one
//! both sides learn in time.

use std::time::Duration;

use rdmsg::Config;

use super::IDLE_AND_BUSY;
use crate::scenario::{Expect, Fault, Scenario};

pub(super) fn scenarios() -> Vec<Scenario> {
    let seconds = Duration::from_secs;
    let short = |name, fault| {
        Scenario::new(name, &IDLE_AND_BUSY)
            .fault(fault, Expect::GoesOn)
            .config(steadfast)
    };
    let long = |name, fault| {
        Scenario::new(name, &IDLE_AND_BUSY)
            .fault(fault, Expect::BothLearn)
            .config(watchful)
    };
    vec![
        short("cut-1s", Fault::Swallowed(seconds(1))).quick(),
        short("cut-3s", Fault::Swallowed(seconds(3))),
        short("cut-10s", Fault::Swallowed(seconds(10))),
        short(
            "cut-while-closing",
            Fault::SwallowedWhileClosing(seconds(3)),
        ),
        long("long-cut", Fault::Swallowed(seconds(12))).quick(),
        long("long-cut-30s", Fault::Swallowed(seconds(30))),
        Scenario::new("long-cut-while-closing", &IDLE_AND_BUSY)
            .fault(Fault::SwallowedWhileClosing(seconds(15)), Expect::Honest)
            .config(watchful),
    ]
}

/// Outlives a cut of ten seconds.
fn steadfast(config: &mut Config) {
    config.ack_timeout = Some(19);
    config.keepalive_interval = Some(Duration::from_secs(2));
    config.keepalive_timeout = Duration::from_secs(30);
}

/// Notices a cut after some seconds.
pub(super) fn watchful(config: &mut Config) {
    config.keepalive_interval = Some(Duration::from_secs(1));
    config.keepalive_timeout = Duration::from_secs(3);
    config.close_timeout = Duration::from_secs(5);
}
