//! One connection as the engine's thread keeps it: the `CmId`, which only this thread touches, and what goes with it.

use std::{net::SocketAddr, sync::Arc};

use crossbeam_channel::Receiver;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::{Engine, command::Reply};
use crate::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    config::Config,
    endpoint::Endpoint,
    error::Error,
    link::{Completion, Link},
    proto::{CloseReason, CmCall, CmOp, Statistics},
    status::OsError,
    transport::{
        Budget,
        rdma::{CompletionEvents, Device, Devices, Transport},
    },
    verbs::QpState,
};

/// A connection, with what only this thread may touch. Fields in the order in which they are to go.
pub(super) struct Entry {
    pub(super) link: Arc<Link>,
    /// The completion channel that epoll watches, while there is one.
    pub(super) watched: Option<Arc<CompletionEvents>>,
    /// Before the id: what holds a device list open is to go before the last id, with which librdmacm cleans up after itself.
    pub(super) device: Option<Arc<Device>>,
    pub(super) id: Option<CmId>,
    pub(super) config: Config,
    pub(super) role: Role,
    /// Who waits for the connection to be established, or to fail.
    pub(super) waiter: Option<Waiter>,
    /// The receiving end of the completions, until an endpoint takes it.
    pub(super) receiver: Option<Receiver<Completion>>,
    /// Why making the transport failed, in more detail than the state machine keeps.
    pub(super) problem: Option<Error>,
    pub(super) peer: SocketAddr,
}

/// Who waits for a connection, and keeps the engine alive meanwhile.
pub(super) struct Waiter {
    pub(super) engine: Engine,
    pub(super) reply: Reply,
}

/// Which side of the connection this is.
pub(super) enum Role {
    /// It connects.
    Active,
    /// It was asked for by a peer; until it is established it counts as half open.
    Passive(Option<HalfOpen>),
}

impl Role {
    /// What there is for its side.
    pub(super) fn choose<T>(&self, active: T, passive: T) -> T {
        match self {
            Self::Active => active,
            Self::Passive(_) => passive,
        }
    }
}

/// A listener's count of connections that are not established yet: there is a clone with each.
#[derive(Clone, Default)]
pub(super) struct HalfOpen(Arc<()>);

