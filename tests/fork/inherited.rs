//! Tests of a child that calls methods of inherited objects, drops them, and exits. Calls that need
//! the parent's connection or engine fail immediately, and the parent's connections continue.

use std::{
    cell::Cell,
    future::Future,
    io::{self, IoSlice, Read, Write},
    net::Shutdown,
    process,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use rdmsg::{
    CloseReason, Config, Connector, DeviceCounters, Endpoint, Engine, Error, Group, Interest,
    Listener, Outgoing, RemoteAccess, RequestListener, SendBuffer, Stream, StreamListener,
    TransportChoice, TrySendError,
};

use crate::stage::{
    TIME_LIMIT, assert_forked, bind, config, connector, exchange, forked, is_rdma, local_ip, pair,
    run_in_own_process,
};

#[track_caller]
fn assert_ready_forked<T>(poll: Poll<Result<T, Error>>) {
    match poll {
        Poll::Ready(Err(error)) => assert_forked(&error),
        Poll::Ready(Ok(_)) => panic!("the call succeeded"),
        Poll::Pending => panic!("the call is pending"),
    }
}

#[track_caller]
fn assert_io_forked<T>(result: io::Result<T>) {
    let Err(error) = result else {
        panic!("the call succeeded")
    };
    assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
    assert!(error.to_string().contains("fork"), "{error}");
}

fn bind_requests() -> RequestListener {
    let builder = Listener::builder().config(&config());
    builder.bind_requests((local_ip(), 0)).unwrap()
}

fn use_endpoint(endpoint: &Endpoint) {
    let soon = Duration::from_secs(1);
    assert_forked(&endpoint.send(b"from a child").unwrap_err());
    assert_forked(&endpoint.send(&vec![1; 3_000_000]).unwrap_err());
    assert_forked(&endpoint.send_timeout(b"from a child", soon).unwrap_err());
    assert_forked(
        &endpoint
            .send(Outgoing::from(b"from a child").with_id(1))
            .unwrap_err(),
    );
    assert_forked(
        &endpoint
            .send_batch(&[IoSlice::new(b"1"), IoSlice::new(b"2")])
            .unwrap_err(),
    );
    let Err(TrySendError::Failed(error)) = endpoint.try_send(b"from a child") else {
        panic!("the message was sent")
    };
    assert_forked(&error);
    assert_forked(&endpoint.recv().unwrap_err());
    assert_forked(&endpoint.recv_timeout(TIME_LIMIT).unwrap_err());
    assert_forked(&endpoint.try_recv().unwrap_err());
    assert_forked(&endpoint.next_completion().unwrap_err());
    assert_forked(&endpoint.try_next_completion().unwrap_err());
    assert!(
        endpoint.completions().recv().is_err(),
        "the child must receive no completions"
    );
    assert_forked(&endpoint.flush().unwrap_err());
    assert_forked(&endpoint.finish().unwrap_err());
    assert_forked(&SendBuffer::new(endpoint, 100).unwrap_err());
    assert_forked(
        &endpoint
            .one_sided()
            .region(100, RemoteAccess::NONE)
            .unwrap_err(),
    );
    assert_forked(&endpoint.close().unwrap_err());
    endpoint.abort(7);
    let cx = &mut Context::from_waker(Waker::noop());
    assert_ready_forked(endpoint.poll_recv(cx));
    assert_ready_forked(endpoint.poll_send(cx, b"from a child"));
    assert_ready_forked(endpoint.poll_next_completion(cx));
    assert_ready_forked(endpoint.poll_close(cx));
    assert_eq!(endpoint.info().close_reason, Some(CloseReason::Forked));
    assert_eq!(endpoint.info().send_limit, 0);
    assert_eq!(endpoint.statistics().messages_sent, 0);
    let _ = (
        endpoint.info().negotiated,
        endpoint.info().capabilities,
        endpoint.info().peer_data,
    );
    let _ = (DeviceCounters::of(endpoint), format!("{endpoint:?}"));
    endpoint.event_fd(Interest::Readable).unwrap();
}

#[test]
fn endpoint_fails_in_child_and_works_in_parent() {
    run_in_own_process(
        module_path!(),
        "endpoint_fails_in_child_and_works_in_parent",
        || {
            let listener = bind();
            let (client, server) = pair(&listener);
            exchange(&client, &server);
            let identity = |endpoint: &Endpoint| {
                let info = endpoint.info();
                (endpoint.peer_addr(), info.local_addr, info.id)
            };
            let before = identity(&client);
            let buffer = SendBuffer::new(&client, 8).unwrap();
            forked(|| {
                use_endpoint(&client);
                use_endpoint(&server.clone());
                assert_eq!(identity(&client), before);
                assert_forked(&client.send(buffer).unwrap_err());
            })
            .assert_success();
            exchange(&client, &server);
            client.close().unwrap();
        },
    );
}

#[test]
fn drop_and_exit_in_child_do_not_affect_parent() {
    run_in_own_process(
        module_path!(),
        "drop_and_exit_in_child_do_not_affect_parent",
        || {
            let listener = bind();
            let (client, server) = pair(&listener);
            server.send(b"kept").unwrap();
            server.send(&vec![7; 3_000_000]).unwrap();
            let small = client.recv_timeout(TIME_LIMIT).unwrap();
            let large = client.recv_timeout(TIME_LIMIT).unwrap();
            let buffer = SendBuffer::new(&client, 100_000).unwrap();
            let region = client.one_sided().region(5000, RemoteAccess::READ).unwrap();
            let engine = Engine::shared().unwrap();
            let ends = (
                client, server, listener, small, large, buffer, region, engine,
            );
            let ends = Cell::new(Some(ends));
            forked(|| drop(ends.take())).assert_success();
            // A normal exit of a child runs the atexit(3) handlers.
            forked(|| process::exit(0)).assert_success();
            let Some((client, server, listener, small, large, buffer, region, engine)) =
                ends.take()
            else {
                panic!("the child's drop must not affect the parent's objects")
            };
            assert_eq!((&*small, large.len()), (&b"kept"[..], 3_000_000));
            drop((small, large, region));
            client.send(buffer).unwrap();
            assert_eq!(server.recv_timeout(TIME_LIMIT).unwrap().len(), 100_000);
            exchange(&client, &server);
            let (other, accepted) = pair(&listener);
            exchange(&other, &accepted);
            assert_eq!(engine.statistics().unwrap().connections, 4);
        },
    );
}

#[test]
fn memory_stays_readable() {
    run_in_own_process(module_path!(), "memory_stays_readable", || {
        let listener = bind();
        let (client, server) = pair(&listener);
        server.send(b"short").unwrap();
        server.send(&pattern::sequence(3, 2_000_000)).unwrap();
        let short = client.recv_timeout(TIME_LIMIT).unwrap();
        let long = client.recv_timeout(TIME_LIMIT).unwrap();
        let mut buffer = SendBuffer::new(&client, 200_000).unwrap();
        buffer.copy_from_slice(&pattern::sequence(5, 200_000));
        let region = client.one_sided().region(9000, RemoteAccess::READ).unwrap();
        region.copy_in(1000, b"in a region");
        forked(|| {
            assert_eq!(*short, *b"short");
            assert_eq!(*long, pattern::sequence(3, 2_000_000)[..]);
            assert_eq!(buffer[..], pattern::sequence(5, 200_000)[..]);
            let mut bytes = [0; 11];
            region.copy_out(1000, &mut bytes);
            assert_eq!(bytes, *b"in a region");
            // A write by the child does not change the parent's pages.
            buffer.fill(0);
            region.copy_in(1000, b"in a child!");
        })
        .assert_success();
        let mut bytes = [0; 11];
        region.copy_out(1000, &mut bytes);
        assert_eq!(bytes, *b"in a region");
        client.send(buffer).unwrap();
        let received = server.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(*received, pattern::sequence(5, 200_000)[..]);
        drop((short, long));
        exchange(&client, &server);
    });
}

#[test]
fn engine_fails_and_its_shutdown_does_nothing() {
    run_in_own_process(
        module_path!(),
        "engine_fails_and_its_shutdown_does_nothing",
        || {
            let engine = Engine::shared().unwrap();
            let listener = bind();
            let (client, server) = pair(&listener);
            forked(|| {
                assert_forked(&engine.statistics().unwrap_err());
                assert_forked(&engine.drain(TIME_LIMIT).unwrap_err());
                let connector = Connector::new().engine(&engine);
                assert_forked(&connector.connect(listener.local_addr()).unwrap_err());
                let config = Config::default();
                let bound = Listener::builder()
                    .config(&config)
                    .engine(&engine)
                    .bind((local_ip(), 0));
                assert_forked(&bound.unwrap_err());
                engine.clone().shutdown();
            })
            .assert_success();
            exchange(&client, &server);
            assert_eq!(engine.statistics().unwrap().connections, 2);
        },
    );
}

#[test]
fn listeners_fail_in_child_and_accept_in_parent() {
    run_in_own_process(
        module_path!(),
        "listeners_fail_in_child_and_accept_in_parent",
        || {
            let listener = bind();
            let requests = bind_requests();
            let asking = requests.local_addr();
            let client = thread::spawn(move || connector().connect(asking).unwrap());
            let request = requests.requests().recv_timeout(TIME_LIMIT).unwrap();
            let request = Cell::new(Some(request));
            forked(|| {
                assert_forked(&listener.accept().unwrap_err());
                assert_forked(&listener.accept_timeout(TIME_LIMIT).unwrap_err());
                assert_forked(&listener.try_accept().unwrap_err());
                assert!(
                    listener.accepted().recv().is_err(),
                    "the child must accept no connection"
                );
                assert_ready_forked(listener.poll_accept(&mut Context::from_waker(Waker::noop())));
                listener.event_fd().unwrap();
                listener.close();
                assert!(
                    requests.requests().recv().is_err(),
                    "the child must receive no requests"
                );
                assert!(requests.try_request().is_none());
                requests.close();
                assert_forked(&request.take().unwrap().accept().unwrap_err());
            })
            .assert_success();
            // In the parent, dropping a request rejects the request. In a child, the drop has no
            // effect.
            forked(|| drop(request.take())).assert_success();
            let server = request.take().unwrap().accept().unwrap();
            exchange(&client.join().unwrap(), &server);
            let (client, server) = pair(&listener);
            exchange(&client, &server);
        },
    );
}

#[test]
fn connect_in_progress_fails_in_child_not_in_parent() {
    run_in_own_process(
        module_path!(),
        "connect_in_progress_fails_in_child_not_in_parent",
        || {
            let requests = bind_requests();
            let mut config = config();
            // Select one transport, so that the connector makes only one attempt, which starts
            // immediately.
            config.transport = if is_rdma() {
                TransportChoice::Rdma
            } else {
                TransportChoice::Tcp
            };
            let connector = Connector::new().config(&config);
            let mut connecting = Box::pin(connector.start(requests.local_addr()).unwrap());
            let request = requests.requests().recv_timeout(TIME_LIMIT).unwrap();
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(connecting.as_mut().poll(cx).is_pending());
            forked(|| assert_ready_forked(connecting.as_mut().poll(cx))).assert_success();
            let connecting = Cell::new(Some(connecting));
            forked(|| drop(connecting.take())).assert_success();
            let server = request.accept().unwrap();
            let client = smol::block_on(connecting.take().unwrap()).unwrap();
            exchange(&client, &server);
        },
    );
}

#[test]
fn group_fails_in_child_and_works_in_parent() {
    run_in_own_process(
        module_path!(),
        "group_fails_in_child_and_works_in_parent",
        || {
            let listener = bind();
            let (client, server) = pair(&listener);
            let group = Group::new();
            group.add(&client).unwrap();
            assert!(group.try_next_completion().unwrap().is_none());
            forked(|| {
                assert!(
                    group.completions().recv().is_err(),
                    "the child must receive no completions"
                );
                assert_forked(&group.next_completion().unwrap_err());
                assert_forked(&group.add(&client).unwrap_err());
                assert!(!group.remove(&client));
                let own = bind();
                let (mine, _other) = pair(&own);
                assert_forked(&group.add(&mine).unwrap_err());
                Group::new().add(&mine).unwrap();
            })
            .assert_success();
            server.send(b"to the group").unwrap();
            let (key, completion) = group.next_completion_timeout(TIME_LIMIT).unwrap();
            assert_eq!(key, client.info().id);
            assert!(matches!(completion, rdmsg::Completion::Received(m) if *m == *b"to the group"));
        },
    );
}

#[test]
fn persistent_client_fails_in_child_not_in_parent() {
    run_in_own_process(
        module_path!(),
        "persistent_client_fails_in_child_not_in_parent",
        || {
            let listener = bind();
            let client = connector().persist(listener.local_addr()).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| client.send(b"before").unwrap());
                let server = listener.accept_timeout(TIME_LIMIT).unwrap();
                assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"before");
                forked(|| {
                    let mine = client.clone();
                    assert_forked(&client.next_event().unwrap_err());
                    assert_forked(&client.send(b"no").unwrap_err());
                    assert_forked(&client.try_send(b"no").unwrap_err().into());
                    assert_forked(&client.events().unwrap_err());
                    assert_forked(&client.close().unwrap_err());
                    drop(mine);
                })
                .assert_success();
                client.send(b"after").unwrap();
                assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"after");
            });
            client.close().unwrap();
        },
    );
}

