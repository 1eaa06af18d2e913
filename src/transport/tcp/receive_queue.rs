use std::sync::{Mutex, Weak};

use super::socket::Span;
use crate::{
    os::lock,
    status::OsError,
    transport::queues::{Buffers, WorkId},
};

/// A queue of posted receives that have not been consumed yet.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    posted: Mutex<Posted>,
}

#[derive(Debug, Default)]
struct Posted {
    /// A stack of receives: the most recently posted receive is used first, because its memory is
    /// mapped and probably in the cache.
    receives: Vec<Receive>,
    /// The drain marker, which completes after all receives.
    marker: Option<Receive>,
    unposted: Option<Unposted>,
}

/// Receives that are posted only when no posted receive remains. So a connection allocates memory
/// only for the maximum number of receives that it has used at the same time.
#[derive(Debug)]
pub(in crate::transport) struct Unposted {
    /// The memory of the receives. It no longer exists after the queue pair is destroyed.
    pub(in crate::transport) buffers: Weak<Buffers>,
    /// The index of the first receive that has not been posted yet.
    pub(in crate::transport) next: u32,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Receive {
    pub(in crate::transport) id: WorkId,
    /// The memory for the received bytes; empty for a drain marker.
    pub(in crate::transport) to: Span,
}

// SAFETY: the caller that posts a receive guarantees that only the queue accesses the memory of the
// receive until the receive completes. The queue may be used by any thread.
#[allow(unsafe_code)]
unsafe impl Send for Receive {}

impl ReceiveQueue {
    pub(in crate::transport) fn post(&self, receive: Receive) {
        let mut posted = lock(&self.posted);
        match receive.id {
            WorkId::DrainRecv => posted.marker = Some(receive),
            WorkId::Recv(_) | WorkId::Send(_) | WorkId::DrainSend | WorkId::Invalidation => {
                posted.receives.push(receive);
            }
        }
    }

    /// Lets the queue post the receives in `unposted` on demand: see
    /// [`take_another`](Self::take_another).
    pub(in crate::transport) fn post_on_demand(&self, unposted: Unposted) {
        lock(&self.posted).unposted = Some(unposted);
    }

    /// Takes a posted receive for the next frame. Returns `None` if no posted receive remains.
    /// [`take_another`](Self::take_another) may then find a receive.
    pub(in crate::transport) fn take(&self) -> Option<Receive> {
        lock(&self.posted).receives.pop()
    }

    /// Allocates the next piece of memory, posts its receives, and takes one of them. Fails if the
    /// operating system has no memory for the piece. Returns `None` if no unposted receives remain
    /// or the queue pair is destroyed.
    #[cold]
    pub(in crate::transport) fn take_another(&self) -> Result<Option<Receive>, OsError> {
        let mut posted = lock(&self.posted);
        let Posted {
            receives, unposted, ..
        } = &mut *posted;
        let Some(unposted) = unposted else {
            return Ok(None);
        };
        let Some(buffers) = unposted.buffers.upgrade() else {
            return Ok(None);
        };
        let layout = buffers.layout();
        let piece = layout.receives_from(unposted.next);
        for number in piece.clone() {
            let place = buffers.allocate(number)?;
            receives.push(Receive {
                id: WorkId::Recv(number),
                to: Span {
                    start: place.memory.as_ptr().wrapping_add(place.offset),
                    len: layout.size(),
                },
            });
        }
        unposted.next = piece.end;
        Ok(receives.pop())
    }

    /// Returns true if the drain marker is posted and has not completed.
    pub(in crate::transport) fn has_marker(&self) -> bool {
        lock(&self.posted).marker.is_some()
    }

    /// Removes and returns the next receive to flush. The drain marker follows all other receives.
    pub(in crate::transport) fn take_back(&self) -> Option<Receive> {
        let mut posted = lock(&self.posted);
        posted.receives.pop().or_else(|| posted.marker.take())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn queue_is_lifo_and_marker_completes_last() {
        let queue = ReceiveQueue::default();
        let to = Span {
            start: ptr::null_mut(),
            len: 0,
        };
        let post = |id| queue.post(Receive { id, to });
        let number = |receive: Receive| match receive.id {
            WorkId::Recv(number) => Some(number),
            WorkId::DrainRecv | WorkId::Send(_) | WorkId::DrainSend | WorkId::Invalidation => None,
        };
        post(WorkId::Recv(0));
        post(WorkId::Recv(1));
        assert_eq!(queue.take().map(number), Some(Some(1)));
        post(WorkId::Recv(1));
        assert_eq!(queue.take().map(number), Some(Some(1)));
        post(WorkId::DrainRecv);
        assert_eq!(queue.take().map(number), Some(Some(0)));
        assert!(queue.take().is_none(), "a frame must not take the marker");
        post(WorkId::Recv(2));
        assert_eq!(queue.take_back().map(number), Some(Some(2)));
        assert_eq!(queue.take_back().map(number), Some(None));
        assert!(queue.take_back().is_none());
    }
}
