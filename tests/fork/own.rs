//! Tests of a child that creates its own objects. In most tests, its parent has already used the
//! library.

use rdmsg::{Engine, Error, Listener, observe};

use crate::stage::{
    TIME_LIMIT, answer, ask, bind, exchange, forked, local_ip, pair, run_in_own_process,
};

#[test]
fn child_listens_connects_and_counts() {
    run_in_own_process(module_path!(), "child_listens_connects_and_counts", || {
        let listener = bind();
        let (client, server) = pair(&listener);
        forked(|| {
            let own = bind();
            let (mine, other) = pair(&own);
            exchange(&mine, &other);
            mine.send(&vec![5; 3_000_000]).unwrap();
            assert_eq!(other.recv_timeout(TIME_LIMIT).unwrap().len(), 3_000_000);
            let engine = Engine::shared().unwrap();
            assert_eq!(engine.statistics().unwrap().connections, 2);
            mine.close().unwrap();
            drop((mine, other, own));
            assert_eq!(engine.drain(TIME_LIMIT).unwrap(), 0);
            engine.shutdown();
        })
        .assert_success();
        exchange(&client, &server);
    });
}

#[test]
fn parent_and_child_connect_to_each_other() {
    run_in_own_process(
        module_path!(),
        "parent_and_child_connect_to_each_other",
        || {
            let listener = bind();
            let address = listener.local_addr();
            let child = forked(|| assert_eq!(ask(address, b"of a child"), *b"of its parent"));
            assert_eq!(answer(&listener, b"of its parent"), *b"of a child");
            child.assert_success();
        },
    );
}

#[test]
fn grandchild_uses_its_own_objects() {
    run_in_own_process(module_path!(), "grandchild_uses_its_own_objects", || {
        let listener = bind();
        let (client, server) = pair(&listener);
        forked(|| {
            let own = bind();
            let (mine, other) = pair(&own);
            // The first call on an inherited endpoint creates an object that replaces all inherited
            // endpoints in the child. The grandchild inherits this object.
            assert!(client.recv().is_err());
            forked(|| {
                assert!(client.recv().is_err());
                assert!(mine.recv().is_err());
                assert!(matches!(own.accept(), Err(Error::Forked)));
                let third = bind();
                let (one, two) = pair(&third);
                exchange(&one, &two);
            })
            .assert_success();
            exchange(&mine, &other);
        })
        .assert_success();
        exchange(&client, &server);
    });
}

#[test]
fn observer_of_a_child_sees_its_own_connections() {
    run_in_own_process(
        module_path!(),
        "observer_of_a_child_sees_its_own_connections",
        || {
            let path = std::env::temp_dir().join(format!("rdmsg-fork-{}", std::process::id()));
            let export = observe::Export::start_at(&path).unwrap();
            let export = std::cell::Cell::new(Some(export));
            let listener = bind();
            let _ends = pair(&listener);
            assert_eq!(observe::snapshot().connections.len(), 2);
            forked(|| {
                assert!(observe::snapshot().connections.is_empty());
                let own = bind();
                let _mine = pair(&own);
                assert_eq!(observe::snapshot().connections.len(), 2);
                drop(export.take());
            })
            .assert_success();
            assert!(
                path.exists(),
                "the child must not remove the parent's export"
            );
            assert_eq!(observe::snapshot().connections.len(), 2);
            drop(export.take());
            assert!(!path.exists());
        },
    );
}

#[test]
fn child_works_before_and_after_parents_first_use() {
    run_in_own_process(
        module_path!(),
        "child_works_before_and_after_parents_first_use",
        || {
            let child = || {
                let own = bind();
                let (mine, other) = pair(&own);
                exchange(&mine, &other);
            };
            forked(child).assert_success();
            child();
            forked(child).assert_success();
            let _ = Listener::bind((local_ip(), 0)).unwrap();
        },
    );
}
