//! Tests of the unmodified tonic library on streams of rdmsg and of TCP.

use bytes::Bytes;
use rdmsg::{Engine, tokio::StreamListener};
use services::{
    echo_service::{EchoClient, EchoService},
    options::{ClientOptions, Keepalive},
};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, service::interceptor::InterceptedService, transport};

use super::stage::{Service, config, ip_and_transport, run, server};

pub(super) async fn service(keepalive: Keepalive) -> (Service, Engine) {
    let server = server(keepalive).await;
    let engine = server.engine().clone();
    let stop = server.stop();
    let service = Service::of(&server.local_addrs().unwrap(), server.stop(), async move {
        transport::Server::builder()
            .serve_with_incoming_shutdown(EchoService, server.incoming(), stop.cancelled())
            .await?;
        server.finish().await
    });
    (service, engine)
}

#[test]
fn calls_of_each_kind_have_their_answers() {
    run(async {
        let (service, _) = service(Keepalive::default()).await;
        for options in service.clients() {
            let engine = Engine::shared().unwrap();
            let mut client = EchoClient::connect(options, engine).await.unwrap();
            for len in [0, 5, 3_000_000] {
                let message = Bytes::from(vec![7; len]);
                assert!(client.once(message.clone()).await.unwrap() == message);
            }
            let mut numbers = client.count(5000).await.unwrap();
            for number in 0..5000 {
                let received = numbers.next().await.unwrap().unwrap();
                assert_eq!(received, number.to_string());
            }
            assert!(numbers.next().await.is_none());
            // The client sends each message after it has received the reply to the previous
            // message.
            let (messages, stream) = mpsc::channel(1);
            let mut answers = client.chat(ReceiverStream::new(stream)).await.unwrap();
            for number in 0..500 {
                let message = Bytes::from(vec![number as u8; number * 37]);
                messages.send(message.clone()).await.unwrap();
                assert!(answers.next().await.unwrap().unwrap() == message);
            }
            drop(messages);
            assert!(answers.next().await.is_none());
        }
        service.stop().await;
    });
}

#[test]
fn request_has_addresses_over_listener_of_rdmsg() {
    run(async {
        let engine = Engine::shared().unwrap();
        let listener = rdmsg::Listener::builder()
            .config(&config())
            .engine(&engine)
            .bind_stream((ip_and_transport().0, 0))
            .and_then(StreamListener::from_std)
            .unwrap();
        let address = listener.local_addr().unwrap();
        let (addresses, mut received) = mpsc::channel(1);
        let service = InterceptedService::new(EchoService, move |request: Request<()>| {
            let both = (request.local_addr(), request.remote_addr());
            addresses.try_send(both).unwrap();
            Ok(request)
        });
        let stop = CancellationToken::new();
        let serving = transport::Server::builder().serve_with_incoming_shutdown(
            service,
            listener.into_incoming(),
            stop.clone().cancelled_owned(),
        );
        let serving = tokio::spawn(serving);
        let client = EchoClient::connect(ClientOptions::to(address), engine).await;
        let mut client = client.unwrap();
        assert_eq!(client.once("hello").await.unwrap(), "hello");
        let (local, remote) = received.recv().await.unwrap();
        assert_eq!(local, Some(address));
        assert_eq!(remote.unwrap().ip(), address.ip());
        drop(client);
        stop.cancel();
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn refusal_of_service_is_a_status() {
    run(async {
        let (service, _) = service(Keepalive::default()).await;
        let [options, _] = service.clients();
        let engine = Engine::shared().unwrap();
        let mut client = EchoClient::connect(options, engine).await.unwrap();
        let status = client.once(vec![0; 5_000_000]).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        assert_eq!(client.once("on it goes").await.unwrap(), "on it goes");
        drop(client);
        service.stop().await;
    });
}
