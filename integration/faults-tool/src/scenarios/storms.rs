//! Many connections at once, and more messages than anybody takes.

use rdmsg::Config;

use super::SOME;
use crate::scenario::{Expect, Fault, Group, Reading, Scenario, Talk};

pub(super) fn scenarios() -> Vec<Scenario> {
    let storm = |name, count| {
        Scenario::new(name, &[Group::new(count, Talk::Idle)])
            .config(slim)
            .flow(0)
    };
    vec![
        storm("storm-50", 50).quick(),
        storm("storm-100", 100),
        storm("storm-200", 200),
        Scenario::new(
            "restarting-server",
            &[Group::new(20, Talk::Idle), Group::new(4, Talk::Small)],
        )
        .fault(Fault::ServerRestarts(3), Expect::ServedInTheEnd)
        .config(slim),
        Scenario::new(
            "flood",
            &[
                Group::new(2, Talk::Small).read(Reading::Keeping),
                Group::new(1, Talk::Mixed).read(Reading::Keeping),
                Group::new(1, Talk::Small),
                Group::new(1, Talk::Idle),
            ],
        )
        .quick(),
        Scenario::new(
            "slow-receiver",
            &[
                Group::new(2, Talk::Small).read(Reading::Slow),
                Group::new(1, Talk::Mixed).read(Reading::Slow),
                Group::new(1, Talk::Large).read(Reading::Slow),
                Group::new(1, Talk::Idle),
            ],
        ),
        Scenario::new("strangers", &SOME).fault(Fault::Strangers, Expect::GoesOn),
        Scenario::new(
            "crowd",
            &[
                Group::new(60, Talk::Mixed),
                Group::new(30, Talk::Operations),
                Group::new(110, Talk::Idle),
            ],
        )
        .config(sharing)
        .flow(3),
    ]
}

/// Little memory for each of many.
fn slim(config: &mut Config) {
    config.receive_window = 4;
    config.send_depth = 4;
    config.eager_size = Some(4096);
    config.large_memory = 1 << 20;
    config.registration_cache = 0;
}

/// As little, and all connections of a side draw on the same receives.
fn sharing(config: &mut Config) {
    slim(config);
    config.shared_receive = Some(200 * 26);
}
