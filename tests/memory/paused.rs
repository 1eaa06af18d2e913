use std::time::Duration;

use rdmsg::{
    Connector, Error, RequestListener,
    tokio::{Endpoint, Listener, Stream},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
    time::{Instant, sleep, timeout},
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn timeout_never_fires_while_a_message_is_under_way() {
    let (client, server) = Endpoint::pair().unwrap();
    let start = Instant::now();
    let echo = tokio::spawn(async move {
        while let Ok(message) = server.recv().await {
            yield_now().await;
            server.send(&message).await.unwrap();
        }
    });
    for round in 0..1000_u32 {
        client.send(&round.to_be_bytes()).await.unwrap();
        let back = timeout(SECOND, client.recv()).await.unwrap().unwrap();
        assert_eq!(back, round.to_be_bytes());
    }
    timeout(SECOND, client.close()).await.unwrap().unwrap();
    echo.await.unwrap();
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "the paused clock must not advance"
    );
}

#[tokio::test(start_paused = true)]
async fn timeout_fires_at_once_without_a_message() {
    let (client, server) = Endpoint::pair().unwrap();
    let start = Instant::now();
    assert!(timeout(SECOND, client.recv()).await.is_err());
    assert_eq!(start.elapsed(), SECOND);
    tokio::spawn(async move {
        sleep(10 * SECOND).await;
        server.send(b"late").await.unwrap();
        sleep(SECOND).await;
    });
    let late = timeout(11 * SECOND, client.recv()).await.unwrap();
    assert_eq!(late.unwrap(), b"late");
    assert_eq!(start.elapsed(), 11 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn large_messages_arrive_under_a_paused_clock() {
    let (client, server) = Endpoint::pair().unwrap();
    let start = Instant::now();
    let message = pattern::sequence(0, 3 << 20);
    for _ in 0..10 {
        client.send(&message).await.unwrap();
        let received = timeout(SECOND, server.recv()).await.unwrap().unwrap();
        assert!(received == message);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn named_listener_accepts_under_a_paused_clock() {
    let listener = Listener::bind("memory://paused").await.unwrap();
    let start = Instant::now();
    let serve = tokio::spawn(async move {
        let server = timeout(SECOND, listener.accept()).await.unwrap().unwrap();
        let question = timeout(SECOND, server.recv()).await.unwrap().unwrap();
        server.send(&question).await.unwrap();
        assert!(server.recv().await.is_err());
    });
    let client = timeout(SECOND, Endpoint::connect("memory://paused")).await;
    let client = client.unwrap().unwrap();
    client.send(b"hello").await.unwrap();
    let answer = timeout(SECOND, client.recv()).await.unwrap().unwrap();
    assert_eq!(answer, b"hello");
    client.close().await.unwrap();
    serve.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn full_window_waits_for_room_under_a_paused_clock() {
    let config = rdmsg::Config::default().with(|config| config.receive_window = Some(2));
    let (client, server) = Connector::new().config(&config).pair().unwrap();
    let [client, server] = [client, server].map(|side| Endpoint::new(side).unwrap());
    let start = Instant::now();
    let sender = tokio::spawn(async move {
        for round in 0..100_u8 {
            let sent = timeout(SECOND, client.send(&[round])).await;
            sent.unwrap().unwrap();
        }
        client.close().await.unwrap();
    });
    for round in 0..100_u8 {
        let message = timeout(SECOND, server.recv()).await.unwrap().unwrap();
        assert_eq!(message, [round]);
        yield_now().await;
    }
    sender.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn stream_carries_bytes_under_a_paused_clock() {
    let (mut near, mut far) = Stream::pair().unwrap();
    let start = Instant::now();
    let bytes = pattern::sequence(0, 2 << 20);
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        near.write_all(&sent).await.unwrap();
        near.shutdown().await.unwrap();
        let mut back = Vec::new();
        near.read_to_end(&mut back).await.unwrap();
        assert_eq!(back, b"done");
    });
    let mut got = Vec::new();
    let read = timeout(SECOND, far.read_to_end(&mut got)).await;
    read.unwrap().unwrap();
    assert!(got == bytes);
    far.write_all(b"done").await.unwrap();
    drop(far);
    writer.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Usually, a connector with `retry_refused` retries a refused request. If a task connects over the
/// in-memory transport, the connector does not retry, because no timer would wake the task for the
/// next attempt. The task receives the first refusal immediately, for short and for long private
/// data.
#[tokio::test(start_paused = true)]
async fn refused_task_gets_the_refusal_at_once() {
    for len in [20, 1000] {
        let requests = RequestListener::bind("memory://refused").unwrap();
        let connector = Connector::new()
            .private_data(&vec![7; len])
            .retry_refused(true);
        let connecting =
            tokio::spawn(
                async move { Endpoint::connect_with(&connector, "memory://refused").await },
            );
        let request = loop {
            if let Some(request) = requests.try_request() {
                break request;
            }
            yield_now().await;
        };
        drop(requests);
        drop(request);
        let listener = Listener::bind("memory://refused").await.unwrap();
        let refused = timeout(SECOND, connecting).await.unwrap().unwrap();
        assert!(matches!(refused, Err(Error::Connect { .. })), "{refused:?}");
        drop(listener);
    }
}
