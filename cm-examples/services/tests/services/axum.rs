//! Tests of the unmodified libraries axum and hyper-util with the listener and the connector of
//! rdmsg, and with plain TCP.

use std::{net::SocketAddr, pin::pin};

use ::axum::serve::Listener;
use bytes::Bytes;
use futures_util::future::poll_immediate;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector as TcpConnector},
    },
    rt::TokioExecutor,
};
use nix::sys::signal::Signal;
use rdmsg::{
    Connector,
    tokio::{HttpConnector, PeerAddr, Stream, StreamListener},
};
use services::greeter;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use toolbox::pattern;

use super::stage::{Program, TIME_LIMIT, config, ip_and_transport, run};

const AXUM_SERVER: &str = env!("CARGO_BIN_EXE_axum_server");
const HTTP_GET: &str = env!("CARGO_BIN_EXE_http_get");

fn connector() -> HttpConnector {
    HttpConnector::new(Connector::new().config(&config()))
}

async fn send<C>(client: &Client<C, Full<Bytes>>, uri: &str, body: Bytes) -> Response<Incoming>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let method = if body.is_empty() {
        Method::GET
    } else {
        Method::POST
    };
    let request = Request::builder().method(method).uri(uri);
    let answer = client.request(request.body(body.into()).unwrap()).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::OK, "{uri}");
    answer
}

async fn body(answer: Response<Incoming>) -> Bytes {
    answer.into_body().collect().await.unwrap().to_bytes()
}

/// Checks the responses of a server with HTTP/1 and with HTTP/2. `peer` is the server address that
/// the extensions of a response must contain, or `None` if the connector adds no address.
async fn check<C>(connector: C, address: SocketAddr, peer: Option<PeerAddr>)
where
    C: Connect + Clone + Send + Sync + 'static,
{
    for http2 in [false, true] {
        let mut builder = Client::builder(TokioExecutor::new());
        let client = builder.http2_only(http2).build(connector.clone());
        let answer = send(&client, &format!("http://{address}/"), Bytes::new()).await;
        assert_eq!(answer.extensions().get(), peer.as_ref());
        let greeting = String::from_utf8(body(answer).await.to_vec()).unwrap();
        let greeted = greeting.strip_prefix("hello, ").unwrap().trim_end();
        let greeted: SocketAddr = greeted.parse().unwrap();
        assert_eq!(greeted.ip(), address.ip());
        let sent = Bytes::from(pattern(0, 3_000_000));
        let answer = send(&client, &format!("http://{address}/echo"), sent.clone()).await;
        assert!(body(answer).await == sent);
    }
}

#[test]
fn axum_serves_either_listener() {
    run(async {
        let stop = CancellationToken::new();
        let listener = rdmsg::Listener::builder()
            .config(&config())
            .bind_stream((ip_and_transport().0, 0))
            .and_then(StreamListener::from_std)
            .unwrap();
        let address = listener.local_addr().unwrap();
        let serving = greeter::serve::<_, PeerAddr>(listener, stop.clone());
        let serving = tokio::spawn(serving);
        check(connector(), address, Some(PeerAddr(address))).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving_tcp = greeter::serve::<_, SocketAddr>(listener, stop.clone());
        let serving_tcp = tokio::spawn(serving_tcp);
        check(TcpConnector::new(), address, None).await;
        stop.cancel();
        serving.await.unwrap().unwrap();
        serving_tcp.await.unwrap().unwrap();
    });
}

#[test]
fn accept_of_axum_waits_after_close() {
    run(async {
        let mut listener = rdmsg::Listener::builder()
            .config(&config())
            .bind_stream((ip_and_transport().0, 0))
            .and_then(StreamListener::from_std)
            .unwrap();
        let address = Listener::local_addr(&listener).unwrap();
        let connector = Connector::new().config(&config());
        let client = Stream::connect_with(&connector, address).await.unwrap();
        let (_stream, peer) = Listener::accept(&mut listener).await;
        assert_eq!(peer, client.local_addr().unwrap());
        listener.close();
        let error = StreamListener::accept(&listener).await.unwrap_err();
        assert_eq!(error.to_string(), rdmsg::Error::ListenerClosed.to_string());
        let accepting = pin!(Listener::accept(&mut listener));
        assert!(poll_immediate(accepting).await.is_none());
    });
}

#[test]
fn programs_of_axum_and_hyper_util_exchange_pages() {
    let (mut server, address) = Program::serve(AXUM_SERVER, &["ADDR"]);
    let page = format!("http://{address}/");
    let mut client = Program::start(HTTP_GET, &[&page], address);
    client.line(&format!("hello, {}:", address.ip()));
    let words = [page.as_str(), "-n", "200", "-c", "7", "--http2"];
    let mut client = Program::start(HTTP_GET, &words, address);
    client.line("200 requests, ");
    server.signal(Signal::SIGTERM);
    let ended = server.0.finish(TIME_LIMIT).unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
}
