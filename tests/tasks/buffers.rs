//! Tests of the number of bytes that a tokio stream accepts while its peer does not read.

use std::{io::ErrorKind, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Builder,
    time::timeout,
};

use super::{stage::bytes, tokio::streams};

const MIB: usize = 1 << 20;

/// The permitted range for the number of bytes that a stream accepts with the default
/// `Config::stream_buffer` of 4 MiB. Each side uses up to half of this buffer. A stream accepts
/// less than 4 MiB if the pieces are long but shorter than the eager size, because the sender then
/// uses little of its half. A stream accepts more than 4 MiB if the final piece is large.
const ACCEPTED: std::ops::RangeInclusive<usize> = 2 * MIB..=6 * MIB;

/// Returns the maximum duration of a write. If a write takes longer, the test considers the stream
/// full. `accepted` is the number of bytes that the stream has accepted so far. Below the minimum
/// of [`ACCEPTED`], the limit is long, because a test that considers a slow stream full counts too
/// few bytes.
fn time_limit(accepted: usize) -> Duration {
    if accepted < *ACCEPTED.start() {
        Duration::from_secs(60)
    } else {
        Duration::from_millis(200)
    }
}

/// Runs a future on a current-thread runtime.
fn on_runtime(run: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(run);
}

#[test]
fn dropped_writes_have_written_no_bytes() {
    on_runtime(async {
        for piece in [1000, 64 << 10, MIB] {
            let (mut client, mut server) = streams().await;
            let all = bytes(0, 8 * MIB);
            let mut accepted = 0;
            // A write that is dropped before it completes has written no bytes.
            loop {
                let writing = client.write(&all[accepted..accepted + piece]);
                let Ok(written) = timeout(time_limit(accepted), writing).await else {
                    break;
                };
                accepted += written.unwrap();
            }
            assert!(
                ACCEPTED.contains(&accepted),
                "{accepted} B in pieces of {piece} B"
            );
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            assert_eq!(got.len(), accepted);
            assert!(got == all[..accepted]);
        }
    });
}

#[test]
fn stream_accepts_buffer_size_after_reader_stops() {
    on_runtime(async {
        for piece in [100, 20_000] {
            let (client, server) = streams().await;
            let (mut reading, mut writing) = server.into_split();
            let (_answers, mut requests) = client.into_split();
            let all = bytes(0, 8 * MIB);
            // The peer reads only 5000 of these bytes. During the first read, the peer's library
            // also receives many of the other requests, which stay unread.
            for request in all[..20_000].chunks(100) {
                requests.write_all(request).await.unwrap();
            }
            let mut got = vec![0; 5000];
            reading.read_exact(&mut got).await.unwrap();
            // Write continuously in a task, so that the runtime watches the connection.
            let answering =
                tokio::spawn(async move { while writing.write(&[7; 1000]).await.is_ok() {} });
            let mut accepted = 20_000;
            let mut write = async |accepted: usize| {
                let written = requests.write(&all[accepted..accepted + piece]);
                timeout(time_limit(accepted), written)
                    .await
                    .map(Result::unwrap)
            };
            while let Ok(written) = write(accepted).await {
                accepted += written;
            }
            assert!(
                ACCEPTED.contains(&accepted),
                "{accepted} B in pieces of {piece} B"
            );
            requests.shutdown().await.unwrap();
            reading.read_to_end(&mut got).await.unwrap();
            assert_eq!(got.len(), accepted);
            assert!(got == all[..accepted]);
            answering.abort();
        }
    });
}

#[test]
fn writable_stream_accepts_buffer_size() {
    on_runtime(async {
        for piece in [100, 20_000, MIB] {
            let (mut client, mut server) = streams().await;
            let all = bytes(0, 8 * MIB);
            let mut accepted = 0;
            while let Ok(room) = timeout(time_limit(accepted), client.writable()).await {
                room.unwrap();
                match client.try_write(&all[accepted..accepted + piece]) {
                    Ok(written) => accepted += written,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            assert!(
                ACCEPTED.contains(&accepted),
                "{accepted} B in pieces of {piece} B"
            );
            client.shutdown().await.unwrap();
            let mut got = vec![0; accepted];
            server.readable().await.unwrap();
            server.read_exact(&mut got).await.unwrap();
            assert!(got == all[..accepted]);
            assert_eq!(server.read(&mut got).await.unwrap(), 0);
        }
    });
}

#[test]
fn pipeline_that_writes_before_reading_completes() {
    const REQUESTS: usize = 10_000;
    on_runtime(async {
        let (mut client, mut server) = streams().await;
        let answering = tokio::spawn(async move {
            let mut request = [0; 100];
            for _ in 0..REQUESTS {
                server.read_exact(&mut request).await.unwrap();
                server.write_all(&request).await.unwrap();
            }
            server
        });
        for number in 0..REQUESTS {
            client.write_all(&[number as u8; 100]).await.unwrap();
        }
        let mut answer = [0; 100];
        for number in 0..REQUESTS {
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, [number as u8; 100]);
        }
        drop(answering.await.unwrap());
    });
}

#[test]
fn peek_sees_all_that_has_arrived() {
    on_runtime(async {
        let (mut client, mut server) = streams().await;
        let header = bytes(0, 1000);
        for piece in header.chunks(10) {
            client.write_all(piece).await.unwrap();
        }
        let mut peeked = [0; 2000];
        while server.peek(&mut peeked[..1000]).await.unwrap() < header.len() {}
        assert_eq!(peeked[..1000], header);
        assert_eq!(server.peek(&mut peeked).await.unwrap(), 1000);
        // The read returns all bytes that the peek has returned.
        assert_eq!(server.read(&mut peeked).await.unwrap(), 1000);
        assert_eq!(peeked[..1000], header);
    });
}
