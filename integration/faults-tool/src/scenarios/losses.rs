//! Networks that lose, delay, repeat and spoil what they carry: every connection goes on, and
//! nothing is lost.

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
            &[
                Group::new(1, Talk::Idle),
                Group::new(1, Talk::Large),
                Group::new(2, Talk::Mixed),
            ],
        )
        .fault(Fault::Network("rate 1mbit"), Expect::GoesOn)
        .config(patient)
        .flow(3),
    ]
}

/// Where a packet waits for seconds behind those of other connections: the device is not to repeat
/// it meanwhile, and few messages are on their way, so that the end is seen. Keepalive and
/// `read_timeout` are as always: idle or not, nothing ends while bytes move.
fn patient(config: &mut Config) {
    config.ack_timeout = Some(23);
    config.receive_window = 4;
    config.close_timeout = Duration::from_secs(300);
}
