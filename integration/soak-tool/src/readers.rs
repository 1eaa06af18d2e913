use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use rdmsg::{
    Completion, Error,
    crossbeam_channel::{Receiver, RecvTimeoutError, Select, Sender, unbounded},
};

use crate::{inbox::Inbox, plan::Reading};

/// How long somebody who looks at several connections in turn does something else when there was
/// nothing on any.
const SOMETHING_ELSE: Duration = Duration::from_millis(1);

/// The threads that receive, in each of the ways that there are.
#[derive(Debug)]
pub(crate) struct Readers {
    selecting: Sender<Inbox>,
    trying: Sender<Inbox>,
}

impl Readers {
    /// Starts the two that serve many. They end when this is gone and all inboxes have come to
    /// their end.
    pub(crate) fn start() -> (Self, [JoinHandle<()>; 2]) {
        let (selecting, to_select) = unbounded();
        let (trying, to_try) = unbounded();
        let threads = [
            thread::spawn(move || select(&to_select)),
            thread::spawn(move || try_in_turn(&to_try)),
        ];
        (Self { selecting, trying }, threads)
    }

    /// Receives into an inbox until its end.
    pub(crate) fn read(&self, inbox: Inbox, how: Reading) {
        match how {
            Reading::Blocking => drop(thread::spawn(move || block(inbox))),
            Reading::Selecting => self.selecting.send(inbox).expect("the thread is there"),
            Reading::Trying => self.trying.send(inbox).expect("the thread is there"),
        }
    }
}

fn block(inbox: Inbox) {
    let mut open = Some(inbox);
    while let Some(inbox) = open {
        let received = inbox.endpoint().recv();
        open = inbox.take(received);
    }
}

fn select(newcomers: &Receiver<Inbox>) {
    let mut inboxes: Vec<Inbox> = Vec::new();
    loop {
        let (index, completion) = {
            let mut select = Select::new();
            for inbox in &inboxes {
                select.recv(inbox.endpoint().completions());
            }
            select.recv(newcomers);
            let ready = select.select();
            let index = ready.index();
            let Some(inbox) = inboxes.get(index) else {
                match ready.recv(newcomers) {
                    Ok(inbox) => inboxes.push(inbox),
                    Err(_) => return,
                }
                continue;
            };
            (index, ready.recv(inbox.endpoint().completions()))
        };
        let inbox = inboxes.swap_remove(index);
        let received = match completion {
            Ok(Completion::Received(message)) => Ok(message),
            Ok(Completion::Disconnected(reason)) => Err(Error::Disconnected(reason)),
            // The thread that sends waits for room otherwise.
            Ok(Completion::Room) => {
                inboxes.push(inbox);
                continue;
            }
            other => inbox.fail(&format!("an unexpected completion: {other:?}")),
        };
        inboxes.extend(inbox.take(received));
    }
}

fn try_in_turn(newcomers: &Receiver<Inbox>) {
    let mut inboxes: Vec<Inbox> = Vec::new();
    loop {
        let mut idle = true;
        inboxes = inboxes
            .into_iter()
            .filter_map(|inbox| match inbox.endpoint().try_recv() {
                Ok(None) => Some(inbox),
                Ok(Some(message)) => {
                    idle = false;
                    inbox.take(Ok(message))
                }
                Err(error) => inbox.take(Err(error)),
            })
            .collect();
        let newcomer = if inboxes.is_empty() {
            newcomers.recv().map_err(RecvTimeoutError::from)
        } else if idle {
            newcomers.recv_timeout(SOMETHING_ELSE)
        } else {
            newcomers.recv_timeout(Duration::ZERO)
        };
        match newcomer {
            Ok(inbox) => inboxes.push(inbox),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
