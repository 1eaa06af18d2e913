use std::{
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use nix::ifaddrs::getifaddrs;

use super::{
    connection_manager::{ConnectRequest, ConnectionManager},
    create_transport::create_transport,
    device::Device,
    device_events::Objects,
};
use crate::{
    cm::{CmId, ConnParam},
    config::Config,
    error::Error,
    proto::{READS, ReadDepth},
    status::OsError,
    transport::{
        budget::BudgetClient,
        connection_id::source,
        connection_manager::{DeviceEvent, Effect},
        no_transport::NoTransport,
        queues::TransportParts,
    },
    transport_choice::Transport,
    verbs::QpState,
};

/// The context of an id that no connection uses. No connection or listener has this key.
const NO_KEY: u64 = u64::MAX;

/// The connection manager's id of one connection. Only the engine's thread uses it.
///
/// An incoming connection is created with its id. An outgoing connection creates a new id for each
/// attempt.
#[derive(Debug, Default)]
pub(crate) struct ConnectionId {
    /// The device. Dropped before `id`, because librdmacm closes a removed device when the last id
    /// on the device is destroyed. librdmacm cannot close a device that this crate still holds
    /// open.
    device: Option<Arc<Device>>,
    id: Option<CmId>,
    /// The device objects of the latest transport. Events of the device refer to these objects.
    objects: Option<Objects>,
    /// The maximum number of concurrent READs in each direction, as offered in the peer's request.
    /// `None` for an outgoing connection.
    offered: Option<ReadDepth>,
    /// The detailed error of a failed call, for the application. The state machine gets only an
    /// `OsError`.
    problem: Option<Error>,
}

impl ConnectionId {
    /// Creates the object for an outgoing connection.
    pub(crate) fn new(_: &ConnectionManager) -> Self {
        Self::default()
    }

    /// Creates the object for an incoming connection from the peer's request. `key` becomes the key
    /// of the connection.
    pub(crate) fn of_request(request: ConnectRequest, key: u64) -> Self {
        Self {
            offered: Some(request.reads()),
            id: Some(request.into_id(key)),
            ..Self::default()
        }
    }

    /// Creates the id for an outgoing connection with this `key`. Applies the source address and
    /// the traffic class if they are configured.
    pub(crate) fn create_id(
        &mut self,
        manager: &ConnectionManager,
        key: u64,
        peer: SocketAddr,
        config: &Config,
    ) -> Result<(), OsError> {
        let id = create_id(manager, key, peer, config);
        self.id = Some(id.map_err(|no| no.store(&mut self.problem))?);
        Ok(())
    }

    /// Requests the configured ACK timeout from the device, which may ignore the request.
    pub(crate) fn set_ack_timeout(&mut self, key: u64, config: &Config) {
        if let (Some(ack_timeout), Some(id)) = (config.rdma.ack_timeout, &mut self.id)
            && let Err(error) = id.set_ack_timeout(ack_timeout)
        {
            debug!(
                Connection,
                "conn {key}: cannot set rdma.ack_timeout to {ack_timeout}, so the connection \
                 manager chooses the timeout: {error}"
            );
        }
    }

    pub(crate) fn resolve_addr(
        &mut self,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), OsError> {
        self.id()?.resolve_addr(None, peer, timeout)
    }

    pub(crate) fn resolve_route(&mut self, timeout: Duration) -> Result<(), OsError> {
        self.id()?.resolve_route(timeout)
    }

    pub(crate) fn connect(&mut self, private_data: &[u8], config: &Config) -> Result<(), OsError> {
        let param = self.conn_param(private_data, config)?;
        self.id()?.connect(&param)
    }

    pub(crate) fn accept(&mut self, private_data: &[u8], config: &Config) -> Result<(), OsError> {
        let param = self.conn_param(private_data, config)?;
        self.id()?.accept(&param)
    }

    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        self.id()?.reject(private_data)
    }

    pub(crate) fn disconnect(&mut self) -> Result<(), OsError> {
        self.id()?.disconnect()
    }

    /// Creates the transport on the device to which the id is bound. If an [`OsError`] cannot
    /// describe a failure completely, [`take_problem`](Self::take_problem) returns the complete
    /// error.
    pub(crate) fn create_transport(
        &mut self,
        manager: &mut ConnectionManager,
        key: u64,
        config: &Config,
        budget_client: BudgetClient,
    ) -> Result<TransportParts, OsError> {
        let id = self.id()?;
        let context = id
            .device()?
            .ok_or(OsError::new("rdma_create_qp", libc::ENODEV))?;
        let device = manager.devices.get(context)?;
        let (transport, objects) = create_transport(&device, id, key, config, budget_client)
            .map_err(|no| no.store(&mut self.problem))?;
        self.device = Some(device);
        self.objects = Some(objects);
        Ok(transport)
    }

    /// Returns the id, if there is one. Dropping it destroys the id and its unread events.
    pub(crate) fn discard(&mut self) -> Option<CmId> {
        self.objects = None;
        self.device = None;
        let mut id = self.id.take()?;
        // The next id has the same key. Events of this id must not be mistaken for its events.
        id.set_context(NO_KEY);
        Some(id)
    }

    /// Returns this side's address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let local = self.id.as_ref()?.local_addr()?;
        Some(with_interface(local, Some(local)))
    }

    /// Returns whether the connection uses the object or port to which `event` applies.
    pub(crate) fn is_affected_by(&self, event: &DeviceEvent) -> bool {
        let (Some(device), Some(id), Some(objects)) = (&self.device, &self.id, &self.objects)
        else {
            return false;
        };
        device.context().id() == event.device
            && match event.effect {
                Effect::Suspect { port } | Effect::Trust { port } => id.port_num() == port,
                Effect::End(object, _) => objects.have(object),
                Effect::Addresses | Effect::Nothing => false,
            }
    }

    /// Takes the detailed error of a failed call, if there is one.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        self.problem.take()
    }

    /// Returns true if an accept call failed with `error` because the peer has withdrawn its
    /// request. The event that reports the withdrawal may arrive later.
    pub(crate) fn is_withdrawn(&mut self, error: OsError) -> bool {
        match (&mut self.id, &self.problem) {
            // The connection manager returns the attributes of a queue pair only while the request
            // exists. So this call fails if the request was withdrawn.
            (Some(id), None) if error.errno == libc::EINVAL => {
                id.init_qp_attr(QpState::INIT).is_err()
            }
            (_, _) => false,
        }
    }

    /// Returns the id. Between two attempts there is no id, so this call returns an error.
    fn id(&mut self) -> Result<&mut CmId, OsError> {
        self.id
            .as_mut()
            .ok_or(OsError::new("rdma_create_id", libc::ENODEV))
    }

    /// Returns the parameters for connecting or accepting. Fails if the transport was not created.
    fn conn_param(&self, private_data: &[u8], config: &Config) -> Result<ConnParam, OsError> {
        let device = self.device.as_ref();
        let device = device.ok_or(OsError::new("rdma_create_qp", libc::ENODEV))?;
        let reads = agreed_reads(config, device.most_reads(), self.offered);
        Ok(ConnParam {
            private_data: private_data.try_into()?,
            responder_resources: reads.incoming,
            initiator_depth: reads.outgoing,
            retry_count: config.rdma.retry_count,
            ..ConnParam::default()
        })
    }
}

