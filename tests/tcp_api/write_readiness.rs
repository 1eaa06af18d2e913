//! Tests the write readiness of streams after a refused long write. A stream that refuses a long
//! write can still accept a short write.

use std::{
    io::ErrorKind,
    task::{Context, Waker},
};

use common::connector;
use rdmsg::{
    Engine, EngineLimits, Listener,
    tokio::{Stream, StreamListener},
};
use tokio::{io::AsyncReadExt, runtime::Builder};

use super::free_rdmsg_address;

const LONG: usize = 1 << 20;

fn is_refused(stream: &Stream, bytes: &[u8]) -> bool {
    match stream.try_write(bytes) {
        Ok(count) => {
            assert_eq!(count, bytes.len());
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            true
        }
    }
}

fn is_writable(stream: &Stream) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    stream.poll_write_ready(&mut cx).is_ready()
}

#[test]
fn refused_write_waits_for_room_of_its_length() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // With this limit, the peer's library receives one long write before the peer's program
        // reads.
        let mut limits = EngineLimits::default();
        limits.held = LONG as u64;
        let engine = Engine::with_limits(limits).unwrap();
        let listener = Listener::builder().engine(&engine);
        let listener = listener.bind_stream(free_rdmsg_address()).unwrap();
        let listener = StreamListener::from_std(listener).unwrap();
        let connector = connector();
        let connecting = Stream::connect_with(&connector, listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(connecting, listener.accept());
        let (client, mut server) = (client.unwrap(), accepted.unwrap().0);

        let long = vec![7; LONG];
        let mut taken = 0;
        for refusals in 0.. {
            while !is_refused(&client, &long) {
                taken += 1;
            }
            if !is_writable(&client) {
                break;
            }
            // The peer's library has received an earlier write since the refusal. So the stream is
            // writable, and the next write may be accepted.
            tokio::task::yield_now().await;
            assert!(refusals < 1000, "a refusal must clear the readiness");
        }
        assert!(
            taken < client.endpoint().info().negotiated.unwrap().send_window,
            "the window must have space for short writes"
        );
        assert!(!is_refused(&client, b"short"));
        assert!(
            is_writable(&client),
            "an accepted write must not clear the readiness"
        );
        let short = usize::from(taken) * LONG;
        while !is_refused(&client, &long) {
            taken += 1;
        }
        let waiting = client.writable();
        let all = usize::from(taken) * LONG + 5;
        let mut bytes = vec![0; all];
        let (room, read) = tokio::join!(waiting, server.read_exact(&mut bytes));
        room.unwrap();
        assert_eq!(read.unwrap(), all);
        assert_eq!(bytes[short..short + 5], *b"short");
        assert!(!is_refused(&client, &long));
    });
}
