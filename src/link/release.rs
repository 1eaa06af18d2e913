//! Releases messages that the application has dropped: returns their receive buffers to the device,
//! and their credits to the peer.

use std::{
    fmt,
    sync::{Arc, MutexGuard},
    time::Instant,
};

use super::{
    core::{Core, SystemClock},
    link::Link,
    message::{MessageOwner, Storage},
};
use crate::status::OsError;

impl Link {
    /// Reclaims the buffer and credit of a dropped message. `generation` identifies the connection
    /// over which the message arrived.
    #[inline(always)]
    pub(super) fn reclaim_from(&self, storage: Storage, generation: u32) {
        let mut core = self.core();
        if !core.reclaim(storage, generation) {
            self.conclude_release(core);
        }
    }

    /// Carries out the state machine's outputs after the application has dropped a message. Unlocks
    /// `core`.
    #[inline(never)]
    fn conclude_release(&self, core: MutexGuard<'_, Core>) {
        // The message holds a reference to the link, so the upgrade succeeds.
        if let Some(link) = self.this.upgrade() {
            link.conclude(core);
        }
    }
}

/// The owner of the messages that arrive over a session's connection after the session has resumed.
/// A message returns its buffer to the device only while the connection with this generation is the
/// current connection.
pub(super) struct Ring {
    pub(super) link: Arc<Link>,
    pub(super) generation: u32,
}

impl MessageOwner for Ring {
    fn is_inherited(&self) -> bool {
        self.link.is_inherited()
    }

    fn reclaim(&self, storage: Storage) {
        self.link.reclaim_from(storage, self.generation);
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.fmt(f)
    }
}

impl Core {
    /// Reclaims the buffer and credit of a message: see [`Link::reclaim_from`]. Returns true only
    /// if the state machine has no output.
    #[inline(always)]
    pub(crate) fn reclaim(&mut self, storage: Storage, generation: u32) -> bool {
        match storage {
            Storage::Buffer(buffer) if generation == self.generation => self.release(buffer),
            Storage::Part(buffer) if generation == self.generation => self.release_part(buffer),
            storage => {
                self.reclaim_other(storage, generation);
                false
            }
        }
    }

    #[inline(never)]
    fn reclaim_other(&mut self, storage: Storage, generation: u32) {
        if generation != self.generation && storage != Storage::Control {
            return self.recovery().release_from_earlier_connection(storage);
        }
        match storage {
            Storage::Buffer(buffer) => _ = self.release(buffer),
            Storage::Part(buffer) => _ = self.release_part(buffer),
            Storage::Copied(len) => self.conn.release_copied(len, SystemClock),
            Storage::Large(len) => self.conn.release_large(len, SystemClock),
            Storage::Control => self.conn.take_control_message(),
        }
    }

    /// Releases one message of a batch. The receive is reposted when all messages of the batch have
    /// been released. Until then, each released message returns only its credit. Returns true only
    /// if the state machine has no output.
    #[inline]
    fn release_part(&mut self, buffer: u32) -> bool {
        if self.batches.take(buffer) {
            return self.release(buffer);
        }
        match self.conn.releasing() {
            Some(releasing) => releasing.release(SystemClock),
            None => {
                self.conn.give_up_receive();
                false
            }
        }
    }

    /// Posts a buffer that the application has released, and then notifies the state machine. This
    /// order ensures that no grant is sent before the receive is posted. Returns true only if the
    /// state machine has no output.
    #[inline(always)]
    pub(super) fn release(&mut self, buffer: u32) -> bool {
        // The usual case: the connection is open and does not use a shared receive queue.
        if let (None, Some(queues), Some(releasing)) =
            (&self.share, &mut self.queues, self.conn.releasing())
        {
            let posted = queues.post_recv(buffer);
            return match posted {
                Ok(()) => releasing.release(SystemClock),
                Err(error) => self.post_recv_failed(error),
            };
        }
        self.release_other(buffer)
    }

    /// Does the same as [`release`](Self::release) for a connection that uses a shared receive
    /// queue or is not open.
    #[inline(never)]
    fn release_other(&mut self, buffer: u32) -> bool {
        let posted = match (&mut self.share, &mut self.queues) {
            // Other connections can use the buffer, even if this connection has ended.
            (Some(share), _) => share.release(buffer),
            (None, Some(queues)) if self.conn.accepts_receives() => queues.post_recv(buffer),
            (None, _) => {
                self.conn.give_up_receive();
                return false;
            }
        };
        match posted {
            Ok(()) => self.conn.accepts_receives() && self.conn.release(SystemClock),
            Err(error) => self.post_recv_failed(error),
        }
    }

    /// Ends the connection because a receive could not be posted. Returns false, because the state
    /// machine has outputs.
    #[cold]
    fn post_recv_failed(&mut self, error: OsError) -> bool {
        self.conn.handle_post_failure(error, Instant::now());
        false
    }
}
