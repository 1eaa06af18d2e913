use std::{
    fmt::Display,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs},
};

use nix::net::if_::if_nametoindex;

use crate::{error::Error, transport_choice::TransportChoice};

mod memory_names;

pub(crate) use self::memory_names::{Shown, serves};

/// An address to connect to or to listen on: a host and a port, as for [`ToSocketAddrs`], and
/// optionally a transport.
///
/// In text form, an address is `host:port`, optionally with a [`TransportChoice`] as its scheme:
/// `rdma://host:port`, `tcp://host:port` or `auto://host:port`, in upper or lower case. The scheme
/// overrides the transport of the [`Config`](crate::Config). `memory://name` names a listener of
/// this process, for tests; the name is any text that is not empty. A link-local address contains
/// its network interface by name or by index: `[fe80::1%eth0]:7471`, `[fe80::1%2]:7471`.
///
/// A function that is generic over [`ToSocketAddrs`] accepts these texts after `use
/// rdmsg::ToAddresses as ToSocketAddrs;`. Types of other crates that implement only `ToSocketAddrs`
/// are not accepted, because that trait cannot name a transport.
///
/// # Examples
///
/// ```
/// use rdmsg::{ToAddresses, TransportChoice};
///
/// let addresses = "tcp://127.0.0.1:7471".to_addresses()?;
/// assert_eq!(addresses.transport(), Some(TransportChoice::Tcp));
/// assert!(("127.0.0.1", 7471).to_addresses()?.transport().is_none());
/// # Ok::<(), rdmsg::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    note = "a function that is generic over `std::net::ToSocketAddrs` becomes generic over \
            `rdmsg::ToAddresses`; see the table in `rdmsg::guide::streams`"
)]
pub trait ToAddresses {
    /// Returns the addresses. The call may block, because it looks up host names.
    ///
    /// # Errors
    ///
    /// [`Error::AddressLookup`] for an invalid address and for an unknown host name.
    fn to_addresses(&self) -> Result<Addresses, Error>;

    /// Returns the address as text if [`to_addresses`](Self::to_addresses) may query a name server
    /// for it. Otherwise returns `None`.
    #[doc(hidden)]
    fn name(&self) -> Option<String> {
        None
    }
}

/// The addresses of a host, in the order in which a connector tries them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    addresses: Vec<SocketAddr>,
    transport: Option<TransportChoice>,
}

impl Addresses {
    /// Creates a list of these addresses. The configuration determines the transport.
    #[must_use]
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self {
            addresses,
            transport: None,
        }
    }

    /// Returns the same addresses with this transport.
    #[must_use]
    pub fn over(self, transport: TransportChoice) -> Self {
        Self {
            transport: Some(transport),
            ..self
        }
    }

    /// Returns the addresses.
    #[must_use]
    pub fn as_slice(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the transport of these addresses, or `None` if the configuration determines it.
    #[must_use]
    pub fn transport(&self) -> Option<TransportChoice> {
        self.transport
    }
}

/// Returns the `literal` address if there is one; otherwise resolves `address`. Errors quote
/// `name`.
fn look_up(
    name: impl Display,
    literal: Option<Literal>,
    address: impl ToSocketAddrs,
) -> Result<Addresses, Error> {
    let fail = |problem: String| Error::AddressLookup {
        address: name.to_string(),
        problem,
    };
    if let Some(literal) = literal {
        return literal.map_err(fail).map(|addr| found(vec![addr]));
    }
    let resolved = address
        .to_socket_addrs()
        .map_err(|error| fail(error.to_string()))?;
    let addresses: Vec<SocketAddr> = resolved.collect();
    if addresses.is_empty() {
        return Err(fail("the name has no address".into()));
    }
    Ok(found(addresses))
}

/// Creates a list of these addresses. Its transport is [`TransportChoice::Memory`] if all addresses
/// stand for `memory://` names.
fn found(addresses: Vec<SocketAddr>) -> Addresses {
    let are_names = addresses.iter().all(|address| Shown(*address).is_name());
    let addresses = Addresses::new(addresses);
    if are_names {
        addresses.over(TransportChoice::Memory)
    } else {
        addresses
    }
}

