use rdmsg::{Endpoint, Error};
use toolbox::Side;

use super::{conversation::Conversation, operations::Operations};
use crate::scenario::{TAIL, Talk};

/// Sends one message, and further ones from when it is told to go on until it is told to stop; some
/// more then, and the last. The client closes when the peer's last has come as well.
pub(super) fn send_all(
    conversation: &Conversation,
    endpoint: &Endpoint,
    operations: Option<&Operations>,
) {
    let mut number = 0;
    if conversation.leaves() {
        // The server has the word, and the end.
        return;
    }
    if !send(conversation, endpoint, number, false) {
        return;
    }
    number += 1;
    let idle = conversation.group.talk == Talk::Idle;
    conversation
        .signals
        .wait(|told| told.stop || told.go && !idle);
    let mut left = TAIL;
    loop {
        if conversation.signals.now().stop {
            left -= 1;
        }
        if !send(conversation, endpoint, number, left == 0) {
            return;
        }
        if left == 0 {
            break;
        }
        number += 1;
        if let (Some(operations), Some(remote)) = (operations, conversation.remote.get()) {
            let count = || conversation.page.write(|book| book.ids += 1);
            match operations.begin(endpoint, remote, count) {
                Ok(()) => {}
                Err(Error::Disconnected(_)) => return,
                Err(error) => {
                    conversation.problem(&format!("a one-sided operation failed: {error}"));
                    // The peer waits for the messages that do not come.
                    endpoint.abort(1);
                    return;
                }
            }
        }
    }
    if conversation.worker.side == Side::Client {
        conversation.signals.wait(|told| told.all);
        // What it comes to is asked again when it has ended.
        let _ = endpoint.close();
    }
}

/// Sends some messages, the last among them.
pub(super) fn send_last(conversation: &Conversation, endpoint: &Endpoint) {
    const MESSAGES: u64 = 20;
    for number in 0..MESSAGES {
        if !send(conversation, endpoint, number, number + 1 == MESSAGES) {
            return;
        }
    }
}

/// Sends one message, in one of the ways that there are. Whether that goes on.
fn send(conversation: &Conversation, endpoint: &Endpoint, number: u64, last: bool) -> bool {
    let page = &conversation.page;
    let content = conversation.content(conversation.worker.side);
    let message = content.message(number, last);
    page.write(|book| book.begun += 1);
    // On a connection with operations, only operations have ids.
    let id = number % 4 != 2 && conversation.group.talk != Talk::Operations;
    let result = match number % 4 {
        _ if !id => endpoint.send(&message),
        1 => send_owned(endpoint, &message, number),
        _ => endpoint.send_with_id(&message, number),
    };
    match result {
        Ok(()) => {
            page.write(|book| {
                book.accepted += 1;
                book.ids += u64::from(id);
            });
            true
        }
        Err(Error::Disconnected(_)) => false,
        Err(error) => {
            conversation.problem(&format!(
                "sending message {number} of {} bytes failed: {error}",
                message.len()
            ));
            endpoint.abort(1);
            false
        }
    }
}

fn send_owned(endpoint: &Endpoint, message: &[u8], number: u64) -> Result<(), Error> {
    let mut buffer = endpoint.buffer(message.len())?;
    buffer.copy_from_slice(message);
    endpoint
        .send_owned_with_id(buffer, number)
        .map_err(Error::from)
}
