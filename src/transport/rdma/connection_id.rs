use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{
    connection_manager::{ConnectRequest, ConnectionManager},
    create_transport::create_transport,
    device::Device,
    link_local::with_interface,
};
use crate::{
    cm::{CmId, ConnParam},
    config::Config,
    error::Error,
    status::OsError,
    transport::{budget::Customer, queues::TransportParts},
    verbs::QpState,
};

/// What one connection is established and taken down with: its id of the connection manager, which
/// only the engine's thread touches.
///
/// One that a peer asked for begins with an id; one that connects makes its id itself, anew for
/// each attempt.
#[derive(Debug, Default)]
pub(crate) struct ConnectionId {
    /// Before the id: librdmacm closes devices that were removed when its last id is destroyed, and
    /// cannot while this crate holds one open.
    device: Option<Arc<Device>>,
    id: Option<CmId>,
    /// Why making the transport failed, in more detail than the state machine keeps.
    problem: Option<Error>,
}

impl ConnectionId {
    /// For a connection that is to connect through this manager.
    pub(crate) fn new(_: &ConnectionManager) -> Self {
        Self::default()
    }

    /// Takes a peer's request on, as the connection with this key.
    pub(crate) fn of_request(request: ConnectRequest, key: u64) -> Self {
        Self {
            id: Some(request.into_id(key)),
            ..Self::default()
        }
    }

    /// Makes the id of the connection with this key.
    pub(crate) fn create_id(
        &mut self,
        manager: &ConnectionManager,
        key: u64,
    ) -> Result<(), OsError> {
        self.id = Some(manager.id(key)?);
        Ok(())
    }

    /// Asks the device for this ACK timeout: what it makes of that is its own affair.
    pub(crate) fn set_ack_timeout(&mut self, config: &Config) {
        if let (Some(ack_timeout), Some(id)) = (config.rdma.ack_timeout, &mut self.id)
            && let Err(error) = id.set_ack_timeout(ack_timeout)
        {
            debug!("engine: ack_timeout {ack_timeout}: {error}");
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
        let param = conn_param(private_data, config)?;
        self.id()?.connect(&param)
    }

    pub(crate) fn accept(&mut self, private_data: &[u8], config: &Config) -> Result<(), OsError> {
        let param = conn_param(private_data, config)?;
        self.id()?.accept(&param)
    }

    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        self.id()?.reject(private_data)
    }

    pub(crate) fn disconnect(&mut self) -> Result<(), OsError> {
        self.id()?.disconnect()
    }

    /// Makes the transport on the device to which the id is bound. With an error that says less
    /// than there is to say, the [problem](Self::take_problem) says the rest.
    pub(crate) fn create_transport(
        &mut self,
        manager: &mut ConnectionManager,
        key: u64,
        config: &Config,
        customer: Customer,
    ) -> Result<TransportParts, OsError> {
        let id = self.id()?;
        let context = id
            .device()?
            .ok_or(OsError::new("rdma_create_qp", libc::ENODEV))?;
        let device = manager.devices.get(context)?;
        match create_transport(&device, id, key, config, customer) {
            Ok(transport) => {
                self.device = Some(device);
                Ok(transport)
            }
            Err(no) => {
                self.problem = no.problem;
                Err(no.error)
            }
        }
    }

    /// Destroys the id, and with it all events that it may still have had.
    pub(crate) fn discard(&mut self) {
        self.id = None;
    }

    /// This side's address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let local = self.id.as_ref()?.local_addr()?;
        Some(with_interface(local, Some(local)))
    }

    /// Why making the transport failed, if it did.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        self.problem.take()
    }

    /// Whether a step of accepting failed with this error because the peer has withdrawn its
    /// request: the connection manager's event of that may still come.
    pub(crate) fn is_withdrawn(&mut self, error: OsError) -> bool {
        match (&mut self.id, &self.problem) {
            // The connection manager knows what a queue pair needs for as long as there is a
            // request.
            (Some(id), None) if error.errno == libc::EINVAL => {
                id.init_qp_attr(QpState::INIT).is_err()
            }
            (_, _) => false,
        }
    }

    /// The id, which is missing between two attempts.
    fn id(&mut self) -> Result<&mut CmId, OsError> {
        self.id
            .as_mut()
            .ok_or(OsError::new("rdma_create_id", libc::ENODEV))
    }
}

fn conn_param(private_data: &[u8], config: &Config) -> Result<ConnParam, OsError> {
    Ok(ConnParam {
        private_data: private_data.try_into()?,
        retry_count: config.rdma.retry_count,
        ..ConnParam::default()
    })
}
