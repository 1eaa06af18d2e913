use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use rdmsg::{Config, Connector, Endpoint};

use crate::{
    carrier::Carrier,
    service::{self, Request, Unserved},
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
    let asked = service::ask(&endpoint, request, timeout);
    let peer = endpoint.peer_addr();
    if let Err(Unserved::OtherProgram) = asked {
        bail!("a program other than `rdmsg serve` listens at {peer}");
    }
    asked.with_context(|| format!("cannot determine whether `rdmsg serve` listens at {peer}"))?;
    Ok(endpoint)
}