/// Returns the address that stands for the listener `memory://name`. Errors quote `text`, the whole
/// address.
fn in_memory(text: &str, name: &str) -> Result<Addresses, Error> {
    if name.is_empty() {
        return Err(Error::AddressLookup {
            address: text.into(),
            problem: "the name is empty".into(),
        });
    }
    let address = memory_names::address_of(name);
    Ok(Addresses::new(vec![address]).over(TransportChoice::Memory))
}

/// A numeric address, or an error text if its network interface is not found.
type Literal = Result<SocketAddr, String>;

/// Parses a numeric address, such as `[fe80::1%eth0]:7471`.
fn literal(text: &str) -> Option<Literal> {
    if let Ok(address) = text.parse() {
        return Some(Ok(address));
    }
    let (host, port) = text.strip_prefix('[')?.split_once("]:")?;
    scoped(host, port.parse().ok()?)
}

/// Parses an IPv6 address with a scope ID, such as `fe80::1%eth0`.
fn scoped(host: &str, port: u16) -> Option<Literal> {
    let (ip, interface) = host.split_once('%')?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    let number = interface
        .parse()
        .or_else(|_| if_nametoindex(interface))
        .map_err(|errno| match errno {
            nix::Error::ENODEV => format!("there is no network interface {interface}"),
            errno => format!(
                "cannot look up the network interface {interface}: {}",
                errno.desc()
            ),
        });
    Some(number.map(|number| SocketAddrV6::new(ip, port, 0, number).into()))
}

/// Looks up `address`, which is `text` without the scheme. If the port is missing, the error states
/// the expected format. Errors quote `text`.
fn with_port(text: &str, address: &str) -> Result<Addresses, Error> {
    let port = address.rsplit_once(':').map(|(_, port)| port);
    let has_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let problem = if address.parse::<Ipv6Addr>().is_ok() {
        format!("it has no port; write [{address}]:port")
    } else if has_port {
        return look_up(text, literal(address), address);
    } else {
        "it has no port from 0 to 65535; write host:port".into()
    };
    Err(Error::AddressLookup {
        address: text.into(),
        problem,
    })
}

impl ToAddresses for str {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        let Some((scheme, address)) = self.split_once("://") else {
            return with_port(self, self);
        };
        let Some(transport) = TransportChoice::named(scheme) else {
            return Err(Error::AddressLookup {
                address: self.into(),
                problem: "the schemes are rdma://, tcp://, auto:// and memory://".into(),
            });
        };
        if transport == TransportChoice::Memory {
            return in_memory(self, address);
        }
        Ok(with_port(self, address)?.over(transport))
    }

    fn name(&self) -> Option<String> {
        let (scheme, address) = self.split_once("://").unwrap_or(("", self));
        if TransportChoice::named(scheme) == Some(TransportChoice::Memory) {
            return None;
        }
        // An address without a port is rejected without a query.
        let is_name = address.contains(':') && literal(address).is_none();
        is_name.then(|| self.into())
    }
}

impl ToAddresses for String {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        self.as_str().to_addresses()
    }

    fn name(&self) -> Option<String> {
        self.as_str().name()
    }
}

impl<T: ToAddresses + ?Sized> ToAddresses for &T {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        (**self).to_addresses()
    }

    fn name(&self) -> Option<String> {
        (**self).name()
    }
}

impl ToAddresses for Addresses {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        Ok(self.clone())
    }
}

impl ToAddresses for [SocketAddr] {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        look_up("[]", None, self)
    }
}

impl ToAddresses for Vec<SocketAddr> {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        self.as_slice().to_addresses()
    }
}

impl<const N: usize> ToAddresses for [SocketAddr; N] {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        self.as_slice().to_addresses()
    }
}

macro_rules! socket_addresses {
    ($($address:ty),*) => { $(
        impl ToAddresses for $address {
            fn to_addresses(&self) -> Result<Addresses, Error> {
                look_up(self, None, *self)
            }
        }
    )* };
}

socket_addresses!(SocketAddr, SocketAddrV4, SocketAddrV6);

