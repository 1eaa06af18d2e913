//! Networks that lose, delay, repeat and spoil what they carry: every connection goes on, and nothing is lost.

use std::time::Duration;

use rdmsg::Config;

use super::SOME;
use crate::scenario::{Expect, Fault, Group, Scenario, Talk};

pub(super) fn scenarios() -> Vec<Scenario> {
    let scenario = |name, netem| {
        Scenario::new(name, &SOME)
            .fault(Fault::Network(netem), Expect::GoesOn)
            .flow(4)
    };
    vec![
        scenario("loss-0.1", "loss 0.1%"),
        scenario("loss-1", "loss 1%").quick(),
        scenario("loss-5", "loss 5%"),
        scenario("delay", "delay 40ms"),
        scenario("jitter", "delay 10ms reorder 2% 25%"),
        scenario("duplicate", "duplicate 5%"),
        scenario("corrupt", "corrupt 1%"),
        scenario(
            "everything",
            "delay 5ms reorder 1% loss 0.5% duplicate 1% corrupt 0.2%",
        )
        .quick(),
        Scenario::new(
            "slow-wire",
            &[Group::new(1, Talk::Idle), Group::new(3, Talk::Large)],
        )
        .fault(Fault::Network("rate 1mbit"), Expect::GoesOn)
        .config(patient)
        .flow(20),
    ]
}

/// The device waits as long for an acknowledgement as it has to where a packet's own way takes seconds.
fn patient(config: &mut Config) {
    config.ack_timeout = Some(18);
    config.keepalive_timeout = Duration::from_secs(20);
}
