use std::sync::Arc;

use super::{
    completion_queue::{CompletionEvents, CompletionQueue},
    device::Device,
    device_events::{Objects, next_cookie},
    domain::Domain,
    queue_pair::{QueuePair, SharedReceiveQueue},
};
use crate::{
    cm::CmId,
    config::Config,
    error::Error,
    proto::{Account, Params},
    status::OsError,
    transport::{
        budget::BudgetClient,
        memory::{self, Allocator, InboundPool},
        no_transport::NoTransport,
        queues::{
            self, Layout, PollSide, ReceiveShare, SharedReceives, TransportParts, WorkQueues,
        },
    },
    transport_choice::Transport,
    verbs::{self, CompletionChannel, ProtectionDomain, QpCap, QpInitAttr, SrqAttr},
};

/// Creates the buffers, the completion queue and the queue pair for the connection with this `id`
/// and `key`.
pub(super) fn create_transport(
    device: &Arc<Device>,
    id: &mut CmId,
    key: u64,
    config: &Config,
    budget_client: BudgetClient,
) -> Result<(TransportParts, Objects), NoTransport> {
    let params = config.params(Transport::Rdma);
    let layout = layout(device, &params);
    let cap = cap(&layout, config.rdma.max_inline);
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
        Some(count) => {
            let size = layout.size();
            let make = || shared_receives(device, config, count, size);
            Some(device.shared_pools().get(count, size, make)?)
        }
        None => None,
    };
    let domain = match &shared {
        Some(shared) => shared.domain().clone(),
        None => {
            let pd = ProtectionDomain::new(device.context())?;
            memory::Domain::Rdma(Domain::new(Arc::clone(device), pd, config))
        }
    };
    let memory::Domain::Rdma(of_device) = &domain else {
        unreachable!("the pools of an RDMA device use RDMA domains")
    };
    let channel = CompletionChannel::new(device.context())?;
    let cookie = next_cookie();
    let cq = verbs::CompletionQueue::on_vector(
        device.context(),
        layout.completions(),
        Some((&channel, cookie)),
        completion_vector(device, config)?,
    )?;
    let srq = shared.as_deref().map(|shared| {
        let queues::SharedReceiveQueue::Rdma(queue) = shared.queue() else {
            unreachable!("the pools of an RDMA device use RDMA queues")
        };
        queue
    });
    let attr = QpInitAttr {
        srq: srq.map(SharedReceiveQueue::verbs),
        ..QpInitAttr::rc(&cq, cap)
    };
    let pd = if config.rdma.thread_domain {
        let domains = &device.thread_domains;
        domains.of_queue_pair(device.context(), of_device.pd())
    } else {
        of_device.pd().clone()
    };
    let qp = create_qp(device, id, &pd, attr)?;
    cq.req_notify(false)?;
    let objects = Objects {
        qp_num: qp.qp_num(),
        cq: cookie,
        srq: srq.map(SharedReceiveQueue::cookie),
    };
    let keep = config.registration_cache;
    let budget_client = Arc::new(budget_client);
    let for_windows = layout.has_windows().then(|| Arc::clone(&budget_client));
    let inbound_pool = InboundPool::new(&domain, keep, budget_client);
    let qp = queues::QueuePair::Rdma(QueuePair::new(qp));
    let queues = WorkQueues::new(qp, &domain, layout, shared.clone(), inbound_pool)?;
    // The receives are reserved only after all other steps have succeeded, so no failed step has to
    // release them.
    if let Some(shared) = &shared
        && !shared.account.open(params.window)
    {
        return Err(NoTransport {
            error: OsError::new("rdma_create_qp", libc::ENOMEM),
            problem: Some(Error::SharedReceivesExhausted {
                total: shared.count(),
                free: shared.account.free(),
                needed: Account::min_receives(params.window),
            }),
        });
    }
    let parts = TransportParts {
        queues,
        share: shared.map(|shared| ReceiveShare::new(shared, key)),
        poll_side: PollSide::new(
            queues::CompletionQueue::Rdma(CompletionQueue::new(cq)),
            Some(queues::CompletionEvents::Rdma(CompletionEvents::new(
                channel,
            ))),
        ),
        allocator: Arc::new(Allocator::new(domain, keep, for_windows)),
    };
    Ok((parts, objects))
}

