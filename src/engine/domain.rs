use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use super::{
    budget::Customer,
    landing::Landings,
    link::PollSide,
    rings::{Layout, Rings},
    send_memory::SendPool,
    shared_receives::SharedReceives,
};
use crate::{
    cm::CmId,
    config::Config,
    proto::Account,
    status::OsError,
    sync::lock,
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, Context, ProtectionDomain, QpInitAttr,
        TransportType,
    },
};

/// What the connections on one device share: the device itself. It lives as long as one of them does.
///
/// Each connection has a protection domain of its own, so that a peer which guesses or remembers a key reaches no other peer's memory. Those
/// that share receives share the domain as well: devices write a receive only to memory of its queue pair's domain.
#[derive(Debug)]
pub(super) struct Domain {
    context: Context,
    max_qp_wr: u32,
    max_cqe: u32,
    /// The longest one-sided operation in bytes.
    max_msg_sz: u32,
    max_srq_wr: u32,
    /// What connections receive into that share receives: one for each kind that is in use.
    shared: Mutex<Vec<Weak<SharedReceives>>>,
}

/// The domains of all devices in use.
#[derive(Debug, Default)]
pub(super) struct Domains {
    by_device: HashMap<u64, Weak<Domain>>,
}

impl Domains {
    /// The domain of a device, made when there is none.
    pub(super) fn get(&mut self, context: Context) -> Result<Arc<Domain>, OsError> {
        let device = context.id();
        if let Some(domain) = self.by_device.get(&device).and_then(Weak::upgrade) {
            return Ok(domain);
        }
        let attr = context.query_device()?;
        // All ports of a device move as much.
        let max_msg_sz = context.query_port(1)?.max_msg_sz;
        let domain = Arc::new(Domain {
            context,
            max_qp_wr: attr.max_qp_wr(),
            max_cqe: attr.max_cqe(),
            max_msg_sz,
            max_srq_wr: attr.max_srq_wr(),
            shared: Mutex::default(),
        });
        self.by_device.retain(|_, domain| domain.strong_count() > 0);
        self.by_device.insert(device, Arc::downgrade(&domain));
        Ok(domain)
    }
}

/// What a connection needs of its device, made before anything is sent, with all receives posted.
pub(super) struct Transport {
    pub(super) rings: Rings,
    pub(super) pd: ProtectionDomain,
    /// What it receives into, where that is shared. The least that the connection needs is reserved.
    pub(super) shared: Option<Arc<SharedReceives>>,
    /// Where large messages are read to.
    pub(super) landings: Arc<Landings>,
    /// Where messages are put that the peer is to read.
    pub(super) sending: Arc<SendPool>,
    pub(super) poll_side: PollSide,
    pub(super) channel: Arc<CompletionChannel>,
}

/// Why a [`Transport`] could not be made.
pub(super) enum TransportError {
    Os(OsError),
    /// The device offers less than the configuration asks for.
    Limit {
        field: &'static str,
        value: u64,
        limit: u64,
    },
    /// The shared receives do not suffice for another connection.
    SharedReceivesExhausted {
        total: u32,
        free: u32,
        needed: u32,
    },
}

impl From<OsError> for TransportError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl Domain {
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// What memory must allow into which this side reads from a peer.
    pub(super) fn reading(&self) -> AccessFlags {
        // On iWARP the peer's answer to a read is a write like any other, so the peer's device must be allowed to write there.
        if self.context.transport_type() == TransportType::IWARP {
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE
        } else {
            AccessFlags::LOCAL_WRITE
        }
    }

    pub(super) fn max_msg_sz(&self) -> u32 {
        self.max_msg_sz
    }

    /// Makes buffers, completion queue and queue pair for the connection of `id`.
    pub(super) fn transport(
        &self,
        id: &mut CmId,
        config: &Config,
        customer: Customer,
    ) -> Result<Transport, TransportError> {
        let layout = Layout::new(&config.params());
        let cap = layout.cap(config.max_inline);
        for (field, value, limit) in [
            ("receive_window", cap.max_recv_wr, self.max_qp_wr),
            (
                "shared_receive",
                config.shared_receive.unwrap_or(0),
                self.max_srq_wr,
            ),
            ("send_depth", cap.max_send_wr, self.max_qp_wr),
            (
                "receive_window + send_depth",
                layout.completions(),
                self.max_cqe,
            ),
        ] {
            if value > limit {
                return Err(TransportError::Limit {
                    field,
                    value: value.into(),
                    limit: limit.into(),
                });
            }
        }

        let shared = match config.shared_receive {
            Some(count) => Some(self.shared(count, layout.recv_size())?),
            None => None,
        };
        let pd = match &shared {
            Some(shared) => shared.pd.clone(),
            None => ProtectionDomain::new(&self.context)?,
        };
        let channel = Arc::new(CompletionChannel::new(&self.context)?);
        let cq = CompletionQueue::new(&self.context, layout.completions(), Some((&channel, 0)))?;
        let mut attr = QpInitAttr {
            srq: shared.as_deref().map(SharedReceives::queue),
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = match id.create_qp(&pd, &attr) {
            // Inline data is an optimisation, and some devices refuse the queue pair instead of granting less.
            Err(error) if error.errno == libc::EINVAL && cap.max_inline_data > 0 => {
                attr.cap.max_inline_data = 0;
                id.create_qp(&pd, &attr)?
            }
            result => result?,
        };
        cq.req_notify(false)?;
        let rings = Rings::new(qp, &pd, layout, shared.clone())?;
        // Last, so that nothing has to be given back when something fails.
        if let Some(shared) = &shared
            && !shared.account.open(config.receive_window)
        {
            return Err(TransportError::SharedReceivesExhausted {
                total: shared.count(),
                free: shared.account.free(),
                needed: Account::least(config.receive_window),
            });
        }
        let cache = config.registration_cache;
        Ok(Transport {
            rings,
            shared,
            landings: Landings::new(&pd, self.reading(), cache, customer),
            sending: SendPool::new(cache),
            pd,
            poll_side: PollSide::new(cq, Arc::clone(&channel)),
            channel,
        })
    }

    /// The receives of this kind, made when there are none.
    fn shared(&self, count: u32, size: usize) -> Result<Arc<SharedReceives>, OsError> {
        let mut all = lock(&self.shared);
        let of_this_kind = all
            .iter()
            .filter_map(Weak::upgrade)
            .find(|shared| shared.is(count, size));
        if let Some(shared) = of_this_kind {
            return Ok(shared);
        }
        let pd = ProtectionDomain::new(&self.context)?;
        let shared = Arc::new(SharedReceives::new(pd, count, size)?);
        all.retain(|shared| shared.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(shared)
    }
}
