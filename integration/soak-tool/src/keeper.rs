use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use rdmsg::{
    Message,
    crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded},
};

use crate::{board::Board, content::Expected};

/// A message that is kept for a while. Its bytes must still be the same when it is let go.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) message: Message,
    pub(crate) expected: Expected,
    pub(crate) connection: u64,
}

impl Kept {
    pub(crate) fn release(self, board: &Board) {
        if let Err(problem) = self.expected.check(&self.message) {
            board.fail(&format!(
                "connection {}: a message that was kept was changed: {problem}",
                self.connection
            ));
        }
    }
}

/// Starts a thread that holds messages until their time has come, whatever becomes of their
/// connections. When nobody can give it any more it lets go of all.
pub(crate) fn start(board: &Arc<Board>) -> (Sender<(Instant, Kept)>, JoinHandle<()>) {
    let (messages, receiver) = unbounded();
    let board = Arc::clone(board);
    (messages, thread::spawn(move || keep(&receiver, &board)))
}

fn keep(messages: &Receiver<(Instant, Kept)>, board: &Board) {
    let work = board.entry("keeper".into());
    let mut held = BTreeMap::new();
    for number in 0_u64.. {
        let next = held.first_key_value().map(|((time, _), _)| *time);
        let received = match next {
            Some(time) => messages.recv_deadline(time),
            None => messages.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok((time, kept)) => {
                held.insert((time, number), kept);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some((_, kept)) = held.pop_first() {
                    work.message("letting go", kept.expected.number);
                    kept.release(board);
                    work.rest();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    held.into_values()
        .for_each(|kept: Kept| kept.release(board));
}
