//! What the application is told through the channel of its completions.

use super::{
    completion::Completion,
    outbox::Outbox,
    sent_order::{Gone, SentOrder, Unproven},
};
use crate::{
    error::{Error, TrySendError},
    proto::{CloseReason, Connection, SendRefused},
    transport::{Outcome, Posted},
};

/// The device is done with this. Tells the application, if it is to know by now, and says whether
/// it is.
pub(super) fn succeed(
    posted: &Posted,
    conn: &mut Connection,
    order: &mut SentOrder,
    unproven: &mut Unproven,
    completions: &mut Option<Outbox>,
) -> bool {
    let (gone, answer) = match posted {
        Posted::Frame => return false,
        Posted::Message => (Some(Gone::Message), None),
        Posted::ReadChunk { .. } => (None, None),
        Posted::Operation(operation) => {
            let id = operation.id;
            match operation.outcome() {
                Outcome::Written => (Some(Gone::Write(id)), None),
                Outcome::Read => (None, Some(Completion::Read(id))),
                Outcome::Fetched(value) => (None, Some(Completion::Fetched { id, value })),
            }
        }
    };
    match gone {
        Some(gone) if conn.acknowledges_sends() => arrived(gone, order, completions),
        Some(gone) => {
            unproven.put(conn.prove_arrival(), gone);
            false
        }
        None => {
            // The peer's device has answered, and so had what came before.
            let mut any = false;
            while let Some(gone) = unproven.take() {
                any |= arrived(gone, order, completions);
            }
            any | answer.is_some_and(|answer| report(completions, answer))
        }
    }
}

/// This has arrived at the peer. Tells the application, if it is to know by now, and says whether
/// it is.
pub(super) fn arrived(gone: Gone, order: &mut SentOrder, completions: &mut Option<Outbox>) -> bool {
    match gone {
        Gone::Message => {
            order.acknowledge();
            false
        }
        Gone::Write(id) => report(completions, Completion::Written(id)),
    }
}

/// Tells the application of the messages that are known to be sent by now, and says whether there
/// were any.
pub(super) fn report_sent(order: &mut SentOrder, completions: &mut Option<Outbox>) -> bool {
    let mut any = false;
    while let Some(id) = order.next_sent() {
        any |= report(completions, Completion::Sent(id));
    }
    any
}

/// Tells the application that a message or operation failed, if it has an id.
pub(super) fn report_failed(
    id: Option<u64>,
    reason: &CloseReason,
    completions: &mut Option<Outbox>,
) {
    if let Some(id) = id {
        let reason = reason.clone();
        report(completions, Completion::Failed { id, reason });
    }
}

/// Tells the application of the end of a message or operation, if it may still hear of it. Says
/// whether it may.
fn report(completions: &mut Option<Outbox>, completion: Completion) -> bool {
    let Some(completions) = completions else {
        return false;
    };
    // The channel has a place for each: see `most_ids`. If nobody is left to read it, nobody misses
    // it.
    let _ = completions.put(completion);
    true
}

/// The error of a message of `len` bytes that the state machine does not send.
pub(super) fn refused_send(refused: SendRefused, len: usize) -> TrySendError {
    TrySendError::Failed(match refused {
        SendRefused::Blocked => return TrySendError::Full,
        SendRefused::TooLong { limit } => Error::MessageTooLong { len, limit },
        SendRefused::Finished => Error::Finished,
        SendRefused::Closed(reason) => Error::Disconnected(reason),
    })
}
