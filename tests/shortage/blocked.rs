//! Tests of the engine while the kernel does not complete a call.

use rdmsg::{Completion, Connector, Endpoint, Engine, Listener};

use crate::{
    TIME_LIMIT, adapters::with_device, await_value, config, exchange, ip_and_transport,
    run_lifecycle,
};

/// The kernel destroys a queue pair only after the last packets were acknowledged, and an id only
/// after its last messages were sent. On a failed network, both can take minutes.
#[test]
fn blocked_destruction_delays_no_other_connection() {
    with_device(
        "blocked::blocked_destruction_delays_no_other_connection",
        |calls| {
            run_lifecycle(&config()).unwrap();
            for function in ["ibv_destroy_qp", "ibv_destroy_cq", "rdma_destroy_id"] {
                let engine = Engine::new().unwrap();
                let listener = Listener::builder()
                    .config(&config())
                    .engine(&engine)
                    .bind((ip_and_transport().0, 0))
                    .unwrap();
                let connector = Connector::new().config(&config()).engine(&engine);
                let connect = || -> (Endpoint, Endpoint) {
                    let near = connector.connect(listener.local_addr()).unwrap();
                    (near, listener.accept_timeout(TIME_LIMIT).unwrap())
                };
                let (kept, mut ending) = (connect(), Vec::from([connect(), connect()]));
                calls.block(function);
                for (near, far) in &ending {
                    near.close().unwrap();
                    let end = far.next_completion_timeout(TIME_LIMIT).unwrap();
                    assert!(matches!(end, Completion::Disconnected(_)), "{end:?}");
                }
                await_value(|| calls.blocked() > 0, &true, "blocked calls");
                exchange(&kept.0, &kept.1).unwrap();
                let (near, far) = connect();
                exchange(&near, &far).unwrap();
                // These connections end while calls are blocked, so their ends must be reported.
                near.close().unwrap();
                let end = far.next_completion_timeout(TIME_LIMIT).unwrap();
                assert!(matches!(end, Completion::Disconnected(_)), "{end:?}");
                ending.push((near, far));
                calls.unblock();
                exchange(&kept.0, &kept.1).unwrap();
                drop((kept, ending, listener));
                engine.shutdown();
            }
        },
    );
}
