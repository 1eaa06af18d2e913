//! Tests of the unmodified rustls library on streams of rdmsg.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::Method;
use services::{
    certificate::{self, Identity, NAME},
    web::{self, Client, full_body},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use toolbox::pattern;

use super::stage::{Service, run};

#[test]
fn megabytes_come_back_through_tls() {
    const LEN: usize = 2_000_000;
    run(async {
        let (identity, pem) = Identity::make().unwrap();
        let acceptor = identity.acceptor().unwrap();
        let service = Service::start(move |socket, _| {
            let acceptor = acceptor.clone();
            async move {
                let stream = acceptor.accept(socket).await?;
                let (mut read, mut write) = tokio::io::split(stream);
                tokio::io::copy(&mut read, &mut write).await?;
                Ok(write.shutdown().await?)
            }
        })
        .await;
        let trusted = certificate::parse_certificates(pem.as_bytes()).unwrap();
        let connector = certificate::connector(trusted, false).unwrap();
        let name = NAME.try_into().unwrap();
        let stream = connector.connect(name, service.connect().await);
        let (mut read, mut write) = tokio::io::split(stream.await.unwrap());
        let sent: Arc<[u8]> = pattern(0, LEN).into();
        let sending = Arc::clone(&sent);
        let sending = tokio::spawn(async move {
            write.write_all(&sending).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        // rustls returns an error if the stream ends without a close_notify alert. A successful
        // read therefore shows that the peer has sent close_notify.
        read.read_to_end(&mut received).await.unwrap();
        assert!(received == *sent, "{} bytes arrived", received.len());
        sending.await.unwrap();
        service.stop().await;
    });
}

#[test]
fn http2_passes_tls_and_wrong_name_fails() {
    run(async {
        let (identity, pem) = Identity::make().unwrap();
        let acceptor = identity.acceptor().unwrap();
        let service = Service::start(move |socket, stop| {
            let acceptor = acceptor.clone();
            async move { web::serve(acceptor.accept(socket).await?, stop).await }
        })
        .await;
        let trusted = certificate::parse_certificates(pem.as_bytes()).unwrap();
        let connector = certificate::connector(trusted, true).unwrap();
        let name = NAME.try_into().unwrap();
        let stream = connector
            .connect(name, service.connect().await)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut client = Client::start(stream, true).await.unwrap();
        let answer = client.send(Method::GET, "/", full_body("")).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "rdmsg\n");
        drop(client);
        let name = "elsewhere.test".try_into().unwrap();
        let error = connector.connect(name, service.connect().await).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("not valid for name"), "{error}");
        service.stop().await;
    });
}

#[test]
fn server_refuses_clients_without_a_known_certificate() {
    run(async {
        let (server, server_pem) = Identity::make().unwrap();
        let (client, client_pem) = Identity::make().unwrap();
        let (stranger, _) = Identity::make().unwrap();
        let parse = |pem: &str| certificate::parse_certificates(pem.as_bytes()).unwrap();
        let known = parse(&client_pem);
        let acceptor = server.acceptor_for(known.clone()).unwrap();
        let service = Service::start(move |socket, _| {
            let (acceptor, known) = (acceptor.clone(), known.clone());
            async move {
                let mut stream = acceptor.accept(socket).await?;
                assert_eq!(stream.get_ref().1.peer_certificates(), Some(&*known));
                let question = stream.read_u8().await?;
                stream.write_u8(question + 1).await?;
                Ok(stream.shutdown().await?)
            }
        })
        .await;
        let trusted = parse(&server_pem);
        for (connector, answer) in [
            (client.connector(trusted.clone(), false), Some(8)),
            (stranger.connector(trusted.clone(), false), None),
            (certificate::connector(trusted.clone(), false), None),
        ] {
            let name = NAME.try_into().unwrap();
            let connecting = connector.unwrap().connect(name, service.connect().await);
            // With TLS 1.3, the client's handshake completes before the server checks the client's
            // certificate.
            let mut stream = connecting.await.unwrap();
            let asked = stream.write_u8(7).await;
            let answered = match asked {
                Ok(()) => stream.read_u8().await,
                Err(error) => Err(error),
            };
            assert_eq!(answered.ok(), answer);
        }
        service.stop().await;
    });
}
