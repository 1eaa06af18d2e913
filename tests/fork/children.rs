//! Tests of children that are forked while threads of the parent hold locks.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rdmsg::Engine;

use crate::stage::{
    TIME_LIMIT, assert_forked, bind, connector, exchange, forked, is_rdma, pair, run_in_own_process,
};

/// Returns the number of forks. With 60 forks, each thread of the parent very probably holds a lock
/// during at least one fork. Over RDMA, the test forks only 20 times, because the lab is slow.
fn forks() -> usize {
    if is_rdma() { 20 } else { 60 }
}

/// Stops the threads when dropped, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn child_waits_for_no_lock_of_its_parent() {
    run_in_own_process(
        module_path!(),
        "child_waits_for_no_lock_of_its_parent",
        || {
            let listener = bind();
            let pairs: Vec<_> = (0..2).map(|_| pair(&listener)).collect();
            let address = listener.local_addr();
            let engine = Engine::shared().unwrap();
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                for (client, server) in &pairs {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            client.send(b"to and fro").unwrap();
                            drop(client.recv_timeout(TIME_LIMIT).unwrap());
                        }
                        client.send(b"").unwrap();
                    });
                    scope.spawn(|| {
                        loop {
                            let message = server.recv_timeout(TIME_LIMIT).unwrap();
                            if message.is_empty() {
                                break;
                            }
                            server.send(&message).unwrap();
                        }
                    });
                }
                scope.spawn(|| {
                    // Connect only over TCP. Over RDMA, this thread could hold a lock of librdmacm
                    // during a fork. Calls of librdmacm in the child could then block, as the guide
                    // warns.
                    while !is_rdma() && !stop.load(Ordering::Relaxed) {
                        let client = connector().connect(address).unwrap();
                        let server = listener.accept_timeout(TIME_LIMIT).unwrap();
                        engine.statistics().unwrap();
                        drop((client, server));
                    }
                });
                let _stop = Stop(&stop);
                for round in 0..forks() {
                    forked(|| {
                        for (client, server) in &pairs {
                            assert_forked(&client.send(b"from a child").unwrap_err());
                            assert_forked(&server.recv().unwrap_err());
                            assert_forked(&server.close().unwrap_err());
                        }
                        assert_forked(&listener.accept().unwrap_err());
                        assert_forked(&engine.statistics().unwrap_err());
                        if round % 10 == 0 {
                            let own = bind();
                            let (mine, other) = pair(&own);
                            exchange(&mine, &other);
                        }
                    })
                    .assert_success();
                }
            });
            for (client, server) in &pairs {
                exchange(client, server);
            }
        },
    );
}
