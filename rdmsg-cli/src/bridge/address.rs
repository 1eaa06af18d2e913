use std::{fmt, str::FromStr};

use rdmsg::TransportChoice;

/// The address on which a bridge listens, or to which it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    scheme: Scheme,
    /// The host and the port, separated by a colon.
    host_port: String,
}

/// The protocol that is used at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Plain TCP, for a program that does not use rdmsg.
    Plain,
    /// An rdmsg stream over RDMA.
    Rdma,
    /// An rdmsg stream over RDMA if a device serves the address, and over TCP otherwise.
    Rdmsg,
    /// An rdmsg stream over TCP.
    RdmsgTcp,
}

impl Scheme {
    const ALL: [Self; 4] = [Self::Plain, Self::Rdma, Self::Rdmsg, Self::RdmsgTcp];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "tcp",
            Self::Rdma => "rdma",
            Self::Rdmsg => "rdmsg",
            Self::RdmsgTcp => "rdmsg+tcp",
        }
    }

    /// Returns the transport of rdmsg streams, or `None` for plain TCP.
    pub(super) fn transport(self) -> Option<TransportChoice> {
        match self {
            Self::Plain => None,
            Self::Rdma => Some(TransportChoice::Rdma),
            Self::Rdmsg => Some(TransportChoice::Auto),
            Self::RdmsgTcp => Some(TransportChoice::Tcp),
        }
    }
}

impl Address {
    pub(super) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the host and the port, separated by a colon.
    pub(super) fn host_port(&self) -> &str {
        &self.host_port
    }

    /// Returns an address with the same scheme, and with `host_port` as its host and port.
    pub(super) fn at(&self, host_port: impl fmt::Display) -> Self {
        Self {
            scheme: self.scheme,
            host_port: host_port.to_string(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.host_port)
    }
}

/// The explanation of address forms in error messages.
const FORMS: &str = "an address is tcp://HOST:PORT for a plain TCP socket; for a stream of rdmsg, \
     it is rdma://HOST:PORT, rdmsg://HOST:PORT or rdmsg+tcp://HOST:PORT";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, host_port) = text
            .split_once("://")
            .ok_or_else(|| format!("the address has no scheme; {FORMS}"))?;
        let scheme = Scheme::ALL
            .into_iter()
            .find(|scheme| scheme.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("the scheme {name}:// does not exist; {FORMS}"))?;
        let (host, port) = host_port
            .rsplit_once(':')
            .ok_or_else(|| format!("the port is missing; {FORMS}"))?;
        if host.is_empty() {
            return Err(format!(
                "the host is missing (0.0.0.0 listens on all addresses); {FORMS}"
            ));
        }
        if host.contains(':') && !host.starts_with('[') {
            return Err(format!(
                "an IPv6 address needs brackets: {}://[{host}]:{port}",
                scheme.name()
            ));
        }
        if port.parse::<u16>().is_err() {
            return Err(format!("{port} is not a port number (0 to 65535); {FORMS}"));
        }
        Ok(Self {
            scheme,
            host_port: host_port.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_says_what_is_spoken() {
        for (text, scheme, transport) in [
            ("tcp://127.0.0.1:6379", Scheme::Plain, None),
            ("rdma://a:1", Scheme::Rdma, Some(TransportChoice::Rdma)),
            (
                "rdmsg://[::1]:0",
                Scheme::Rdmsg,
                Some(TransportChoice::Auto),
            ),
            (
                "rdmsg+tcp://a.b:7",
                Scheme::RdmsgTcp,
                Some(TransportChoice::Tcp),
            ),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.scheme(), scheme);
            assert_eq!(scheme.transport(), transport);
            assert_eq!(address.to_string(), text);
            let upper: Address = text.to_uppercase().parse().unwrap();
            assert_eq!(
                upper.scheme(),
                scheme,
                "the case of a scheme must not matter"
            );
        }
    }

    #[test]
    fn invalid_option_is_reported() {
        for (text, wrong) in [
            ("127.0.0.1:6379", "the address has no scheme"),
            ("http://a:1", "the scheme http:// does not exist"),
            ("tcp://a", "the port is missing"),
            ("tcp://:1", "the host is missing"),
            ("rdma://::1:1", "rdma://[::1]:1"),
            ("rdma://a:70000", "70000 is not a port number"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
