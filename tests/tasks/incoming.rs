//! Tests of `StreamListener::incoming`, which returns a `Stream` of the crate `futures`.

use futures_util::{StreamExt, future::poll_immediate, stream::FuturesUnordered};
use rdmsg::{
    Engine, Error, Listener,
    tokio::{Stream, StreamListener},
};

use super::{
    stage::{connector, ip_and_transport},
    tokio::on_each,
};

#[test]
fn incoming_yields_streams_until_close() {
    on_each(|| async {
        let listener = StreamListener::bind((ip_and_transport().0, 0))
            .await
            .unwrap();
        let (addr, connector) = (listener.local_addr().unwrap(), connector());
        let near = Stream::connect_with(&connector, addr).await.unwrap();
        let mut incoming = listener.incoming();
        let far = incoming.next().await.unwrap().unwrap();
        assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap());
        let near = Stream::connect_with(&connector, addr).await.unwrap();
        // The connecting side can report the connection as established before the accepting side
        // does. The flush waits until the accepting side has established it, too.
        near.endpoint().flushed().await.unwrap();
        listener.close();
        assert!(
            incoming.next().await.unwrap().is_ok(),
            "the closed listener must return the established stream"
        );
        assert!(incoming.next().await.is_none());
        assert!(incoming.next().await.is_none());
    });
}

#[test]
fn incoming_yields_the_error_of_the_listener_once() {
    on_each(|| async {
        let engine = Engine::new().unwrap();
        let listener = Listener::builder()
            .engine(&engine)
            .bind_stream((ip_and_transport().0, 0))
            .unwrap();
        let listener = StreamListener::from_std(listener).unwrap();
        let mut incoming = listener.into_incoming();
        engine.shutdown();
        let end = incoming.next().await.unwrap().unwrap_err();
        assert_eq!(end.to_string(), Error::EngineShutDown.to_string());
        assert!(incoming.next().await.is_none());
    });
}

#[test]
fn incoming_of_several_tasks_wakes_each() {
    const TASKS: usize = 3;
    on_each(|| async {
        let listener = StreamListener::bind((ip_and_transport().0, 0))
            .await
            .unwrap();
        let (addr, connector) = (listener.local_addr().unwrap(), connector());
        // Each future has a separate waker, like a task.
        let accepting = (0..TASKS).map(|_| async { listener.incoming().next().await });
        let mut accepting: FuturesUnordered<_> = accepting.collect();
        assert!(poll_immediate(accepting.next()).await.is_none());
        let mut near = Vec::new();
        for _ in 0..TASKS {
            near.push(Stream::connect_with(&connector, addr).await.unwrap());
            let accepted = accepting.next().await.unwrap();
            assert!(accepted.unwrap().is_ok());
        }
        assert!(accepting.next().await.is_none());
    });
}
