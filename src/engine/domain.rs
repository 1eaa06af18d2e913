use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use super::{
    buffer::Pool,
    link::PollSide,
    rings::{self, Layout, Rings},
};
use crate::{
    cm::CmId,
    config::Config,
    status::OsError,
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, Context, ProtectionDomain, QpInitAttr,
        QpType, TransportType,
    },
};

/// What the connections on one device share: the device itself. It lives as long as one of them does.
///
/// Each connection has a protection domain of its own, so that a peer which guesses or remembers a key reaches no other peer's memory.
#[derive(Debug)]
pub(super) struct Domain {
    context: Context,
    max_qp_wr: u32,
    max_cqe: u32,
    /// The longest one-sided operation in bytes.
    max_msg_sz: u32,
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
    /// Where large messages are read to, and where those are put that the peer is to read.
    pub(super) landing: Arc<Pool>,
    pub(super) lending: Arc<Pool>,
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
    ) -> Result<Transport, TransportError> {
        let layout = Layout::new(&config.params());
        let cap = layout.cap(config.max_inline);
        for (field, value, limit) in [
            ("receive_window", cap.max_recv_wr, self.max_qp_wr),
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

        let pd = ProtectionDomain::new(&self.context)?;
        let memory = rings::allocate(&pd, &layout)?;
        let channel = Arc::new(CompletionChannel::new(&self.context)?);
        let cq = CompletionQueue::new(&self.context, layout.completions(), Some((&channel, 0)))?;
        let mut attr = QpInitAttr {
            qp_type: QpType::RC,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap,
            sq_sig_all: false,
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
        let rings = Rings::new(qp, memory, layout)?;
        let pool = |access| Pool::new(&pd, access, config.registration_cache);
        Ok(Transport {
            rings,
            landing: pool(self.reading()),
            lending: pool(AccessFlags::REMOTE_READ),
            pd,
            poll_side: PollSide::new(cq, Arc::clone(&channel)),
            channel,
        })
    }
}
