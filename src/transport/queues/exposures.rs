//! The large messages that are exposed to the peer.

use std::{collections::VecDeque, io::IoSlice};

use super::{queue_pair::PostError, work_queues::WorkQueues, work_request::WorkId};
use crate::{proto::Transmit, transport::memory::Exposed};

/// Large messages whose memory the peer can read. A message is removed after the peer's access has
/// ended.
#[derive(Debug, Default)]
pub(super) struct Exposures {
    /// The messages that the peer has not read yet, oldest first.
    untaken: VecDeque<Exposed>,
    /// The messages that the peer has read.
    taken: Taken<Exposed>,
}

/// Messages that the peer has read and that are not reported yet, oldest first. An entry is `Some`
/// while the window of its message is being invalidated, and `None` when the peer can no longer
/// access the message. Messages are reported in order: a `None` entry stays here only while an
/// earlier entry is `Some`.
#[derive(Debug)]
struct Taken<T>(VecDeque<Option<T>>);

impl<T> Default for Taken<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Taken<T> {
    /// Adds a message whose window is being invalidated, or `None` if the peer can no longer access
    /// the message. Returns the number of messages to report.
    fn push(&mut self, invalidating: Option<T>) -> u32 {
        self.0.push_back(invalidating);
        self.report()
    }

    /// Takes the oldest message whose window is being invalidated, and removes the messages that
    /// can be reported. Returns the message and the number of messages to report.
    fn pop(&mut self) -> (Option<T>, u32) {
        let invalidated = self.0.front_mut().and_then(Option::take);
        (invalidated, self.report())
    }

    /// Removes the messages before the first message whose window is being invalidated. Returns the
    /// number of removed messages.
    fn report(&mut self) -> u32 {
        let waits = |one: &Option<T>| one.is_some();
        let count = self.0.iter().position(waits).unwrap_or(self.0.len());
        self.0.drain(..count).count() as u32
    }
}

impl WorkQueues {
    /// Announces a large message to the peer. If the message has a window, first binds the window.
    /// Then posts the frame with the message's descriptor. After this call, the caller passes the
    /// message to [`expose`](Self::expose).
    pub(crate) fn announce(
        &mut self,
        transmit: &Transmit,
        exposed: &mut Exposed,
    ) -> Result<(), PostError> {
        if let Some((window, region, len)) = exposed.window() {
            // The bind generates a completion only if it fails. This completion contains the id of
            // the frame that follows, so the failure is handled as a failure of the frame.
            let id = WorkId::Send(transmit.slot);
            self.qp.bind(id, window, region, len)?;
        }
        let descriptor = exposed.descriptor().emit();
        self.post_send(transmit, &[IoSlice::new(&descriptor)], false)
    }

    /// Keeps an announced message until the peer has read it.
    pub(crate) fn expose(&mut self, exposed: Exposed) {
        self.exposures.untaken.push_back(exposed);
    }

    /// Removes and returns all messages that the peer has not read, oldest first. Called after the
    /// connection was lost.
    pub(crate) fn take_exposed(&mut self) -> VecDeque<Exposed> {
        std::mem::take(&mut self.exposures.untaken)
    }

    /// Ends the exposure of the oldest `count` large messages, which the peer has read. Returns the
    /// number of messages that can be reported now, because the peer can no longer access them. The
    /// other messages are reported after [`invalidated`](Self::invalidated) or
    /// [`end_exposures`](Self::end_exposures).
    pub(crate) fn taken(&mut self, count: u32) -> u32 {
        let Exposures { untaken, taken } = &mut self.exposures;
        let mut to_report = 0;
        for mut exposed in untaken.drain(..count as usize) {
            let posted = exposed
                .window()
                .map(|(window, ..)| self.qp.invalidate(window));
            to_report += match posted {
                Some(Ok(())) => taken.push(Some(exposed)),
                Some(Err(_)) | None => {
                    // This deregisters the memory of the message, or frees its window.
                    drop(exposed);
                    taken.push(None)
                }
            };
        }
        to_report
    }

    /// Handles the completion of the oldest pending invalidation. Returns the number of messages to
    /// report.
    pub(crate) fn invalidated(&mut self) -> u32 {
        let (exposed, to_report) = self.exposures.taken.pop();
        if let Some(exposed) = exposed {
            exposed.invalidated();
        }
        to_report
    }

    /// Frees the windows that are being invalidated. Called after the connection has ended. Returns
    /// the number of messages to report.
    pub(crate) fn end_exposures(&mut self) -> u32 {
        self.exposures.taken.0.drain(..).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_messages_are_reported_in_order() {
        let mut taken = Taken::default();
        assert_eq!(
            taken.push(None),
            1,
            "a message without predecessors must be reported"
        );
        assert_eq!(taken.push(Some('a')), 0);
        assert_eq!(
            taken.push(None),
            0,
            "a message must wait for the invalidation before it"
        );
        assert_eq!(taken.push(Some('b')), 0);
        assert_eq!(taken.pop(), (Some('a'), 2));
        assert_eq!(taken.push(None), 0);
        assert_eq!(taken.pop(), (Some('b'), 2));
        assert_eq!(taken.pop(), (None, 0));
        assert_eq!(taken.push(None), 1);
    }
}
