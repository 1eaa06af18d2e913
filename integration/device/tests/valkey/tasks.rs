//! Tests asynchronous streams in tasks of tokio.

use std::{
    io::{ErrorKind, Read, Write},
    thread,
};

use rdmsg_valkey::{Config, Listener, tokio::Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use toolbox::{Lab, read_sequence, sequence, write_sequence};

use crate::{patient, small, start};

/// Connects an asynchronous stream to a blocking stream.
async fn pair(config: &Config) -> (Stream, rdmsg_valkey::Stream) {
    let listener = Listener::bind_with(Lab::get().at(0), config).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let client = Stream::connect_with(address, config).await.unwrap();
    let (server, peer) = accepting.join().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    (client, server)
}

/// One task reads while another writes. The data is larger than all buffers together.
#[tokio::test]
async fn halves_of_two_tasks_work_at_once() {
    let Some(_test) = start() else { return };
    for (config, len) in [(patient(), 3 << 20), (small(), 100_000)] {
        let (client, server) = pair(&config).await;
        let other = server.try_clone().unwrap();
        let threads = [
            thread::spawn(move || read_sequence(&server, len, 9_999)),
            thread::spawn(move || write_sequence(&other, len, 70_001)),
        ];
        let (mut reader, mut writer) = tokio::io::split(client);
        let writing = tokio::spawn(async move {
            let bytes = sequence(0, len);
            writer.write_all(&bytes).await.unwrap();
            writer
        });
        let mut bytes = vec![0; len];
        reader.read_exact(&mut bytes).await.unwrap();
        assert!(bytes == sequence(0, len), "a byte differs");
        let mut client = reader.unsplit(writing.await.unwrap());
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        drop(client);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[tokio::test]
async fn dropped_stream_delivers_written_bytes() {
    let Some(_test) = start() else { return };
    let (mut client, mut server) = pair(&small()).await;
    let bytes = sequence(0, 1900);
    client.write_all(&bytes).await.unwrap();
    drop(client);
    read_sequence(&server, 1900, 1900);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

#[tokio::test]
async fn tasks_learn_of_the_end() {
    let Some(_test) = start() else { return };
    let (mut client, mut server) = pair(&small()).await;
    server.write_all(b"bye").unwrap();
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).await.unwrap();
        let error = client.write_all(b"more").await.unwrap_err();
        (bytes, error.kind())
    });
    tokio::task::yield_now().await;
    drop(server);
    let (bytes, kind) = reading.await.unwrap();
    assert_eq!((&bytes[..], kind), (&b"bye"[..], ErrorKind::BrokenPipe));
}

#[tokio::test]
async fn connect_fails_with_its_reason() {
    let Some(lab) = start() else { return };
    let address = {
        let listener = Listener::bind(lab.at(0)).unwrap();
        listener.local_addr().unwrap()
    };
    let error = Stream::connect_with(address, &patient()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}
