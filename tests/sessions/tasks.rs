//! Tests of sessions in tasks of a tokio runtime. A proxy cuts the connections.

use rdmsg::tokio::{Endpoint as TaskEndpoint, Listener as TaskListener, Stream, StreamListener};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, split},
    runtime::{Builder, Runtime},
};

use super::{Connector, Listener, Proxy, config, message};

/// Returns a current-thread runtime, and a multi-thread runtime with two threads.
fn runtimes() -> [Runtime; 2] {
    let mut builders = [Builder::new_current_thread(), Builder::new_multi_thread()];
    builders[1].worker_threads(2);
    builders.map(|mut builder| builder.enable_io().build().unwrap())
}

#[test]
fn tasks_echo_messages_over_cuts() {
    const MESSAGES: u32 = 1000;
    for runtime in runtimes() {
        runtime.block_on(async {
            let builder = Listener::builder();
            let builder = builder.config(&config());
            let listener = TaskListener::from(builder.bind("127.0.0.1:0").unwrap());
            let proxy = Proxy::new(listener.local_addr());
            let connector = Connector::new().config(&config());
            let client = TaskEndpoint::connect_with(&connector, proxy.address)
                .await
                .unwrap();
            let server = listener.accept().await.unwrap();
            let echo = tokio::spawn(async move {
                for _ in 0..MESSAGES {
                    let message = server.recv().await.unwrap();
                    server.send(&message).await.unwrap();
                }
                server
            });
            let sender = client.clone();
            let sending = tokio::spawn(async move {
                for number in 0..MESSAGES {
                    sender.send(&message(number)).await.unwrap();
                    if number % 200 == 100 {
                        proxy.cut();
                    }
                }
                proxy
            });
            for number in 0..MESSAGES {
                let received = client.recv().await.unwrap();
                assert!(received == message(number), "message {number}");
            }
            let _proxy = sending.await.unwrap();
            let server = echo.await.unwrap();
            // Each side sends 200 messages between two cuts. The window holds fewer messages, so
            // the session must resume before the next cut.
            for side in [&client, &server] {
                let statistics = side.get_ref().statistics();
                assert!(statistics.resumes >= 4, "{statistics:?}");
            }
            client.close().await.unwrap();
        });
    }
}

#[test]
fn tasks_echo_bytes_over_cuts() {
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 7) as u8).collect();
    for runtime in runtimes() {
        runtime.block_on(async {
            let listener = Listener::builder()
                .config(&config())
                .bind_stream("127.0.0.1:0")
                .and_then(StreamListener::from_std)
                .unwrap();
            let proxy = Proxy::new(listener.local_addr().unwrap());
            let connector = Connector::new().config(&config());
            let client = Stream::connect_with(&connector, proxy.address)
                .await
                .unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let echo = tokio::spawn(async move {
                let (mut reading, mut writing) = split(server);
                copy(&mut reading, &mut writing).await.unwrap();
                writing.shutdown().await.unwrap();
            });
            let (mut reading, mut writing) = split(client);
            let written = bytes.clone();
            let sending = tokio::spawn(async move {
                for part in written.chunks(100_000) {
                    writing.write_all(part).await.unwrap();
                    proxy.cut();
                }
                writing.shutdown().await.unwrap();
                (writing, proxy)
            });
            let mut read = Vec::new();
            reading.read_to_end(&mut read).await.unwrap();
            let first = read.iter().zip(&bytes).position(|(a, b)| a != b);
            assert_eq!((read.len(), first), (bytes.len(), None));
            echo.await.unwrap();
            let (writing, _proxy) = sending.await.unwrap();
            let client = reading.unsplit(writing);
            assert!(client.endpoint().statistics().resumes > 0);
        });
    }
}