fn create_id(
    manager: &ConnectionManager,
    key: u64,
    peer: SocketAddr,
    config: &Config,
) -> Result<CmId, NoTransport> {
    let mut id = manager.id(key)?;
    if let Some(source) = source(config, peer)? {
        let without = |error| NoTransport::without_source(source, error);
        id.bind_addr(source).map_err(without)?;
        // The kernel can bind to the loopback interface without assigning a device.
        if !source.ip().is_unspecified() && !id.has_device() {
            return Err(without(OsError::new("rdma_bind_addr", libc::ENODEV)));
        }
    }
    if let Some(class) = config.traffic_class {
        id.set_tos(class)
            .map_err(|error| NoTransport::without_traffic_class(class, error))?;
    }
    Ok(id)
}

/// Returns the maximum number of concurrent READs and atomic operations of a connection in each
/// direction. This side has up to [`READS`] operations in flight for large messages, and up to
/// `send_depth` operations for the application. An outgoing connection expects the same number of
/// operations from its peer. `most` contains the limits of the device, and `offered` contains the
/// limits in the peer's request.
fn agreed_reads(config: &Config, most: ReadDepth, offered: Option<ReadDepth>) -> ReadDepth {
    let send_depth = config.sizes(Transport::Rdma).send_depth;
    let wanted = u8::try_from(READS + u32::from(send_depth)).unwrap_or(u8::MAX);
    let offered = offered.unwrap_or(ReadDepth {
        outgoing: u8::MAX,
        incoming: wanted,
    });
    ReadDepth {
        outgoing: wanted.min(most.outgoing).min(offered.outgoing),
        incoming: offered.incoming.min(most.incoming),
    }
}

/// Adds the network interface (scope ID) to `address` if it is link-local, because the connection
/// manager reports addresses without the interface. `address` belongs to this side or to the peer.
/// `local` is this side's address.
pub(super) fn with_interface(address: SocketAddr, local: Option<SocketAddr>) -> SocketAddr {
    match (address, local) {
        (SocketAddr::V6(mut v6), Some(SocketAddr::V6(local)))
            if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 =>
        {
            let known = (local.scope_id() != 0).then(|| local.scope_id());
            let interface = known.or_else(|| interface_of(*local.ip()));
            v6.set_scope_id(interface.unwrap_or(0));
            v6.into()
        }
        _ => address,
    }
}

/// Returns the index of the network interface with this link-local address.
fn interface_of(address: Ipv6Addr) -> Option<u32> {
    let mut all = getifaddrs().ok()?;
    all.find_map(|interface| {
        let found = interface.address?;
        let found = found.as_sockaddr_in6()?;
        (found.ip() == address).then(|| found.scope_id())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_the_needed_ones_within_all_limits() {
        let depth = |outgoing, incoming| ReadDepth { outgoing, incoming };
        let of = |send_depth| Config::default().with(|config| config.send_depth = Some(send_depth));
        let most = depth(100, 90);
        for (send_depth, offered, agreed) in [
            (16, None, depth(20, 20)),
            (1, None, depth(5, 5)),
            (8192, None, depth(100, 90)),
            (16, Some(depth(20, 20)), depth(20, 20)),
            (16, Some(depth(3, 1)), depth(3, 1)),
            (16, Some(depth(255, 255)), depth(20, 90)),
        ] {
            assert_eq!(agreed_reads(&of(send_depth), most, offered), agreed);
        }
    }

    #[test]
    fn link_local_peer_is_on_the_interface_of_this_side() {
        let local: SocketAddr = "[fe80::1%3]:1".parse().unwrap();
        for (peer, expected) in [
            ("[fe80::2]:7471", "[fe80::2%3]:7471"),
            ("[fe80::2%5]:7471", "[fe80::2%5]:7471"),
            ("[fd08::2]:7471", "[fd08::2]:7471"),
            ("10.8.0.1:7471", "10.8.0.1:7471"),
        ] {
            let address = with_interface(peer.parse().unwrap(), Some(local));
            assert_eq!(address, expected.parse().unwrap());
        }
    }
}
