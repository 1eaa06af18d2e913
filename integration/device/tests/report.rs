//! Tests the report of `rdmsg bench` over RDMA, with both hosts in one guest.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;
use toolbox::{DeviceTest, Lab, Process, Shell, TIME_LIMIT, example};

/// The names of the two hosts. These texts occur in a report only if the report reveals a host
/// name.
const NAMES: [&str; 2] = ["measuring-host", "serving-host"];

/// Returns a command that sets the host name to `name` in a new UTS namespace and runs `line`
/// there.
fn on_host(name: &str, line: &str) -> String {
    format!("exec unshare --uts sh -c 'hostname {name} && exec {line}'")
}

/// Returns the texts that identify this host: its addresses, the GIDs and the GUID of its device,
/// and [`NAMES`].
fn private(lab: &Lab) -> Vec<String> {
    let device = format!("/sys/class/infiniband/{}", lab.device);
    let gids = fs::read_dir(format!("{device}/ports/1/gids")).unwrap();
    let mut files: Vec<_> = gids.map(|gid| gid.unwrap().path()).collect();
    files.push(format!("{device}/node_guid").into());
    files.push("/sys/class/net/eth0/address".into());
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    let mut private: Vec<String> = texts.map(|text| text.trim().to_owned()).collect();
    private.retain(|text| text.contains(|c: char| c != '0' && c != ':'));
    assert!(private.len() > 2, "{private:?}");
    private.extend([lab.addr.to_string(), lab.addr6.to_string()]);
    private.extend(NAMES.map(str::to_owned));
    private
}

#[test]
fn report_over_rdma_has_no_private_data() {
    let lab = DeviceTest::start();
    let program = example("rdmsg").display().to_string();
    let argv = ["sh", "-c", &on_host(NAMES[1], &format!("{program} serve"))];
    let mut server = Process::start(&argv).unwrap();
    assert!(server.wait_for_text("over RDMA", TIME_LIMIT));

    let folder = std::env::temp_dir().join(format!("rdmsg-report-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let name = folder.join("results");
    let line = format!(
        "{program} bench {} --transport rdma --test latency,rate --sizes 64 --seconds 0.1 \
         --timeout 60 --report {}",
        lab.addr,
        name.display()
    );
    let mut shell = Shell::start().unwrap();
    shell
        .run(&format!("({})", on_host(NAMES[0], &line)))
        .unwrap();
    server.signal(Signal::SIGTERM).unwrap();
    let ended = server.end(TIME_LIMIT).unwrap().unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);

    let text = fs::read_to_string(name.with_extension("json")).unwrap();
    let markdown = fs::read_to_string(name.with_extension("md")).unwrap();
    fs::remove_dir_all(folder).unwrap();
    for text in [&text, &markdown] {
        for string in private(&lab) {
            assert!(!text.contains(&string), "{string}: {text}");
        }
    }

    let value: Value = serde_json::from_str(&text).unwrap();
    let [protocol, driver, provider] = match lab.is_iwarp() {
        true => ["iWARP", "siw", "siw"],
        false => ["RoCE", "rdma_rxe", "rxe"],
    };
    for host in ["here", "peer"] {
        let devices = value[host]["devices"].as_array().unwrap();
        let device = devices.iter().find(|it| it["device"] == *lab.device);
        let device = device.unwrap_or_else(|| panic!("{}: {text}", lab.device));
        assert_eq!(device["protocol"], protocol);
        assert_eq!(device["driver"], driver);
        assert_eq!(device["provider"], provider);
        // A software device has no firmware.
        assert_eq!(device.get("firmware"), Some(&Value::Null));
        assert!(device["mtu"].as_u64() > Some(1000), "{device}");
    }
    let settings = &value["settings"];
    assert_eq!(settings["tests"], serde_json::json!(["latency", "rate"]));
    assert_eq!(settings["sizes"], serde_json::json!([64]));
    assert_eq!(settings["config"]["receive_window"], Value::Null);
    assert_eq!(settings["config"]["rdma"]["retry_count"], 7);
    assert_eq!(value["is_complete"], true, "{text}");
    let points = value["points"].as_array().unwrap();
    assert_eq!(points.len(), 2, "{text}");
    for point in points {
        assert_eq!(point["transport"], "RDMA", "{text}");
        assert!(point["messages"].as_u64() > Some(0), "{text}");
    }
    assert!(
        points[0]["round_trip_us"]["median"].as_f64() > Some(0.0),
        "{text}"
    );

    let columns = "| device | protocol | is_software | driver | provider | firmware | board |";
    let row = format!(
        "| {} | {protocol} | true | {driver} | {provider} | – | – |",
        lab.device
    );
    for part in [
        columns,
        &row,
        "## Peer",
        "## Settings",
        "\"receive_window\": null",
        "latency: round trip",
        "rate: ",
        "## Findings of rdmsg doctor",
    ] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
}
