//! Checks that tasks with connections leak no memory, descriptors or tasks. This test is a separate
//! program, because it counts the resources of the process. The test runs over TCP on this machine,
//! and over RDMA in the lab, where `LAB_ADDR` is the address of a device.

use std::{
    env, fs,
    time::{Duration, Instant},
};

use common::{TIME_LIMIT, ip_and_transport};
use rdmsg::{
    Config, Connector, Engine, Transport,
    tokio::{Endpoint, Listener},
};
use tokio::{runtime::Builder, time::sleep};

/// The default number of connections is 2,000 over TCP, and 200 over RDMA, because each RDMA
/// connect takes milliseconds. `RDMSG_CONNECTIONS` sets another number.
#[test]
fn thousands_of_connections_leave_nothing_behind() {
    const AT_ONCE: usize = 20;
    const ROUNDS: usize = 10;
    let default = match ip_and_transport().1 {
        Transport::Tcp => 2_000,
        _ => 200,
    };
    let count = env::var("RDMSG_CONNECTIONS").map_or(default, |count| count.parse().unwrap());
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let config = Config::default().with(|c| {
        c.connect_timeout = TIME_LIMIT;
        c.receive_window = Some(2);
        c.send_depth = Some(2);
    });
    runtime.block_on(async {
        let engine = Engine::new().unwrap();
        let listener = rdmsg::Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind((ip_and_transport().0, 0))
            .unwrap();
        let listener = Listener::from(listener);
        let connector = Connector::new().config(&config).engine(&engine);
        let addr = listener.local_addr();
        let serving = tokio::spawn(async move {
            loop {
                let Ok(endpoint) = listener.accept().await else {
                    break;
                };
                tokio::spawn(async move {
                    while let Ok(message) = endpoint.recv().await {
                        endpoint.send(&message).await.unwrap();
                    }
                });
            }
        });
        let run_connections = async |many: usize| {
            for begun in (0..many).step_by(AT_ONCE) {
                let clients: Vec<_> = (begun..many.min(begun + AT_ONCE))
                    .map(|number| {
                        let connector = connector.clone();
                        tokio::spawn(async move {
                            let endpoint = Endpoint::connect_with(&connector, addr).await.unwrap();
                            assert_eq!(endpoint.get_ref().info().transport, ip_and_transport().1);
                            endpoint.send(&number.to_le_bytes()).await.unwrap();
                            assert_eq!(*endpoint.recv().await.unwrap(), number.to_le_bytes());
                            // Close some connections, and drop the others.
                            if number % 3 > 0 {
                                endpoint.close().await.unwrap();
                            }
                        })
                    })
                    .collect();
                for client in clients {
                    client.await.unwrap();
                }
            }
            // Wait until all connections of the engine and all tasks that serve them have ended.
            while engine.statistics().unwrap().connections > 0
                || runtime.metrics().num_alive_tasks() > 1
            {
                sleep(Duration::from_millis(5)).await;
            }
        };
        // Run some connections first, so that tables grow to their final size.
        run_connections(count / 4).await;
        let fds = open_fds();
        let mut growth = Vec::new();
        // A leak makes the memory grow in each round. On a busy machine, it also grows in the first
        // rounds, because more connections and destroying threads exist at once than before.
        while growth.len() < ROUNDS {
            let before = resident();
            run_connections(count).await;
            // Over RDMA, other threads destroy the queues of ended connections.
            let end = Instant::now() + TIME_LIMIT;
            while open_fds() > fds && Instant::now() < end {
                sleep(Duration::from_millis(5)).await;
            }
            assert!(open_fds() <= fds, "descriptors must not leak");
            growth.push(resident().saturating_sub(before));
            // The limit is 1 KiB for each connection. If a connection uses at least 100 KiB, the
            // limit detects a leak of every hundredth connection.
            if growth.last() < Some(&(count * 1024)) {
                break;
            }
        }
        assert!(
            growth.last() < Some(&(count * 1024)),
            "the memory grew by {growth:?} bytes in rounds of {count} connections"
        );
        serving.abort();
    });
}

fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the resident memory of the process, in bytes.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
