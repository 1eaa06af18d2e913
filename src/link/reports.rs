//! What the application is told through the channel of its completions.

use super::{completion::Completion, outbox::Outbox, sent_order::SentOrder};
use crate::{
    proto::CloseReason,
    transport::{Outcome, Posted},
};

/// The device has done this. Tells the application, if it is to know by now, and says whether it
/// is.
pub(super) fn succeed(
    posted: &Posted,
    order: &mut SentOrder,
    completions: &mut Option<Outbox>,
) -> bool {
    match posted {
        Posted::Frame | Posted::ReadChunk { .. } => false,
        Posted::Message => {
            order.acknowledge();
            false
        }
        Posted::Operation(operation) => {
            let id = operation.id;
            let completion = match operation.outcome() {
                Outcome::Read => Completion::Read(id),
                Outcome::Written => Completion::Written(id),
                Outcome::Fetched(value) => Completion::Fetched { id, value },
            };
            report(completions, completion)
        }
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
