//! Installs the transport of a connection, and destroys it.

use std::sync::Arc;

use super::{core::Core, link::Link};
use crate::{
    error::Error,
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

impl Link {
    /// Installs a transport. From now on threads may poll it.
    pub(crate) fn install(&self, transport: TransportParts) {
        let TransportParts {
            queues,
            share,
            poll_side,
            allocator,
        } = transport;
        {
            let mut core = self.core();
            if let Some(share) = &share {
                core.conn.use_account(Arc::clone(share.account()));
            }
            core.share = share;
            core.queues = Some(queues);
        }
        *lock(&self.allocator) = Some(allocator);
        *lock(&self.poll) = Some(poll_side);
    }

    /// Returns true if no thread of the application uses the transport;
    /// [`uninstall`](Self::uninstall) can then run without waiting. If a thread may still be in a
    /// call on the queue pair, moves the queue pair to the error state, so that the thread returns
    /// soon.
    pub(crate) fn try_release(&self) -> bool {
        if self.try_lock_poll().is_none() {
            return false;
        }
        let core = self.core();
        core.queues.as_ref().is_none_or(WorkQueues::try_release)
    }

    /// Takes the transport out of the connection, and destroys all its objects on the device.
    pub(crate) fn uninstall(&self) {
        let mut transport = self.detach();
        let side = transport.side.take();
        transport.destroy();
        self.release_share(side);
    }

    /// Takes the transport out of the connection, which can then use another one. The caller
    /// destroys the transport. If the connection uses shared receives, this function destroys it,
    /// because the shared receives can only be returned afterwards.
    pub(crate) fn take_transport(&self) -> Detached {
        if self.core().share.is_none() {
            return self.detach();
        }
        self.uninstall();
        Detached::default()
    }

    fn detach(&self) -> Detached {
        // Once the poll side is taken, no other thread can poll, and no runtime can register the
        // connection.
        let mut side = lock(&self.poll).take();
        if self.is_over() {
            self.poller.leave_runtime();
        } else {
            self.poller.pause_runtime();
        }
        let mut failed = None;
        let queues = {
            let mut core = self.core();
            if let (Some(share), Some(queues), Some(side)) = (&core.share, &core.queues, &mut side)
            {
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
                "{self}: cannot move its queue pair to the error state before destroying the queue \
                 pair: {error}"
            );
        }
        Detached {
            queues,
            side,
            allocator: lock(&self.allocator).take(),
        }
    }

    /// Called after the queue pair was destroyed. Takes the receives that the queue pair consumed,
    /// and reposts them to the shared receive queue, except for receives whose messages the
    /// application has not released. Also gives the reserved receives back to the account of that
    /// queue.
    fn release_share(&self, side: Option<PollSide>) {
        let settled = {
            let mut core = self.core();
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
                "{self}: cannot return its buffers to the shared receive queue, so other \
                 connections cannot use them: {error}"
            );
        }
    }

    /// Returns the allocator of memory for the application's messages. Returns `None` if the
    /// connection has no transport.
    pub(super) fn allocator(&self) -> Option<Arc<Allocator>> {
        lock(&self.allocator).clone()
    }

    /// Returns the error for a call that needs a transport while the connection has none.
    pub(super) fn disconnected(&self) -> Error {
        Error::Disconnected(self.core().reason())
    }
}
