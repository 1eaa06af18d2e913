use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

use crossbeam_channel::bounded;

use crate::{
    Config, Endpoint, Engine, Error,
    engine::{Command, Reply, wait_for_reply},
    proto::{REPLY_DATA_MAX, REQUEST_DATA_MAX},
};

/// Makes connections that are not all default.
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let mut config = rdmsg::Config::default();
/// config.retry_refused = true;
/// let connector = rdmsg::Connector::new().config(config).private_data(b"user 7")?;
/// let endpoint = connector.connect("10.8.0.1:7471")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Connector {
    pub(crate) config: Config,
    private_data: Vec<u8>,
    engine: Option<Engine>,
}

impl Connector {
    /// The longest private data in bytes that fits a connect request beside what this crate needs
    /// itself.
    pub const PRIVATE_DATA_MAX: usize = REQUEST_DATA_MAX;

    /// Default configuration, no private data, the shared engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How the connection is to behave.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Bytes for the listener's program, which sees them before it accepts:
    /// [`Request::private_data`](crate::Request::private_data).
    ///
    /// # Errors
    ///
    /// [`Error::PrivateDataTooLong`] above [`Connector::PRIVATE_DATA_MAX`] bytes.
    pub fn private_data(mut self, data: &[u8]) -> Result<Self, Error> {
        check_private_data(data, REQUEST_DATA_MAX, "a connect request")?;
        self.private_data = data.to_vec();
        Ok(self)
    }

    /// The engine that is to serve the connection, instead of the shared one.
    #[must_use]
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Connects, trying the addresses that a name stands for in turn.
    ///
    /// [`connect_timeout`](Config::connect_timeout) is for all of them: each has its share of the
    /// time that those before it left. The call returns within it, or a moment later, however much
    /// this host has to do. Only the lookup of a name takes as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`], and [`Error::InvalidConfig`]. Of several addresses that fail, the
    /// last one's error.
    pub fn connect(&self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Endpoint, Error> {
        self.config.check()?;
        let engine = match &self.engine {
            Some(engine) => engine.clone(),
            None => Engine::shared()?,
        };
        let mut result = Err(Error::AddressLookup {
            address: written(&address),
            problem: "no address behind this name".into(),
        });
        let deadline = Instant::now() + self.config.connect_timeout;
        let addresses = resolve(&address)?;
        for (at, address) in addresses.iter().enumerate() {
            let now = Instant::now();
            let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(now) / left;
            if at > 0 && share.is_zero() {
                break;
            }
            result = self.connect_one(*address, now + share, &engine);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn connect_one(
        &self,
        address: SocketAddr,
        deadline: Instant,
        engine: &Engine,
    ) -> Result<Endpoint, Error> {
        let (reply, result) = bounded(1);
        engine.send(Command::Connect {
            address,
            config: self.config.clone(),
            data: self.private_data.clone(),
            deadline,
            reply: Reply::Caller(reply),
        })?;
        let established = wait_for_reply(&result, address, deadline)?;
        Ok(Endpoint::new(established, engine.clone()))
    }
}

/// Connecting.
impl Endpoint {
    /// Connects to a listener of this crate, with the default [`Config`](crate::Config), on the
    /// [shared engine](Engine::shared).
    ///
    /// Addresses that a name stands for are tried in turn. For everything else there is
    /// [`Connector`].
    ///
    /// # Errors
    ///
    /// [`Error::AddressLookup`] for an unknown name, [`Error::Connect`] with the reason where no
    /// connection came about within the default
    /// [`connect_timeout`](crate::Config::connect_timeout), [`Error::NoRdma`] where this machine
    /// has no connection manager.
    pub fn connect(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, Error> {
        Connector::new().connect(address)
    }

    /// As [`Endpoint::connect`], within `timeout` instead of the default.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`].
    pub fn connect_timeout(
        address: impl ToSocketAddrs + fmt::Debug,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let mut connector = Connector::new();
        connector.config.connect_timeout = timeout;
        connector.connect(address)
    }
}

/// The addresses that `address` stands for.
pub(crate) fn resolve(
    address: &(impl ToSocketAddrs + fmt::Debug),
) -> Result<Vec<SocketAddr>, Error> {
    let addresses = address
        .to_socket_addrs()
        .map_err(|error| Error::AddressLookup {
            address: written(address),
            problem: error.to_string(),
        })?;
    Ok(addresses.collect())
}

/// An address as a person writes it, for errors: without the quotes and parentheses of its `Debug`.
pub(crate) fn written(address: &impl fmt::Debug) -> String {
    let text = format!("{address:?}");
    // A pair of name and port.
    let text = text.trim_matches(['(', ')']).replace("\", ", ":");
    let text = text.strip_prefix('"').unwrap_or(&text);
    let text = text.strip_suffix('"').unwrap_or(text);
    text.replace("\\\"", "\"")
}

/// Refuses private data that does not fit.
pub(crate) fn check_private_data(
    data: &[u8],
    limit: usize,
    place: &'static str,
) -> Result<(), Error> {
    if data.len() > limit {
        return Err(Error::PrivateDataTooLong {
            len: data.len(),
            limit,
            place,
        });
    }
    Ok(())
}

const _: () = assert!(REQUEST_DATA_MAX <= REPLY_DATA_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_quotes_of_ours_in_an_error() {
        for (error, text) in [
            (resolve(&"no port"), "no port"),
            (resolve(&String::from("no \"port\"")), "no \"port\""),
            (resolve(&("a b", 7471)), "a b:7471"),
        ] {
            let error = error.unwrap_err().to_string();
            let begins = format!("cannot look up the address {text}: ");
            assert!(error.starts_with(&begins), "{error}");
        }
    }
}