/// Returns the layout of a connection. The send queue has slots for the requests of memory windows
/// under two conditions: the windows of the device are usable, and the device permits queues of the
/// required depth.
fn layout(device: &Device, params: &Params) -> Layout {
    let layout = Layout::new(params);
    let with_windows = layout.with_windows();
    let fits = with_windows.send_depth() <= device.max_qp_wr
        && with_windows.completions() <= device.max_cqe;
    if fits && device.has_windows {
        with_windows
    } else {
        layout
    }
}

/// Returns the completion vector of a connection. The device signals the connection's completions
/// with the interrupt of this vector.
fn completion_vector(device: &Device, config: &Config) -> Result<u32, NoTransport> {
    let last = device.context().num_comp_vectors().saturating_sub(1);
    match config.rdma.completion_vector {
        None => Ok(device.context().next_comp_vector()),
        Some(vector) if vector <= last => Ok(vector),
        Some(vector) => Err(NoTransport::refused(
            "rdma.completion_vector",
            vector,
            format!("0 to {last} on this device"),
            OsError::new("ibv_create_cq", libc::EINVAL),
        )),
    }
}

/// Sizes of inline data, in bytes. If the device refuses the requested size, [`create_qp`] tries
/// these sizes in this order.
///
/// Devices with the drivers irdma and bnxt_re grant about 96 bytes, which is enough for a message
/// of 64 bytes with its header.
const INLINE_SIZES: [u32; 4] = [256, 128, 96, 64];

/// Creates a queue pair with the requested size of inline data, or with a smaller size. Some
/// devices refuse a queue pair with EINVAL if the requested size is too large. This function then
/// tries smaller sizes down to 0, because inline data is only an optimisation.
fn create_qp(
    device: &Device,
    id: &mut CmId,
    pd: &ProtectionDomain,
    mut attr: QpInitAttr<'_>,
) -> Result<verbs::QueuePair, OsError> {
    let wanted = attr.cap.max_inline_data;
    let mut smaller = INLINE_SIZES.iter().filter(|size| **size < wanted);
    loop {
        let size = attr.cap.max_inline_data;
        match id.create_qp(pd, &attr) {
            Err(error) if error.errno == libc::EINVAL && size > 0 => {
                attr.cap.max_inline_data = smaller.next().copied().unwrap_or(0);
            }
            Ok(qp) if size < wanted => {
                device.log_inline(wanted, size);
                return Ok(qp);
            }
            result => return result,
        }
    }
}

fn shared_receives(
    device: &Arc<Device>,
    config: &Config,
    count: u32,
    size: usize,
) -> Result<SharedReceives, OsError> {
    let pd = ProtectionDomain::new(device.context())?;
    let attr = SrqAttr {
        max_wr: count,
        ..SrqAttr::default()
    };
    let cookie = next_cookie();
    let queue = verbs::SharedReceiveQueue::new(&pd, &attr, cookie)?;
    let queue = queues::SharedReceiveQueue::Rdma(SharedReceiveQueue::new(queue, cookie));
    let domain = memory::Domain::Rdma(Domain::new(Arc::clone(device), pd, config));
    SharedReceives::new(domain, queue, count, size)
}

/// Returns the depths of the queues, and the limits of each work request.
fn cap(layout: &Layout, max_inline: u32) -> QpCap {
    QpCap {
        max_send_wr: layout.send_depth(),
        max_recv_wr: layout.recv_depth(),
        max_send_sge: 2,
        max_recv_sge: u32::from(!layout.is_shared()),
        max_inline_data: max_inline,
    }
}

/// Creates the error for a configuration that exceeds a limit of the device.
fn exceeds(field: &'static str, value: u32, limit: u32) -> NoTransport {
    NoTransport::refused(
        field,
        format!("too large (the queue needs {value} entries, including internal ones)"),
        format!("{limit} on this device"),
        OsError::new("rdma_create_qp", libc::EINVAL),
    )
}
