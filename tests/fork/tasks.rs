//! Tests of the types of `rdmsg::tokio` in a forked child. The child cannot use its parent's
//! runtime, so it creates its own runtime.

use std::cell::Cell;

use rdmsg::tokio::{Endpoint, Listener, Stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Builder,
};

use crate::stage::{assert_forked, connector, forked, local_ip, run_in_own_process};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn types_for_tokio_fail_in_child_not_in_parent() {
    run_in_own_process(
        module_path!(),
        "types_for_tokio_fail_in_child_not_in_parent",
        || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let (listener, client, server, stream, other) = runtime.block_on(async {
                let listener = Listener::bind((local_ip(), 0)).await.unwrap();
                let connector = connector();
                let connecting = Endpoint::connect_with(&connector, listener.local_addr());
                let (client, server) = tokio::join!(connecting, listener.accept());
                let streams = rdmsg::tokio::StreamListener::bind((local_ip(), 0))
                    .await
                    .unwrap();
                let connecting = Stream::connect_with(&connector, streams.local_addr().unwrap());
                let (stream, other) = tokio::join!(connecting, streams.accept());
                (
                    listener,
                    client.unwrap(),
                    server.unwrap(),
                    stream.unwrap(),
                    other.unwrap().0,
                )
            });
            let ends = Cell::new(Some((stream, other)));
            forked(|| {
                let (mut stream, other) = ends.take().unwrap();
                block_on(async {
                    assert_forked(&client.send(b"from a child").await.unwrap_err());
                    assert_forked(&client.recv().await.unwrap_err());
                    assert_forked(&server.close().await.unwrap_err());
                    assert_forked(&listener.accept().await.unwrap_err());
                    let forked =
                        |error: std::io::Error| assert!(error.to_string().contains("fork"));
                    forked(stream.read(&mut [0; 8]).await.unwrap_err());
                    forked(stream.write(b"from a child").await.unwrap_err());
                    forked(stream.peek(&mut [0; 8]).await.unwrap_err());
                    stream.readable().await.unwrap();
                    forked(stream.try_read(&mut [0; 8]).unwrap_err());
                    drop((stream, other.into_split()));
                    let own = Listener::bind((local_ip(), 0)).await.unwrap();
                    let connector = connector();
                    let connecting = Endpoint::connect_with(&connector, own.local_addr());
                    let (mine, other) = tokio::join!(connecting, own.accept());
                    let (mine, other) = (mine.unwrap(), other.unwrap());
                    mine.send(b"in a child").await.unwrap();
                    assert_eq!(*other.recv().await.unwrap(), *b"in a child");
                });
            })
            .assert_success();
            let (mut stream, mut other) = ends.take().unwrap();
            runtime.block_on(async {
                client.send(b"as before").await.unwrap();
                assert_eq!(*server.recv().await.unwrap(), *b"as before");
                stream.write_all(b"as before").await.unwrap();
                let mut bytes = [0; 9];
                other.read_exact(&mut bytes).await.unwrap();
                assert_eq!(bytes, *b"as before");
            });
        },
    );
}
