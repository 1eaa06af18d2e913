use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use rdmsg::{Config, Connector, Endpoint};

use crate::{
    carrier::Carrier,
    service::{self, Request},
};

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
    service::ask(&endpoint, request, timeout).with_context(|| {
        format!(
            "cannot determine whether `rdmsg serve` listens at {}",
            endpoint.peer_addr()
        )
    })?;
    Ok(endpoint)
}
