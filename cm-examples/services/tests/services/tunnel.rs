//! A test of tunnels with the unmodified hyper library. HTTP CONNECT opens each tunnel in a stream
//! of an HTTP/2 connection.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::http2 as client,
    server::conn::http2 as server,
    service::service_fn,
    upgrade::{self, Upgraded},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rdmsg::{
    Connector, Engine,
    tokio::{Stream, StreamListener},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, split},
    try_join,
};
use toolbox::pattern;

use super::stage::{config, ip_and_transport, run};

const LEN: usize = 1_000_000;

/// Echoes the bytes of a tunnel until the peer ends its sending direction. Then ends the sending
/// direction of this side.
async fn echo(tunnel: Upgraded) {
    let (mut reading, mut writing) = split(TokioIo::new(tunnel));
    copy(&mut reading, &mut writing).await.unwrap();
    writing.shutdown().await.unwrap();
}

async fn answer(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    assert_eq!(request.method(), Method::CONNECT);
    tokio::spawn(async { echo(upgrade::on(request).await.unwrap()).await });
    Ok(Response::new(Empty::new()))
}

/// Returns the connected and the accepted stream of one connection. The same task connects and then
/// accepts, so the connect must not wait for the accept.
async fn streams() -> (Stream, Stream) {
    let engine = Engine::shared().unwrap();
    let listener = rdmsg::Listener::builder()
        .config(&config())
        .engine(&engine)
        .bind_stream((ip_and_transport().0, 0))
        .and_then(StreamListener::from_std)
        .unwrap();
    let address = listener.local_addr().unwrap();
    let connector = Connector::new().config(&config());
    let connected = Stream::connect_with(&connector, address).await.unwrap();
    let (accepted, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, connected.local_addr().unwrap());
    (connected, accepted)
}

#[test]
fn tunnels_of_http2_end_one_direction_at_a_time() {
    run(async {
        let (connected, accepted) = streams().await;
        let serving = server::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(accepted), service_fn(answer));
        let serving = tokio::spawn(serving);
        let (mut sender, connection) = client::Builder::new(TokioExecutor::new())
            .handshake(TokioIo::new(connected))
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        for _ in 0..2 {
            let request = Request::connect("tunnel:1").body(Empty::<Bytes>::new());
            let answer = sender.send_request(request.unwrap()).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            let tunnel = TokioIo::new(upgrade::on(answer).await.unwrap());
            let (mut reading, mut writing) = split(tunnel);
            let sent = pattern(0, LEN);
            let mut got = Vec::new();
            let write = async {
                writing.write_all(&sent).await?;
                writing.shutdown().await
            };
            try_join!(write, reading.read_to_end(&mut got)).unwrap();
            assert!(got == sent, "{} of {LEN} bytes", got.len());
        }
        drop(sender);
        connection.await.unwrap().unwrap();
        serving.await.unwrap().unwrap();
    });
}
