//! Processes, devices, addresses and hosts that go, and some that come back.

use std::time::Duration;

use rdmsg::Config;

use super::{IDLE_AND_BUSY, SOME, cuts::watchful};
use crate::scenario::{Expect, Fault, Group, Scenario, Talk};

pub(super) fn scenarios() -> Vec<Scenario> {
    let seconds = Duration::from_secs;
    let scenario = |name, fault, expect| {
        Scenario::new(name, &SOME)
            .fault(fault, expect)
            .config(watchful)
    };
    vec![
        scenario("killed-process", Fault::ProcessKilled, Expect::ClientLearns).quick(),
        scenario(
            "stopped-process",
            Fault::ProcessStopped(seconds(3)),
            Expect::GoesOn,
        )
        .config(long_keepalive),
        scenario(
            "long-stopped-process",
            Fault::ProcessStopped(seconds(20)),
            Expect::ServerLearnsAfterwards,
        )
        .quick(),
        Scenario::new(
            "leaving-process",
            &[
                Group::new(2, Talk::Small),
                Group::new(2, Talk::Large),
                Group::new(2, Talk::Mixed),
            ],
        )
        .fault(Fault::ProcessLeaves, Expect::AllOfServerArrives)
        .config(long_keepalive),
        Scenario::new("address-change", &IDLE_AND_BUSY)
            .fault(Fault::AddressChanged, Expect::BothLearn)
            .config(watchful),
        Scenario::new("device-removal", &IDLE_AND_BUSY)
            .fault(Fault::DeviceRemoved, Expect::BothLearn)
            .config(watchful),
        Scenario::new("after-device-removal", &SOME),
        Scenario::new("killed-host", &IDLE_AND_BUSY)
            .fault(Fault::HostKilled, Expect::ClientLearns)
            .config(watchful)
            .quick(),
    ]
}

fn long_keepalive(config: &mut Config) {
    config.keepalive_interval = Some(Duration::from_secs(2));
    config.keepalive_timeout = Duration::from_secs(30);
}
