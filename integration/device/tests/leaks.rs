//! Tests that connections leak no resources of the device or the process. Each test shuts down its
//! own engine, so that it can compare the counts before and after.

use std::{thread, time::Duration};

use rdmsg::{Connector, Engine, Listener};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, Usage, patient};

/// Establishes and ends a connection. Then returns the list of RDMA resources and the number of
/// open descriptors.
///
/// librdmacm opens the device when it is first used, and keeps the device and two descriptors open
/// until the process ends. It also allocates a protection domain. When no `rdma_cm_id` is left,
/// librdmacm frees this domain. But while a device list (`rdma_get_devices`) exists, librdmacm
/// retains the domain. A message that the program still holds, for example, refers to such a list.
/// In this case, librdmacm frees the domain only after the program has created and destroyed
/// further ids. This function therefore establishes a connection before each count, so that the
/// counts are comparable.
fn count_resources(lab: &Lab) -> Usage {
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&patient())
        .engine(&engine)
        .bind(lab.at(0))
        .unwrap();
    let address = listener.local_addr();
    let connector = Connector::new().config(&patient()).engine(&engine);
    let client = thread::spawn(move || connector.connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    client.join().unwrap().close().unwrap();
    drop((listener, server));
    engine.shutdown();
    lab.usage()
}

#[test]
fn handles_drop_in_any_order_with_traffic_in_flight() {
    let lab = DeviceTest::start();
    let before = count_resources(&lab);
    for round in 0..24_usize {
        let engine = Engine::new().unwrap();
        let mut config = patient();
        config.close_timeout = Duration::from_secs(2);
        let listener = Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind(lab.at(0))
            .unwrap();
        let address = listener.local_addr();
        let connector = Connector::new().config(&config).engine(&engine);
        let client = thread::spawn(move || connector.connect(address).unwrap());
        let server = listener.accept_timeout(TIME_LIMIT).unwrap();
        let client = client.join().unwrap();

        let talkers: Vec<_> = [client.clone(), server.clone()]
            .into_iter()
            .map(|endpoint| {
                thread::spawn(move || {
                    // Send until a send fails: either the connection has ended, or the peer has
                    // granted no credit for 100 ms.
                    while endpoint
                        .send_timeout(b"noise", Duration::from_millis(100))
                        .is_ok()
                    {
                        let _ = endpoint.try_recv();
                    }
                })
            })
            .collect();
        let held = server.recv_timeout(TIME_LIMIT).ok();
        let mut things: Vec<Box<dyn FnOnce() + Send>> = vec![
            Box::new(move || drop(listener)),
            Box::new(move || drop(client)),
            Box::new(move || drop(server)),
            Box::new(move || drop(held)),
            Box::new({
                let engine = engine.clone();
                move || engine.shutdown()
            }),
        ];
        // The order in which the objects are dropped varies between the rounds. In every second
        // round, each object is dropped by its own thread.
        let turn = round % things.len();
        things.rotate_left(turn);
        if round % 3 == 0 {
            things.reverse();
        }
        if round % 2 == 0 {
            let threads: Vec<_> = things.into_iter().map(thread::spawn).collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        } else {
            things.into_iter().for_each(|drop_it| drop_it());
        }
        talkers
            .into_iter()
            .for_each(|talker| talker.join().unwrap());
        engine.shutdown();
    }
    count_resources(&lab);
    lab.assert_no_leak(&before);
}

#[test]
fn a_hundred_cycles_leave_nothing_behind() {
    let lab = DeviceTest::start();
    let before = count_resources(&lab);
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&patient())
        .engine(&engine)
        .bind(lab.at(0))
        .unwrap();
    let connector = Connector::new().config(&patient()).engine(&engine);
    let address = listener.local_addr();
    let server = thread::spawn(move || {
        for endpoint in listener.incoming().take(100) {
            let endpoint = endpoint.unwrap();
            while let Ok(message) = endpoint.recv() {
                endpoint.send(&message).unwrap();
            }
        }
    });
    for i in 0..100_u32 {
        let client = connector.connect(address).unwrap();
        client.send(&i.to_le_bytes()).unwrap();
        assert_eq!(*client.recv_timeout(TIME_LIMIT).unwrap(), i.to_le_bytes());
        if i % 2 == 0 {
            client.close().unwrap();
        }
    }
    server.join().unwrap();
    drop(connector);
    engine.shutdown();
    count_resources(&lab);
    lab.assert_no_leak(&before);
}
