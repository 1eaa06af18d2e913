use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use ::hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use http::{Uri, uri::Scheme};
use tower_service::Service;

use super::PeerAddr;
use crate::{connector::Connector, tokio::stream::Stream};

/// A service that connects [`Stream`]s to the hosts of URIs (feature `hyper-util`), for
/// `hyper_util::client::legacy::Client` and for tonic's `Endpoint::connect_with_connector`.
///
/// The host may be an address or a host name. If a URI has no port, the port is 80, or 443 for
/// `https`.
///
/// # Examples
///
/// ```no_run
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use rdmsg::tokio::HttpConnector;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder(TokioExecutor::new());
/// let client: Client<_, String> = client.build(HttpConnector::default());
/// let answer = client.get("http://10.8.0.1:7471/".parse()?).await?;
/// println!("{}", answer.status());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HttpConnector {
    connector: Connector,
    enforce_http: bool,
}

impl HttpConnector {
    /// Creates an `HttpConnector` that uses `connector` to connect to the host of each URI.
    /// [`HttpConnector::default`] uses [`Connector::new`].
    #[must_use]
    pub fn new(connector: Connector) -> Self {
        Self {
            connector,
            enforce_http: true,
        }
    }

    /// Sets whether URIs must have the scheme `http`. Default: `true`.
    ///
    /// This connector does not encrypt. If a TLS connector wraps it, set `false`. Then URIs with
    /// `https`, or with any other scheme, are accepted.
    #[must_use]
    pub fn enforce_http(mut self, enforce: bool) -> Self {
        self.enforce_http = enforce;
        self
    }

    /// Returns the host, without brackets, and the port of a URI.
    fn target(&self, uri: &Uri) -> io::Result<(String, u16)> {
        let fail = |problem| {
            let text = format!("the URI {uri} {problem}");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let scheme = uri.scheme().ok_or_else(|| fail("has no scheme"))?;
        if self.enforce_http && *scheme != Scheme::HTTP {
            return Err(fail("has a scheme other than http"));
        }
        let host = uri.host().ok_or_else(|| fail("has no host"))?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let default = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        Ok((
            bare.unwrap_or(host).to_owned(),
            uri.port_u16().unwrap_or(default),
        ))
    }
}

impl Default for HttpConnector {
    fn default() -> Self {
        Self::new(Connector::new())
    }
}

impl Service<Uri> for HttpConnector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Connects to the host of the URI. Dropping the future cancels the connection attempt.
    fn call(&mut self, uri: Uri) -> Self::Future {
        let target = self.target(&uri);
        let connector = self.connector.clone();
        Box::pin(async move {
            let stream = Stream::connect_with(&connector, target?).await?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Adds the [`PeerAddr`] to the extensions of each response that
/// `hyper_util::client::legacy::Client` receives (feature `hyper-util`).
impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        match self.peer_addr() {
            Ok(peer) => connected.extra(PeerAddr(peer)),
            Err(_) => connected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(connector: &HttpConnector, uri: &str) -> io::Result<(String, u16)> {
        connector.target(&uri.parse().unwrap())
    }

    #[test]
    fn target_takes_port_of_scheme_without_port() {
        let connector = HttpConnector::default().enforce_http(false);
        let cases = [
            ("http://host", "host", 80),
            ("https://host/path", "host", 443),
            ("http://host:7471/", "host", 7471),
            ("https://10.8.0.1:7471", "10.8.0.1", 7471),
            ("http://[::1]/", "::1", 80),
            ("http://user@[fe80::1]:7471/", "fe80::1", 7471),
        ];
        for (uri, host, port) in cases {
            let expected = (host.to_owned(), port);
            assert_eq!(target(&connector, uri).unwrap(), expected, "{uri}");
        }
    }

    #[test]
    fn target_refuses_https_until_allowed() {
        let connector = HttpConnector::default();
        let error = target(&connector, "https://host").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let expected = "the URI https://host/ has a scheme other than http";
        assert_eq!(error.to_string(), expected);
        let connector = connector.enforce_http(false);
        assert_eq!(target(&connector, "https://host").unwrap().1, 443);
    }

    #[test]
    fn target_refuses_uri_without_scheme() {
        let error = target(&HttpConnector::default(), "/path").unwrap_err();
        assert_eq!(error.to_string(), "the URI /path has no scheme");
    }
}
