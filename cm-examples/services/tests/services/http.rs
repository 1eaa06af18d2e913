//! Tests of the unmodified hyper library on streams of rdmsg and of TCP.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use services::web::{Answer, Client, Pattern, full_body, serve};
use tokio::task::JoinSet;

use super::stage::{Service, connect, run};

const LEN: u64 = 3_000_000;

async fn body(answer: Answer) -> Bytes {
    answer.into_body().collect().await.unwrap().to_bytes()
}

async fn check_pattern(answer: Answer, len: u64) {
    let mut body = answer.into_body();
    let mut at = 0;
    while let Some(frame) = body.frame().await {
        let piece = frame.unwrap().into_data().unwrap();
        let end = at + piece.len() as u64;
        assert!(piece == Pattern::piece(at, end), "from {at} to {end}");
        at = end;
    }
    assert_eq!(at, len);
}

#[test]
fn bodies_of_megabytes_go_both_ways_by_either_version() {
    run(async {
        let service = Service::start(serve).await;
        for options in service.clients() {
            for http2 in [false, true] {
                let mut client = Client::start(connect(&options).await, http2).await.unwrap();
                let path = format!("/bytes/{LEN}");
                let answer = client
                    .send(Method::GET, &path, full_body(""))
                    .await
                    .unwrap();
                check_pattern(answer, LEN).await;
                let posted = Pattern::new(LEN).boxed();
                let answer = client.send(Method::POST, "/echo", posted).await.unwrap();
                check_pattern(answer, LEN).await;
                let answer = client
                    .send(Method::GET, "/no", full_body(""))
                    .await
                    .unwrap();
                assert_eq!(answer.status(), StatusCode::NOT_FOUND);
            }
        }
        service.stop().await;
    });
}

#[test]
fn hundred_concurrent_requests_each_get_an_answer() {
    run(async {
        let service = Service::start(serve).await;
        let options = &service.clients()[0];
        for http2 in [false, true] {
            let first = Client::start(connect(options).await, http2).await.unwrap();
            let mut requests = JoinSet::new();
            for number in 0..100 {
                let mut client = match first.share() {
                    Some(client) => client,
                    None => Client::start(connect(options).await, http2).await.unwrap(),
                };
                requests.spawn(async move {
                    let text = format!("request {number}").repeat(number);
                    let posted = full_body(text.clone());
                    let answer = client.send(Method::POST, "/echo", posted).await.unwrap();
                    assert_eq!(body(answer).await, text);
                });
            }
            while let Some(request) = requests.join_next().await {
                request.unwrap();
            }
        }
        service.stop().await;
    });
}

#[test]
fn pending_request_is_answered_at_server_shutdown() {
    run(async {
        let service = Service::start(serve).await;
        let mut clients = Vec::new();
        for http2 in [false, true] {
            let socket = service.connect().await;
            let mut client = Client::start(socket, http2).await.unwrap();
            let answer = client
                .send(Method::GET, "/bytes/3000000", full_body(""))
                .await;
            clients.push((client, answer.unwrap()));
        }
        let stopping = tokio::spawn(service.stop());
        for (_client, answer) in clients {
            check_pattern(answer, 3_000_000).await;
        }
        stopping.await.unwrap();
    });
}
