use std::env;

use rdmsg::Config;
use serde_json::{Map, Value, json};

use super::super::{options::Options, plan::Plan, results::Results};
use crate::doctor::{self, Finding};

/// The environment variables of RDMA providers that affect performance. Their values contain no
/// private data.
const VARIABLES: [&str; 8] = [
    "MLX5_SINGLE_THREADED",
    "MLX5_SHUT_UP_BF",
    "MLX5_POST_SEND_PREFER_BF",
    "MLX5_SCATTER_TO_CQE",
    "MLX5_CQE_SIZE",
    "MLX5_STALL_CQ_POLL",
    "RDMAV_FORK_SAFE",
    "RDMAV_HUGEPAGES_SAFE",
];

/// Returns the whole report as JSON. Its strings may still contain private data.
pub(super) fn of(
    examined: &doctor::Report,
    options: &Options,
    results: &Results,
    plan: &Plan,
) -> Value {
    let here = &examined.here;
    let about = examined.there.as_ref().and_then(|it| it.about.as_ref());
    let findings: Vec<Value> = examined.findings().map(of_finding).collect();
    json!({
        "here": {
            "rdmsg": here.version,
            "kernel": here.kernel,
            "devices": here.hardware,
        },
        "peer": about.map(|about| json!({
            "rdmsg": about.version,
            "kernel": about.kernel,
            "devices": about.hardware,
        })),
        "settings": settings(options, plan),
        "findings": findings,
        "is_complete": results.is_whole(plan),
        "points": results.to_json(),
        "perftest": perftest(),
    })
}

/// Converts a finding to JSON. Leaves out the reason, the commands and the hint, because they are
/// useful only on the examined host.
fn of_finding(finding: &Finding) -> Value {
    json!({
        "host": finding.host,
        "subject": finding.subject,
        "state": finding.state,
        "what": finding.what,
    })
}

fn settings(options: &Options, plan: &Plan) -> Value {
    let tests: Vec<&str> = options.tests.iter().map(|test| test.name()).collect();
    let carriers: Vec<&str> = plan.carriers().iter().map(|it| it.name()).collect();
    let sizes: Vec<u64> = options.sizes.iter().map(|size| size.0).collect();
    let set = VARIABLES
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?.into())));
    json!({
        "tests": tests,
        "sizes": sizes,
        "connections": options.connections,
        "transports": carriers,
        "seconds": options.seconds.as_secs_f64(),
        "variables": set.collect::<Map<String, Value>>(),
        "config": config(options),
    })
}

/// Returns the configuration of the connections. Leaves out the transport, which differs between
/// points.
fn config(options: &Options) -> Value {
    let config = Config::default().with(|config| config.connect_timeout = options.timeout);
    let mut value = json!(config);
    if let Some(members) = value.as_object_mut() {
        members.remove("transport");
    }
    value
}

fn perftest() -> String {
    let is_installed = match doctor::command("ib_send_lat") {
        Some(_) => "installed",
        None => "not installed",
    };
    format!(
        "not run, because its programs need a server on the peer, which this program cannot \
         start; perftest is {is_installed} on this host"
    )
}
