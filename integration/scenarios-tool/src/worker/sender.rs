use std::{io::IoSlice, time::Instant};

use rdmsg::{Endpoint, Error, Outgoing, SendBuffer, TrySendError};
use toolbox::TIME_LIMIT;

use super::conversation::Conversation;
use crate::{
    plan::{Content, Ending},
    scenario::{Reading, Traffic},
};

/// The number of messages that each side sends on a connection after the order `stop`, unless the
/// plan specifies the number of messages.
const TAIL: u64 = 5;

/// Sends all messages of this side, and ends the connection as planned.
pub(super) fn send_all(conversation: &Conversation, endpoint: &Endpoint) {
    let content = conversation.content(conversation.worker.side);
    let waits = conversation.plan.traffic == Traffic::Idle;
    let mut left = conversation.half().messages;
    for number in 0.. {
        if left.is_none() && number == 1 {
            conversation.wait(|state, _| state.stop || state.go && !waits);
        }
        if left.is_none() && number > 0 && conversation.worker.state().stop {
            left = Some(TAIL);
        }
        if left == Some(0) {
            break;
        }
        left = left.map(|left| left - 1);
        let result = send(conversation, endpoint, &content, number, left == Some(0));
        let result = result.and_then(|()| match conversation.operations.get() {
            Some(operations) if number > 0 && left != Some(0) => {
                let count = || conversation.record().ids += 1;
                operations.begin(endpoint, number, count)
            }
            _ => Ok(()),
        });
        match result {
            Ok(()) => {}
            Err(Error::Disconnected(_)) => return,
            Err(error) => {
                conversation.problem(&format!("message {number} or its operations: {error}"));
                // The peer expects this message, which cannot be sent. Abort the connection, so
                // that the peer does not wait forever.
                endpoint.abort(1);
                return;
            }
        }
    }
    let side = conversation.worker.side;
    match conversation.plan.ending {
        Ending::Close(by) if by == side => conversation.wait(|_, record| record.has_last),
        Ending::CloseEarly(by) | Ending::Abort(by, _) if by == side => {}
        Ending::CloseBoth => {}
        Ending::Close(_) | Ending::CloseEarly(_) | Ending::Abort(..) => return,
        Ending::Drop(..) | Ending::Leave => return,
    }
    conversation.record().ends = true;
    match conversation.plan.ending {
        Ending::Abort(_, code) => endpoint.abort(code),
        // Ignore the result, because the reader reports how the connection has ended.
        _ => drop(endpoint.close()),
    }
}

/// Sends one message with a randomly chosen function of the API.
fn send(
    conversation: &Conversation,
    endpoint: &Endpoint,
    content: &Content,
    number: u64,
    last: bool,
) -> Result<(), Error> {
    let message = content.message(number, last);
    let mut rng = content.random(number, b's');
    // Use an id only if the reader receives completions until the connection ends. On connections
    // with one-sided operations, only the operations have ids.
    let takes_ids = match (conversation.half().reading, conversation.plan.ending) {
        (Reading::Receiving | Reading::Trying, _) => false,
        (_, Ending::Drop(by, _)) if by == conversation.worker.side => false,
        _ => conversation.plan.traffic != Traffic::Operations,
    };
    let has_id = takes_ids && rng.u32(..4) > 0;
    conversation.record().begun += 1;
    match (rng.u32(..8), has_id) {
        (0 | 1, _) => {
            let mut buffer = SendBuffer::new(endpoint, message.len())?;
            buffer.copy_from_slice(&message);
            if has_id {
                send_with_id(endpoint, Outgoing::from(&mut buffer), number)?;
            } else {
                endpoint.send(buffer)?;
            }
        }
        (_, true) => send_with_id(endpoint, Outgoing::from(&message), number)?,
        (2, _) => {
            let (head, tail) = message.split_at(rng.usize(..=message.len()));
            endpoint.send(Outgoing::parts(&[IoSlice::new(head), IoSlice::new(tail)]))?;
        }
        (3, _) => match endpoint.try_send(&message) {
            Ok(()) => {}
            Err(TrySendError::Failed(error)) => return Err(error),
            Err(_) => endpoint.send(&message)?,
        },
        _ => endpoint.send(&message)?,
    }
    let mut record = conversation.record();
    record.accepted += 1;
    record.ids += u64::from(has_id);
    Ok(())
}

/// Sends a message with an id. The send fails if the reader leaves too many completions unread for
/// too long. On a busy host, the reader can be that slow, so this function retries for up to
/// [`TIME_LIMIT`].
fn send_with_id(endpoint: &Endpoint, message: Outgoing<'_>, id: u64) -> Result<(), Error> {
    let mut message = message.with_id(id);
    let start = Instant::now();
    loop {
        match endpoint.send(&mut message) {
            Err(Error::CompletionsNotTaken) if start.elapsed() < TIME_LIMIT => {}
            sent => return sent,
        }
    }
}
