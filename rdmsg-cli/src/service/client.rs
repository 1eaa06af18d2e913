use std::{
    error, fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rdmsg::{Config, Connector, Endpoint, Error, ToAddresses};

use super::{Answer, PORT, Request};
use crate::arguments::Carrier;

/// The maximum length in bytes of a refusal text in an error message.
const LONGEST: usize = 200;

/// Resolves `HOST`, `HOST:PORT`, `1::2`, `fe80::2%eth0` or `[1::2]:PORT` to addresses. The default
/// port is the constant [`PORT`].
pub(crate) fn addresses(name: &str) -> Result<Vec<SocketAddr>> {
    let fail = || format!("cannot look up {name}");
    let inner = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let host = inner.unwrap_or(name);
    let ip = host.split_once('%').map_or(host, |(ip, _interface)| ip);
    let is_ip = ip.parse::<IpAddr>().is_ok();
    let found = if name.contains(':') && !is_ip {
        name.to_addresses()
    } else {
        (host, PORT).to_addresses()
    };
    Ok(found.with_context(fail)?.as_slice().to_vec())
}

/// Connects to `rdmsg serve` and requests a service. `resume` is the time for which a lost
/// connection can be resumed.
pub(crate) fn connect(
    peer: &[SocketAddr],
    carrier: Carrier,
    request: Request,
    timeout: Duration,
    resume: Duration,
) -> Result<Endpoint> {
    let mut config = Config::default();
    config.transport = carrier.into();
    config.connect_timeout = timeout;
    config.resume = resume;
    let endpoint = Connector::new().config(&config).connect(peer)?;
    let asked = ask(&endpoint, request, timeout);
    let peer = endpoint.peer_addr();
    if let Err(Unserved::OtherProgram) = asked {
        bail!("a program other than `rdmsg serve` listens at {peer}");
    }
    asked.with_context(|| format!("cannot determine whether `rdmsg serve` listens at {peer}"))?;
    Ok(endpoint)
}

/// Requests a service from `rdmsg serve`. Returns the text of the reply. If the reply does not
/// grant the service, aborts the connection and returns an error.
pub(crate) fn ask(
    endpoint: &Endpoint,
    request: Request,
    timeout: Duration,
) -> Result<Vec<u8>, Unserved> {
    endpoint.send_timeout(request.to_string().as_bytes(), timeout)?;
    let answer = endpoint.recv_timeout(timeout)?;
    match answer.split_first() {
        Some((first, said)) if *first == Answer::Granted.byte() => Ok(said.to_vec()),
        answered => {
            endpoint.abort(0);
            if answered.is_none_or(|(first, _)| *first != Answer::Refused.byte()) {
                return Err(Unserved::OtherProgram);
            }
            // The peer can be another program, so the reply can contain any bytes.
            let words = answer.get(1..answer.len().min(LONGEST)).unwrap_or_default();
            let words = String::from_utf8_lossy(words).escape_debug().to_string();
            Err(Unserved::Refused(words))
        }
    }
}

/// The reason why a client did not get the requested service.
#[derive(Clone, Debug)]
pub(crate) enum Unserved {
    /// The connection failed.
    Failed(Error),
    /// The server refused the request, with this text.
    Refused(String),
    /// The reply does not come from `rdmsg serve`.
    OtherProgram,
}

impl From<Error> for Unserved {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Refused(words) => write!(f, "the peer refused the request: {words}"),
            Self::OtherProgram => {
                f.write_str("a program other than `rdmsg serve` listens at this address")
            }
        }
    }
}

impl error::Error for Unserved {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_come_without_a_port() {
        for (name, expected) in [
            ("10.8.0.1", "10.8.0.1:7471"),
            ("10.8.0.1:9", "10.8.0.1:9"),
            ("fd08::1", "[fd08::1]:7471"),
            ("[fd08::1]", "[fd08::1]:7471"),
            ("[fd08::1]:9", "[fd08::1]:9"),
            ("fe80::1%lo", "[fe80::1%1]:7471"),
            ("[fe80::1%lo]", "[fe80::1%1]:7471"),
            ("[fe80::1%lo]:9", "[fe80::1%1]:9"),
        ] {
            assert_eq!(
                addresses(name).unwrap(),
                [expected.parse().unwrap()],
                "{name}"
            );
        }
        assert!(addresses("").is_err());
    }
}
