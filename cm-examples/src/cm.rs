//! Connection manager calls shared by several programs.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use rdmsg::{
    cm::{CmEvent, CmId, EventChannel, PortSpace},
    status::CmEventType,
};

use crate::Result;

/// The time limit for resolving an address or a route. The C programs use the same limit.
const RESOLVE: Duration = Duration::from_secs(2);

/// Resolves a host name or an IP address.
///
/// # Errors
///
/// Fails if the name cannot be resolved.
pub fn lookup(host: &str, port: u16) -> Result<SocketAddr> {
    if host.is_empty() {
        return Err("the address is empty: give a host name or an IP address".into());
    }
    let found = (host, port).to_socket_addrs();
    let mut addresses = found.map_err(|error| format!("cannot resolve {host}: {error}"))?;
    Ok(addresses
        .next()
        .ok_or_else(|| format!("cannot resolve {host}: the host has no address"))?)
}

/// Resolves a host name or an IP address. `format` is the value of a program's option for the
/// address format.
///
/// # Errors
///
/// Fails if the format is `gid`, which only the C programs support, or if the name cannot be
/// resolved.
pub fn lookup_as(format: &str, host: &str, port: u16) -> Result<SocketAddr> {
    if format == "gid" {
        return Err("GIDs as addresses (AF_IB) are not supported: give an IP address".into());
    }
    lookup(host, port)
}

/// Parses the number of a datagram port space, which is the value of a command line option.
///
/// # Errors
///
/// Fails if the number is unknown. The error lists the known numbers.
pub fn port_space(number: &str) -> Result<PortSpace, String> {
    let digits = number.strip_prefix("0x");
    match digits.map_or_else(|| number.parse(), |digits| u32::from_str_radix(digits, 16)) {
        Ok(0x111) => Ok(PortSpace::UDP),
        Ok(0x2) => Ok(PortSpace::IPOIB),
        _ => Err("the port space must be 0x111 for UDP or 0x2 for IPoIB".into()),
    }
}

/// Waits for the connection manager's next event, which must have the type `expected`.
///
/// # Errors
///
/// Fails if the event has another type or reports an error, or if no event arrives within
/// `timeout`.
pub fn step(events: &EventChannel, expected: CmEventType, timeout: Duration) -> Result<CmEvent> {
    let Some(event) = events.wait_event(timeout)? else {
        return Err(format!("{expected} did not arrive within {timeout:?}").into());
    };
    log::info!("received the event {}", event.event());
    match event.event() {
        got if got == expected && event.status() == 0 => Ok(event),
        CmEventType::REJECTED => Err(rejection_cause(&event).into()),
        got => Err(format!("{got} arrived instead of {expected}: {}", event.cm_status()).into()),
    }
}

/// Returns the reason for a REJECTED event.
#[must_use]
pub fn rejection_cause(event: &CmEvent) -> String {
    let reason = event.reject_reason();
    // The connection manager may pad the private data with zeros. If all bytes are zero, the peer's
    // program has sent no text.
    let silent = event.private_data().iter().all(|byte| *byte == 0);
    match reason.explanation().filter(|_| silent) {
        Some(explanation) => explanation.into(),
        None => format!("rejected by the peer: {reason}"),
    }
}

/// Returns an id with a resolved address and route.
///
/// # Errors
///
/// Fails if the address or the route cannot be resolved.
pub fn resolved(
    events: &EventChannel,
    ps: PortSpace,
    source: Option<SocketAddr>,
    address: SocketAddr,
) -> Result<CmId> {
    resolved_on(events, ps, source, address, None)
}

/// Returns an id with a resolved address, and with a route for the type of service `tos`.
///
/// # Errors
///
/// Fails if the address or the route cannot be resolved.
pub fn resolved_on(
    events: &EventChannel,
    ps: PortSpace,
    source: Option<SocketAddr>,
    address: SocketAddr,
    tos: Option<u8>,
) -> Result<CmId> {
    let mut id = CmId::new(events, ps, 0)?;
    id.resolve_addr(source, address, RESOLVE)?;
    step(events, CmEventType::ADDR_RESOLVED, 2 * RESOLVE)?;
    if let Some(tos) = tos {
        id.set_tos(tos)?;
    }
    id.resolve_route(RESOLVE)?;
    step(events, CmEventType::ROUTE_RESOLVED, 2 * RESOLVE)?;
    Ok(id)
}
