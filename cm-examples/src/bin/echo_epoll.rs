//! An echo server for many clients with one thread and an event loop: epoll, through mio.
//!
//! Each connection has a file descriptor for messages and one for room; the listener has one, too.
//! When an answer does not fit, the server keeps the message, and receives nothing from that client
//! until there is room. So a client that does not take its answers fills its window and waits, and
//! no other client is affected.
//!
//! mio is edge-triggered. A level-triggered loop would watch the first descriptor while it receives
//! and the second while an answer waits, never both.
//!
//! `echo_threads` and `echo_group` do the same in other ways; `echo_clients` is the counterpart.

use std::{collections::HashMap, os::fd::AsRawFd, process::ExitCode};

use clap::Parser;
use cm_examples::{
    Result, end, init_debug,
    service::{Options, Service, config},
};
use mio::{Events, Poll, Registry, Token, unix::SourceFd};
use rdmsg::{Endpoint, Error, Interest, Listener, Message};

#[derive(Parser)]
#[command(version, about = "Echoes messages, with an event loop.")]
struct Program {
    #[command(flatten)]
    options: Options,
}

/// The token of the listener. Those of clients are their numbers.
const LISTENER: Token = Token(usize::MAX);

struct Client {
    endpoint: Endpoint,
    /// The message whose answer waits for room.
    waiting: Option<Message>,
}

fn main() -> ExitCode {
    let Program { options } = Program::parse();
    init_debug(options.debug);
    end("echo_epoll", serve(&options))
}

fn serve(options: &Options) -> Result<()> {
    let service = Service::start(options, config())?;
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(256);
    let fd = service.listener.event_fd()?.as_raw_fd();
    poll.registry()
        .register(&mut SourceFd(&fd), LISTENER, mio::Interest::READABLE)?;
    let mut clients = HashMap::new();
    let mut listens = true;
    while listens || !clients.is_empty() {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            let token = event.token();
            if token == LISTENER {
                listens = accept(&service.listener, poll.registry(), &mut clients)?;
            } else if let Some(client) = clients.get_mut(&token)
                && !client.serve()
            {
                client.unwatch(poll.registry())?;
                clients.remove(&token);
            }
        }
    }
    service.finish()
}

/// Accepts the pending connections. Returns whether the listener continues.
fn accept(
    listener: &Listener,
    registry: &Registry,
    clients: &mut HashMap<Token, Client>,
) -> Result<bool> {
    loop {
        match listener.try_accept() {
            Ok(Some(endpoint)) => {
                let token = Token(usize::try_from(endpoint.info().id)?);
                let client = Client::new(endpoint);
                client.watch(registry, token)?;
                clients.insert(token, client);
            }
            Ok(None) => return Ok(true),
            Err(Error::ListenerClosed) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Client {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            waiting: None,
        }
    }

    /// Registers both descriptors for reading. A completion that is already there causes an event
    /// at once.
    fn watch(&self, registry: &Registry, token: Token) -> Result<()> {
        for interest in [Interest::Readable, Interest::Writable] {
            let fd = self.endpoint.event_fd(interest)?.as_raw_fd();
            registry.register(&mut SourceFd(&fd), token, mio::Interest::READABLE)?;
        }
        Ok(())
    }

    /// Must be called before the endpoint is dropped, which closes the descriptors.
    fn unwatch(&self, registry: &Registry) -> Result<()> {
        for interest in [Interest::Readable, Interest::Writable] {
            let fd = self.endpoint.event_fd(interest)?.as_raw_fd();
            registry.deregister(&mut SourceFd(&fd))?;
        }
        Ok(())
    }

    /// Answers messages while there is room. Returns whether the connection continues.
    fn serve(&mut self) -> bool {
        loop {
            let message = match self.waiting.take() {
                Some(message) => message,
                None => match self.endpoint.try_recv() {
                    Ok(Some(message)) => message,
                    Ok(None) => return true,
                    Err(error) => {
                        log::debug!("client {}: {error}", self.endpoint.info().id);
                        return false;
                    }
                },
            };
            match self.endpoint.try_send(&message) {
                Ok(()) => {}
                Err(refused) if refused.is_full() => {
                    self.waiting = Some(message);
                    return true;
                }
                // The next receive returns the cause of the end.
                Err(_) => {}
            }
        }
    }
}
