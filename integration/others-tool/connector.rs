
/// Returns an octet of the IPv4 address that takes the place of 127.0.0.1.
fn octet(at: usize) -> u8 {
    here("127.0.0.1").parse::<net::Ipv4Addr>().unwrap().octets()[at]
}

/// As hyper-util's connector, with rdmsg's streams.
mod connector {
    use std::{
        future::Future,
        io,
        pin::Pin,
        task::{Context, Poll},
    };

    use hyper::Uri;
    use hyper_util::rt::TokioIo;
    use rdmsg::tokio::Stream;

    #[derive(Clone, Debug)]
    pub struct HttpConnector;

    impl HttpConnector {
        pub fn new() -> Self {
            Self
        }
    }

    impl tower_service::Service<Uri> for HttpConnector {
        type Response = TokioIo<Stream>;
        type Error = io::Error;
        type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, uri: Uri) -> Self::Future {
            Box::pin(async move {
                let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
                let port = uri.port_u16().unwrap_or(80);
                Ok(TokioIo::new(Stream::connect((host, port)).await?))
            })
        }
    }
}
