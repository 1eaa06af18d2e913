//! Unmodified rustls, on rdmsg's streams.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::Method;
use services::{
    certificate::{self, Identity, NAME},
    web::{self, Client, whole},
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
        // The read succeeds only if the peer's close_notify precedes the end of its stream.
        read.read_to_end(&mut received).await.unwrap();
        assert!(received == *sent, "{} bytes came", received.len());
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
        let answer = client.send(Method::GET, "/", whole("")).await.unwrap();
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