impl HalfOpen {
    /// How many there are beside the listener's own.
    pub(super) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl Entry {
    /// Does one thing that the state machine wants of the connection manager.
    pub(super) fn execute(
        &mut self,
        op: CmOp,
        channel: &EventChannel,
        devices: &mut Devices,
        epoll: &Epoll,
        budget: &Arc<Budget>,
    ) -> Result<(), OsError> {
        match op {
            // The caller's.
            CmOp::AwaitTurn => Ok(()),
            CmOp::CreateId => {
                let mut id = CmId::new(channel, PortSpace::TCP, self.link.key)?;
                set_ack_timeout(&mut id, &self.config);
                self.id = Some(id);
                Ok(())
            }
            CmOp::ResolveAddr { timeout } => {
                let peer = self.peer;
                self.id()?.resolve_addr(None, peer, timeout)
            }
            CmOp::CreateTransport => self.create_transport(devices, epoll, budget),
            CmOp::ResolveRoute { timeout } => self.id()?.resolve_route(timeout),
            CmOp::Connect { private_data } => {
                let param = self.conn_param(&private_data)?;
                self.id()?.connect(&param)
            }
            CmOp::Accept { private_data } => {
                let param = self.conn_param(&private_data)?;
                self.id()?.accept(&param)
            }
            CmOp::Reject { private_data } => self.id()?.reject(&private_data),
            CmOp::SetMinRnrTimer => match &self.link.core().rings {
                Some(rings) => rings.set_min_rnr_timer(),
                None => Ok(()),
            },
            CmOp::Disconnect => self.id()?.disconnect(),
            CmOp::Discard => {
                self.unwatch(epoll);
                self.link.uninstall();
                // And with it all events that it may still have had.
                self.id = None;
                Ok(())
            }
        }
    }

    /// The id, which is missing between two attempts.
    fn id(&mut self) -> Result<&mut CmId, OsError> {
        self.id
            .as_mut()
            .ok_or(OsError::new("rdma_create_id", libc::ENODEV))
    }

    fn conn_param(&self, private_data: &[u8]) -> Result<ConnParam, OsError> {
        Ok(ConnParam {
            private_data: private_data.try_into()?,
            retry_count: self.config.retry_count,
            ..ConnParam::default()
        })
    }

    fn create_transport(
        &mut self,
        devices: &mut Devices,
        epoll: &Epoll,
        budget: &Arc<Budget>,
    ) -> Result<(), OsError> {
        let Some(id) = self.id.as_mut() else {
            return Ok(());
        };
        let context = id
            .verbs()
            .ok_or(OsError::new("rdma_create_qp", libc::ENODEV))?;
        self.link.pollers.prepare()?;
        let device = devices.get(context)?;
        let customer = budget.customer(self.link.notices(), self.link.key);
        let made = Transport::new(&device, id, self.link.key, &self.config, customer);
        let transport = made.map_err(|no| {
            self.problem = no.problem;
            no.error
        })?;
        self.device = Some(device);
        let events = Arc::clone(transport.poll_side.events());
        self.link.install(transport);
        epoll
            .add(
                &*events,
                EpollEvent::new(EpollFlags::EPOLLIN, self.link.key),
            )
            .map_err(|errno| OsError::new("epoll_ctl", errno as i32))?;
        self.watched = Some(events);
        Ok(())
    }

    pub(super) fn set_interest(&self, epoll: &Epoll, flags: EpollFlags) {
        if let Some(channel) = &self.watched {
            let mut event = EpollEvent::new(flags, self.link.key);
            if let Err(errno) = epoll.modify(&**channel, &mut event) {
                log::error!("{}: epoll_ctl: {errno}", self.link);
            }
        }
    }

    pub(super) fn unwatch(&mut self, epoll: &Epoll) {
        if let Some(channel) = self.watched.take()
            && let Err(errno) = epoll.delete(&*channel)
        {
            log::error!("{}: epoll_ctl: {errno}", self.link);
        }
    }

    /// Whether a step of accepting failed because the peer has withdrawn its request: the
    /// connection manager's event of that may still be on its way.
    pub(super) fn is_withdrawn(&mut self, call: CmCall, error: OsError) -> bool {
        let accepting = matches!(call, CmCall::CreateTransport | CmCall::Accept);
        match (&self.role, &mut self.id, &self.problem) {
            (Role::Passive(_), Some(id), None) if accepting && error.errno == libc::EINVAL => {
                // The connection manager knows what a queue pair needs for as long as there is a
                // request.
                id.init_qp_attr(QpState::INIT).is_err()
            }
            (Role::Active | Role::Passive(_), _, _) => false,
        }
    }

    /// Hands the established connection to whoever waits for it. Nobody waiting means that nobody wants it any more.
    pub(super) fn report_established(&mut self) {
        if let Role::Passive(half_open) = &mut self.role {
            *half_open = None;
        }
        let (Some(waiter), Some(receiver)) = (self.waiter.take(), self.receiver.take()) else {
            return;
        };
        let local = self.id.as_ref().and_then(CmId::local_addr);
        log::info!("{}: established", self.link);
        let endpoint = Endpoint::new(Arc::clone(&self.link), receiver, waiter.engine, local);
        waiter.reply.send(Ok(endpoint));
    }

    /// Nobody will ask how the connection ended: the log says it where something was sent that may
    /// not have arrived.
    pub(super) fn tell_undelivered(&self, reason: &CloseReason) {
        let delivered = self.link.ended().is_some_and(|ended| ended.delivered);
        let Statistics {
            messages_sent,
            operations,
            ..
        } = self.link.statistics();
        if delivered || messages_sent + operations == 0 {
            return;
        }
        let link = &self.link;
        match reason {
            // Whoever aborts does not want it delivered.
            CloseReason::LocallyAborted => {}
            CloseReason::LocallyClosed => log::warn!(
                "{link}: given up, and what was sent may not have arrived: the peer did not confirm it within close_timeout ({:?})",
                self.config.close_timeout
            ),
            reason => {
                log::warn!("{link}: given up, and what was sent may not have arrived: {reason}")
            }
        }
    }
}

/// The ACK timeout is a wish: what the device makes of it is its own affair.
pub(super) fn set_ack_timeout(id: &mut CmId, config: &Config) {
    if let Some(ack_timeout) = config.ack_timeout
        && let Err(error) = id.set_ack_timeout(ack_timeout)
    {
        log::debug!("engine: ack_timeout {ack_timeout}: {error}");
    }
}
