use std::sync::Arc;

use super::{
    completion_queue::{CompletionEvents, CompletionQueue},
    connection_id::Carrier,
    memory_region::Domain,
    queue_pair::{QueuePair, SharedReceiveQueue},
    receive_queue::ReceiveQueue,
    stream::Stream,
};
use crate::{
    config::Config,
    error::Error,
    proto::Account,
    status::OsError,
    transport::{
        budget::BudgetClient,
        memory::{self, Allocator, InboundPool},
        no_transport::NoTransport,
        queues::{
            self, Layout, PollSide, ReceiveShare, SharedPools, SharedReceives, TransportParts,
            WorkQueues,
        },
    },
    transport_choice::Transport,
};

/// Creates the buffers and queues for the connection with this `key` on its nonblocking socket.
pub(super) fn create_transport(
    carrier: &mut Carrier,
    shared_pools: &SharedPools,
    key: u64,
    config: &Config,
    budget_client: BudgetClient,
) -> Result<TransportParts, NoTransport> {
    let params = config.params(Transport::Tcp);
    let layout = Layout::new(&params).in_pieces();
    let shared = match config.shared_receive {
        Some(count) => {
            let size = layout.size();
            Some(shared_pools.get(count, size, || shared_receives(count, size))?)
        }
        None => None,
    };
    let receives = match shared.as_deref().map(SharedReceives::queue) {
        Some(queues::SharedReceiveQueue::Tcp(queue)) => Arc::clone(queue.queue()),
        _ => Arc::<ReceiveQueue>::default(),
    };
    let own_keys = Domain::default();
    let stream = carrier.open(|socket| {
        let (keys, own) = (own_keys.clone(), shared.is_none());
        Stream::new(socket, keys, receives, own)
    })?;
    let domain = memory::Domain::Tcp(own_keys);
    let keep = config.registration_cache;
    let inbound_pool = InboundPool::new(&domain, keep, Arc::new(budget_client));
    let qp = queues::QueuePair::Tcp(QueuePair::new(Arc::clone(stream)));
    let queues = WorkQueues::new(qp, &domain, layout, shared.clone(), inbound_pool)?;
    // The receives are reserved only after all other steps have succeeded, so no failed step has to
    // release them.
    if let Some(shared) = &shared
        && !shared.account.open(params.window)
    {
        return Err(NoTransport {
            error: OsError::new("mmap", libc::ENOMEM),
            problem: Some(Error::SharedReceivesExhausted {
                total: shared.count(),
                free: shared.account.free(),
                needed: Account::min_receives(params.window),
            }),
        });
    }
    let completions = CompletionQueue::new(Arc::clone(stream), layout.completions());
    Ok(TransportParts {
        queues,
        share: shared.map(|shared| ReceiveShare::new(shared, key)),
        poll_side: PollSide::new(
            queues::CompletionQueue::Tcp(completions),
            Some(queues::CompletionEvents::Tcp(CompletionEvents::new(
                Arc::clone(stream),
            ))),
        ),
        allocator: Arc::new(Allocator::new(domain, keep, None)),
    })
}

fn shared_receives(count: u32, size: usize) -> Result<SharedReceives, OsError> {
    let queue = queues::SharedReceiveQueue::Tcp(SharedReceiveQueue::default());
    let domain = memory::Domain::Tcp(Domain::default());
    SharedReceives::new(domain, queue, count, size)
}
