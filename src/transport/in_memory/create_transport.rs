use std::sync::Arc;

use super::{
    completion_queue::CompletionQueue,
    connection_manager::ConnectionManager,
    queue_pair::QueuePair,
    wire::{End, Side, Wire},
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
            self, Layout, PollSide, ReceiveShare, SharedReceives, TransportParts, WorkQueues,
        },
        tcp::{Domain, ReceiveQueue, SharedReceiveQueue},
    },
    transport_choice::Transport,
};

/// Creates the buffers and queues for one side of a connection. `key` is the key of this side's
/// connection in the engine.
pub(super) fn create_transport(
    (wire, side): (&Arc<Wire>, Side),
    manager: &ConnectionManager,
    key: u64,
    config: &Config,
    budget_client: BudgetClient,
) -> Result<TransportParts, NoTransport> {
    let params = config.params(Transport::Memory);
    let layout = Layout::new(&params).in_pieces();
    let shared = match config.shared_receive {
        Some(count) => {
            let size = layout.size();
            let pools = manager.shared_pools();
            Some(pools.get(count, size, || shared_receives(count, size))?)
        }
        None => None,
    };
    let receives = match shared.as_deref().map(SharedReceives::queue) {
        Some(queues::SharedReceiveQueue::Tcp(queue)) => Arc::clone(queue.queue()),
        _ => Arc::<ReceiveQueue>::default(),
    };
    let own_keys = Domain::default();
    let line = (key, Arc::clone(manager.notices()));
    let end = End::new(
        line,
        Arc::clone(&receives),
        shared.is_none(),
        Arc::clone(&own_keys.keys),
    );
    wire.join(side, end);
    let domain = memory::Domain::Tcp(own_keys);
    let keep = config.registration_cache;
    let inbound_pool = InboundPool::new(&domain, keep, Arc::new(budget_client));
    let qp = QueuePair::new(wire, side, receives, manager);
    let qp = queues::QueuePair::Memory(qp);
    let queues = WorkQueues::new(qp, &domain, layout, shared.clone(), inbound_pool)?;
    // Reserve shared receives only here: if one of the steps above fails, no receive has to be
    // returned to the pool.
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
    let completions = CompletionQueue::new(Arc::clone(wire), side, layout.completions());
    Ok(TransportParts {
        queues,
        share: shared.map(|shared| ReceiveShare::new(shared, key)),
        poll_side: PollSide::new(queues::CompletionQueue::Memory(completions), None),
        allocator: Arc::new(Allocator::new(domain, keep, None)),
    })
}

fn shared_receives(count: u32, size: usize) -> Result<SharedReceives, OsError> {
    let queue = queues::SharedReceiveQueue::Tcp(SharedReceiveQueue::default());
    let domain = memory::Domain::Tcp(Domain::default());
    SharedReceives::new(domain, queue, count, size)
}
