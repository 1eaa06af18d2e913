//! Tests devices of different kinds in one process.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    process::Command,
    thread,
};

use rdmsg::{Completion, Connector, Endpoint, Engine, Group, Listener, Outgoing};
use toolbox::{DeviceTest, TIME_LIMIT, patient, pattern};

/// Returns the IPv4 addresses of all RDMA devices of this host.
fn addresses() -> Vec<IpAddr> {
    let devices = env::var("LAB_DEVICES").expect("the lab sets LAB_DEVICES");
    let addresses = devices.split(' ').map(|device| {
        let (_, address) = device.split_once('=').unwrap();
        address.parse().unwrap()
    });
    addresses.collect()
}

#[test]
fn the_kernel_counts_what_rdma_resource_show_counts() {
    let lab = DeviceTest::start();
    let listener = Listener::bind(lab.at(0)).unwrap();
    let output = Command::new("rdma")
        .args(["resource", "show", &lab.device])
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let (_, counts) = shown.split_once(&format!("{}: ", lab.device)).unwrap();
    assert_eq!(lab.resources(), counts.trim());
    assert!(
        counts.contains("cm_id 1 "),
        "only the listener must have an id: {counts}"
    );
    drop(listener);
}

/// One engine uses a RoCE device and an iWARP device. The engine queries the capabilities of each
/// device, and messages behave the same on both devices.
#[test]
#[ignore = "needs a device of each kind"]
fn one_engine_serves_devices_of_both_kinds() {
    let _test = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let group = Group::new();
    let connect = |address: &IpAddr| -> (Endpoint, Endpoint) {
        let address = SocketAddr::new(*address, 0);
        let listener = Listener::builder()
            .config(&patient())
            .engine(&engine)
            .bind(address)
            .unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| listener.accept_timeout(TIME_LIMIT).unwrap());
            let client = Connector::new().config(&patient()).engine(&engine);
            let client = client.connect(listener.local_addr()).unwrap();
            (client, server.join().unwrap())
        })
    };
    let pairs: Vec<_> = addresses().iter().map(connect).collect();
    let [(roce, _), (iwarp, _)] = &pairs[..] else {
        panic!("the lab has {} devices, not 2", pairs.len());
    };
    assert!(roce.info().capabilities.unwrap().atomic);
    assert!(!iwarp.info().capabilities.unwrap().atomic);
    for (_, server) in &pairs {
        group.add(server).unwrap();
    }
    let lengths = [0, 100, 1 << 20, 5];
    for (number, len) in (0_u64..).zip(lengths) {
        for (client, _) in &pairs {
            client
                .send(Outgoing::from(&pattern(number, len)).with_id(number))
                .unwrap();
        }
    }
    let mut counts = [0; 2];
    for _ in 0..2 * lengths.len() {
        let (key, completion) = group.completions().recv_timeout(TIME_LIMIT).unwrap();
        let Completion::Received(message) = completion else {
            panic!("{completion:?}");
        };
        let of = pairs.iter().position(|(_, server)| server.info().id == key);
        let count = &mut counts[of.unwrap()];
        assert!(
            *message == pattern(*count as u64, lengths[*count]),
            "message {count} of {key}"
        );
        *count += 1;
    }
    assert_eq!(counts, [lengths.len(); 2]);
    for (client, _) in pairs {
        for number in 0..lengths.len() as u64 {
            let completion = client.next_completion_timeout(TIME_LIMIT).unwrap();
            assert!(
                matches!(completion, Completion::Sent(id) if id == number),
                "{completion:?}"
            );
        }
        client.close().unwrap();
    }
}
