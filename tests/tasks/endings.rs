//! Tests of tokio tasks whose connection over TCP ends.

use std::{
    future::{Future, poll_fn},
    net::{Shutdown, TcpStream},
    pin::pin,
};

use common::{tcp_config, tcp_peer::Peer};
use rdmsg::{Engine, Error, tokio::Listener};
use tokio::task::spawn_blocking;

use super::tokio::on_each;

/// The maximum number of polls of a receive. One poll finds no message, one poll finds the end of
/// the stream, and one poll finds the end of the connection. The other five polls allow for early
/// wake-ups.
const MAX_POLLS: u32 = 8;

/// Returns the result of a future, and the number of its polls.
async fn count_polls<T>(future: impl Future<Output = T>) -> (T, u32) {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        future.as_mut().poll(cx).map(|result| (result, polls))
    })
    .await
}

#[test]
fn task_sleeps_until_the_engine_ends_its_connection() {
    on_each(|| async {
        let config = tcp_config();
        let engine = Engine::new().unwrap();
        let listener = rdmsg::Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind("127.0.0.1:0")
            .unwrap();
        let listener = Listener::from(listener);
        let addr = listener.local_addr();
        for _ in 0..100 {
            let connect = move || Peer::from_stream(TcpStream::connect(addr).unwrap(), 4).unwrap();
            let (peer, endpoint) = tokio::join!(spawn_blocking(connect), listener.accept());
            let (peer, endpoint) = (peer.unwrap(), endpoint.unwrap());
            let leave = async { peer.stream.shutdown(Shutdown::Write).unwrap() };
            let ((received, polls), ()) = tokio::join!(count_polls(endpoint.recv()), leave);
            assert!(
                matches!(received, Err(Error::Disconnected(_))),
                "{received:?}"
            );
            assert!(polls <= MAX_POLLS, "{polls} polls");
        }
    });
}