#[test]
fn stream_fails_in_child_and_works_in_parent() {
    run_in_own_process(
        module_path!(),
        "stream_fails_in_child_and_works_in_parent",
        || {
            let listener = StreamListener::bind((local_ip(), 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let connecting =
                thread::spawn(move || Stream::connect_timeout(address, TIME_LIMIT).unwrap());
            let (mut server, _) = listener.accept().unwrap();
            let mut client = connecting.join().unwrap();
            let clone = client.try_clone().unwrap();
            let addresses = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            forked(|| {
                for mut stream in [&client, &clone, &server] {
                    assert_io_forked(stream.read(&mut [0; 8]));
                    assert_io_forked(stream.write(b"from a child"));
                    assert_io_forked(stream.peek(&mut [0; 8]));
                    assert_io_forked(stream.shutdown(Shutdown::Both));
                    stream.flush().unwrap();
                    assert_io_forked(stream.take_error().unwrap().map_or(Ok(()), Err));
                    stream.set_nonblocking(true).unwrap();
                    assert_io_forked(stream.read(&mut [0; 8]));
                    stream.set_nonblocking(false).unwrap();
                }
                assert_eq!(
                    addresses,
                    (client.local_addr().unwrap(), client.peer_addr().unwrap())
                );
                assert_io_forked(listener.accept());
                assert_io_forked(listener.take_error().unwrap().map_or(Ok(()), Err));
                let (reading, writing) = clone.split();
                drop((reading, writing));
                process::exit(0);
            })
            .assert_success();
            client.write_all(b"as before").unwrap();
            let mut bytes = [0; 9];
            server.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, *b"as before");
        },
    );
}
