//! An echo server that serves many clients with one thread and channels. The thread waits only for
//! the next event, never for one client.
//!
//! A `Group` is one channel for the completions of all connections, and `established` is the
//! channel for new connections. If a reply does not fit into the client's window, the server keeps
//! the message and does not return its credit to the client. The server sends the reply when
//! `Completion::Room` arrives. A client that does not receive its replies therefore fills its own
//! window and waits. Other clients are not affected.
//!
//! `echo_threads` is the same server with a thread for each client, and `echo_epoll` is the same
//! server with an event loop. The client is `echo_clients`.

use std::{
    collections::{HashMap, VecDeque},
    process::ExitCode,
};

use clap::Parser;
use cm_examples::{
    Result, end, init_debug,
    service::{Options, Service, config},
};
use rdmsg::{
    Completion, Endpoint, Group, Message,
    crossbeam_channel::{never, select},
};

#[derive(Parser)]
#[command(version, about = "An echo server with a group of connections.")]
struct Program {
    #[command(flatten)]
    options: Options,
}

struct Client {
    endpoint: Endpoint,
    /// The received messages that the server sends back as soon as sends are possible, oldest
    /// first.
    waiting: VecDeque<Message>,
}

fn main() -> ExitCode {
    let Program { options } = Program::parse();
    init_debug(options.debug);
    end("echo_group", serve(&options))
}

fn serve(options: &Options) -> Result<()> {
    let service = Service::start(options, config())?;
    let mut established = service.listener.accepted().clone();
    let mut listens = true;
    let group = Group::new();
    let mut clients = HashMap::new();
    while listens || !clients.is_empty() {
        select! {
            recv(established) -> endpoint => match endpoint {
                Ok(endpoint) => {
                    let endpoint = endpoint?;
                    let key = group.add(&endpoint)?;
                    clients.insert(key, Client::new(endpoint));
                }
                Err(_) => {
                    listens = false;
                    established = never();
                }
            },
            recv(group.completions()) -> completion => {
                let (key, completion) = completion?;
                handle(&mut clients, key, completion);
            }
        }
    }
    service.finish()
}

fn handle(clients: &mut HashMap<u64, Client>, key: u64, completion: Completion) {
    match completion {
        Completion::Received(message) => {
            if let Some(client) = clients.get_mut(&key) {
                client.receive(message);
            }
        }
        Completion::Room => {
            if let Some(client) = clients.get_mut(&key) {
                client.answer();
            }
        }
        Completion::Disconnected(reason) => {
            log::debug!("removing client {key}: {reason}");
            clients.remove(&key);
        }
        other => log::debug!("client {key}: ignored the completion {other:?}"),
    }
}

impl Client {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            waiting: VecDeque::new(),
        }
    }

    fn receive(&mut self, message: Message) {
        self.waiting.push_back(message);
        // If earlier messages are waiting, the server calls `answer` when `Completion::Room`
        // arrives.
        if self.waiting.len() == 1 {
            self.answer();
        }
    }

    fn answer(&mut self) {
        while let Some(message) = self.waiting.front() {
            match self.endpoint.try_send(message) {
                // Dropping the message returns its credit to the client.
                Ok(()) => drop(self.waiting.pop_front()),
                Err(refused) if refused.is_full() => return,
                // The connection has ended. A completion reports the reason.
                Err(_) => return self.waiting.clear(),
            }
        }
    }
}