macro_rules! hosts_with_ports {
    ($($host:ty),*) => { $(
        impl ToAddresses for ($host, u16) {
            fn to_addresses(&self) -> Result<Addresses, Error> {
                let (host, port) = self;
                let literal = scoped(&host.to_string(), *port);
                look_up(format_args!("{host}:{port}"), literal, self.clone())
            }

            fn name(&self) -> Option<String> {
                let (host, port) = self;
                let text = host.to_string();
                let is_name = text.parse::<IpAddr>().is_err() && scoped(&text, *port).is_none();
                is_name.then(|| format!("{host}:{port}"))
            }
        }
    )* };
}

hosts_with_ports!(&str, String, IpAddr, Ipv4Addr, Ipv6Addr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_quoted_once_in_errors() {
        for (error, text) in [
            ("no port".to_addresses(), "no port"),
            (String::from("no \"port\"").to_addresses(), "no \"port\""),
            (("a b", 7471).to_addresses(), "a b:7471"),
            ("http://a:1".to_addresses(), "http://a:1"),
            ("tcp://a b:1".to_addresses(), "tcp://a b:1"),
            ([].to_addresses(), "[]"),
            ("127.0.0.1".to_addresses(), "127.0.0.1"),
        ] {
            let error = error.unwrap_err().to_string();
            let begins = format!("cannot look up the address {text}: ");
            assert!(error.starts_with(&begins), "{error}");
        }
    }

    #[test]
    fn address_without_port_is_reported_with_format() {
        let no_port = "it has no port from 0 to 65535; write host:port";
        for (text, problem) in [
            ("127.0.0.1", no_port),
            ("tcp://127.0.0.1", no_port),
            ("host:", no_port),
            ("host:65536", no_port),
            ("host:http", no_port),
            ("[::1]", no_port),
            ("", no_port),
            ("fe80::1", "it has no port; write [fe80::1]:port"),
            ("rdma://::1", "it has no port; write [::1]:port"),
        ] {
            let error = text.to_addresses().unwrap_err().to_string();
            let expected = format!("cannot look up the address {text}: {problem}");
            assert_eq!(error, expected);
        }
        assert!("127.0.0.1:0".to_addresses().is_ok());
    }

    #[test]
    fn names_alone_are_looked_up() {
        for (name, text) in [
            ("host:1".name(), Some("host:1")),
            ("tcp://host:1".name(), Some("tcp://host:1")),
            (String::from("host:1").name(), Some("host:1")),
            (("host", 1).name(), Some("host:1")),
            ((String::from("host"), 1).name(), Some("host:1")),
            ("127.0.0.1:1".name(), None),
            ("tcp://[::1]:1".name(), None),
            (("::1", 1).name(), None),
            ((IpAddr::from([127, 0, 0, 1]), 1).name(), None),
            (SocketAddr::from(([127, 0, 0, 1], 1)).name(), None),
            ("[fe80::1%lo]:1".name(), None),
            ("[fe80::1%none]:1".name(), None),
            (("fe80::1%lo", 1).name(), None),
            ("no port".name(), None),
        ] {
            assert_eq!(name.as_deref(), text);
        }
    }

    #[test]
    fn name_in_memory_is_any_text() {
        for text in [
            "memory://a",
            "Memory://a",
            "memory://a b:c/d",
            "memory://127.0.0.1:1",
        ] {
            let addresses = text.to_addresses().unwrap();
            assert_eq!(addresses.transport(), Some(TransportChoice::Memory));
            assert_eq!(text.name(), None, "{text} must need no lookup");
            let address = Shown(addresses.as_slice()[0]).to_string();
            assert_eq!(address, text.replace("Memory", "memory"));
        }
        let error = "memory://".to_addresses().unwrap_err().to_string();
        let expected = "cannot look up the address memory://: the name is empty";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_text_may_say_the_transport() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7471));
        for (text, transport) in [
            ("127.0.0.1:7471", None),
            ("rdma://127.0.0.1:7471", Some(TransportChoice::Rdma)),
            ("tcp://127.0.0.1:7471", Some(TransportChoice::Tcp)),
            ("auto://127.0.0.1:7471", Some(TransportChoice::Auto)),
        ] {
            let addresses = text.to_addresses().unwrap();
            assert_eq!(addresses.as_slice(), [address]);
            assert_eq!(addresses.transport(), transport, "{text}");
        }
        assert_eq!([address].to_addresses().unwrap().as_slice(), [address]);
    }
}
