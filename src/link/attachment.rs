//! Installs the transport of a connection, takes it out, and destroys it.

use std::sync::Arc;

use super::{core::Core, link::Link};
use crate::{
    os::lock,
    transport::{Allocator, PollSide, TransportParts, WorkQueues},
};

/// A transport that was taken out of its connection.
#[derive(Default)]
pub(crate) struct Detached {
    queues: Option<WorkQueues>,
    side: Option<PollSide>,
    allocator: Option<Arc<Allocator>>,
}

impl Detached {
    /// Destroys all objects on the device: the queue pair first, and the completion queue last.
    pub(crate) fn destroy(self) {
        if let Some(queues) = self.queues {
            queues.destroy();
        }
        if let Some(allocator) = self.allocator {
            allocator.close();
        }
        drop(self.side);
    }
}

/// Installs a transport. From now on threads may poll it.
pub(crate) fn install(link: &Link, transport: TransportParts) {
    let TransportParts {
        queues,
        share,
        poll_side,
        allocator,
    } = transport;
    {
        let mut core = link.core();
        if let Some(share) = &share {
            core.conn.use_account(Arc::clone(share.account()));
        }
        core.share = share;
        core.queues = Some(queues);
    }
    *lock(&link.allocator) = Some(allocator);
    *lock(&link.poll) = Some(poll_side);
}

/// Returns true if no thread of the application uses the transport; [`uninstall`] can then run
/// without waiting. If a thread may still be in a call on the queue pair, moves the queue pair to
/// the error state, so that the thread returns soon.
pub(crate) fn try_release(link: &Link) -> bool {
    if link.try_lock_poll().is_none() {
        return false;
    }
    let core = link.core();
    core.queues.as_ref().is_none_or(WorkQueues::try_release)
}

/// Takes the transport out of the connection, and destroys all its objects on the device.
pub(crate) fn uninstall(link: &Link) {
    let mut transport = detach(link);
    let side = transport.side.take();
    transport.destroy();
    release_share(link, side);
}

/// Takes the transport out of the connection, which can then use another one. The caller destroys
/// the transport. If the connection uses shared receives, this function destroys it, because the
/// shared receives can only be returned afterwards.
pub(crate) fn take(link: &Link) -> Detached {
    if link.core().share.is_none() {
        return detach(link);
    }
    uninstall(link);
    Detached::default()
}

fn detach(link: &Link) -> Detached {
    // Once the poll side is taken, no other thread can poll, and no runtime can register the
    // connection.
    let mut side = lock(&link.poll).take();
    if link.is_over() {
        link.poller.leave_runtime();
    } else {
        link.poller.pause_runtime();
    }
    let mut failed = None;
    let queues = {
        let mut core = link.core();
        if let (Some(share), Some(queues), Some(side)) = (&core.share, &core.queues, &mut side) {
            // A queue pair in the error state consumes no further shared receives, even before
            // it is drained. The receives that it has consumed are counted before the queue
            // pair is destroyed, because a driver may remove their completions during the
            // destruction.
            failed = queues.fail().err();
            share.take_all(side);
        }
        core.queues.take()
    };
    if let Some(error) = failed {
        debug!(
            Connection,
            "{link}: cannot move its queue pair to the error state before destroying the queue \
             pair: {error}"
        );
    }
    Detached {
        queues,
        side,
        allocator: lock(&link.allocator).take(),
    }
}

/// Called after the queue pair was destroyed. Takes the receives that the queue pair consumed, and
/// reposts them to the shared receive queue, except for receives whose messages the application has
/// not released. Also gives the reserved receives back to the account of that queue.
fn release_share(link: &Link, side: Option<PollSide>) {
    let settled = {
        let mut core = link.core();
        let Core { share, conn, .. } = &mut *core;
        let Some(share) = share else { return };
        if let Some(mut side) = side {
            // Takes the completions that were added while the queue pair was being destroyed,
            // unless the driver has removed them.
            share.take_all(&mut side);
        }
        share.restore_receives(conn)
    };
    if let Err(error) = settled {
        error!(
            Connection,
            "{link}: cannot return its buffers to the shared receive queue, so other \
             connections cannot use them: {error}"
        );
    }
}
