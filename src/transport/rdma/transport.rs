use std::sync::Arc;

use super::{
    device::Device,
    inbound_pool::InboundPool,
    layout::Layout,
    memory::Memory,
    poll_side::{CompletionEvents, PollSide},
    share::Share,
    shared_receives::SharedReceives,
    work_queues::WorkQueues,
};
use crate::{
    cm::CmId,
    config::Config,
    error::Error,
    proto::Account,
    status::OsError,
    transport::budget::Customer,
    verbs::{CompletionChannel, CompletionQueue, ProtectionDomain, QpInitAttr},
};

/// What a connection has of its device, made before anything is sent, with all receives posted. The
/// parts are for different locks: a thread that polls holds up none that asks for memory.
#[derive(Debug)]
pub(crate) struct Transport {
    /// Where work is posted.
    pub(crate) queues: WorkQueues,
    /// Where receives are shared: what the connection has of them. The least that it needs is
    /// reserved.
    pub(crate) share: Option<Share>,
    /// Where completions are polled.
    pub(crate) poll_side: PollSide,
    /// Where memory for the application is made.
    pub(crate) memory: Arc<Memory>,
}

/// Why a [`Transport`] could not be made: the error for the state machine, and what there is to say
/// to the application beyond it.
#[derive(Debug)]
pub(crate) struct NoTransport {
    pub(crate) error: OsError,
    pub(crate) problem: Option<Error>,
}

impl From<OsError> for NoTransport {
    fn from(error: OsError) -> Self {
        Self {
            error,
            problem: None,
        }
    }
}

impl Transport {
    /// Makes buffers, completion queue and queue pair for the connection of `id`, which has this
    /// `key`.
    pub(crate) fn new(
        device: &Arc<Device>,
        id: &mut CmId,
        key: u64,
        config: &Config,
        customer: Customer,
    ) -> Result<Self, NoTransport> {
        let layout = Layout::new(&config.params());
        let cap = layout.cap(config.max_inline);
        for (field, value, limit) in [
            ("receive_window", cap.max_recv_wr, device.max_qp_wr),
            (
                "shared_receive",
                config.shared_receive.unwrap_or(0),
                device.max_srq_wr,
            ),
            ("send_depth", cap.max_send_wr, device.max_qp_wr),
            (
                "receive_window + send_depth",
                layout.completions(),
                device.max_cqe,
            ),
        ] {
            if value > limit {
                return Err(exceeds(field, value, limit));
            }
        }

        let shared = match config.shared_receive {
            Some(count) => Some(device.shared(count, layout.recv_size())?),
            None => None,
        };
        let pd = match &shared {
            Some(shared) => shared.pd.clone(),
            None => ProtectionDomain::new(device.context())?,
        };
        let events = CompletionEvents::new(CompletionChannel::new(device.context())?);
        let channel = Some((events.channel(), 0));
        let cq = CompletionQueue::new(device.context(), layout.completions(), channel)?;
        let mut attr = QpInitAttr {
            srq: shared.as_deref().map(SharedReceives::queue),
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = match id.create_qp(&pd, &attr) {
            // Inline data is an optimisation, and some devices refuse the queue pair instead of
            // granting less.
            Err(error) if error.errno == libc::EINVAL && cap.max_inline_data > 0 => {
                attr.cap.max_inline_data = 0;
                id.create_qp(&pd, &attr)?
            }
            result => result?,
        };
        cq.req_notify(false)?;
        let keep = config.registration_cache;
        let inbound_pool = InboundPool::new(&pd, device.read_target_access(), keep, customer);
        let queues = WorkQueues::new(qp, &pd, layout, shared.clone(), inbound_pool)?;
        // Last, so that nothing has to be given back when something fails.
        if let Some(shared) = &shared
            && !shared.account.open(config.receive_window)
        {
            return Err(NoTransport {
                error: OsError::new("rdma_create_qp", libc::ENOMEM),
                problem: Some(Error::SharedReceivesExhausted {
                    total: shared.count(),
                    free: shared.account.free(),
                    needed: Account::least(config.receive_window),
                }),
            });
        }
        Ok(Self {
            queues,
            share: shared.map(|shared| Share::new(shared, key)),
            poll_side: PollSide::new(cq, events),
            memory: Arc::new(Memory::new(Arc::clone(device), pd, keep)),
        })
    }
}

/// The device offers less than the configuration asks for.
fn exceeds(field: &'static str, value: u32, limit: u32) -> NoTransport {
    NoTransport {
        error: OsError::new("rdma_create_qp", libc::EINVAL),
        problem: Some(Error::InvalidConfig {
            field,
            value: format!("too much for the device ({value} with what comes on top)"),
            allowed: format!("{limit} on this device"),
        }),
    }
}
