//! An echo server that serves many clients with one thread and an event loop: epoll, through the
//! library mio.
//!
//! Each connection has two file descriptors. One is readable when messages have arrived, and the
//! other when a send is possible. The listener has a descriptor for new connections. If a reply
//! does not fit into the client's window, the server keeps the message, and receives no further
//! messages from that client until a send is possible. A client that does not receive its replies
//! therefore fills its own window and waits. Other clients are not affected.
//!
//! mio is edge-triggered, so the server registers both descriptors. A level-triggered loop would
//! register only one of them at a time: the first while the server receives, the second while a
//! reply waits.
//!
//! `echo_threads` is the same server with a thread for each client, and `echo_group` is the same
//! server with channels. The client is `echo_clients`.

use std::{collections::HashMap, os::fd::AsRawFd, process::ExitCode};

use clap::Parser;
use cm_examples::{
    Result, end, init_debug,
    service::{Options, Service, config},
};
use mio::{Events, Poll, Registry, Token, unix::SourceFd};
use rdmsg::{Endpoint, Error, Interest, Listener, Message};

#[derive(Parser)]
#[command(version, about = "An echo server with an event loop.")]
struct Program {
    #[command(flatten)]
    options: Options,
}

/// The token of the listener. The token of a client is its connection number.
const LISTENER: Token = Token(usize::MAX);

struct Client {
    endpoint: Endpoint,
    /// A received message that the server sends back as soon as a send is possible.
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

/// Accepts all pending connections. Returns `false` if the listener is closed.
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

    /// Registers both descriptors of the connection. mio waits for both to become readable, because
    /// a descriptor becomes readable when its operation, a receive or a send, is possible. If a
    /// message has already arrived, mio reports an event immediately.
    fn watch(&self, registry: &Registry, token: Token) -> Result<()> {
        for interest in [Interest::Readable, Interest::Writable] {
            let fd = self.endpoint.event_fd(interest)?.as_raw_fd();
            registry.register(&mut SourceFd(&fd), token, mio::Interest::READABLE)?;
        }
        Ok(())
    }

    /// Deregisters both descriptors. Must be called before the endpoint is dropped, because the
    /// drop closes the descriptors.
    fn unwatch(&self, registry: &Registry) -> Result<()> {
        for interest in [Interest::Readable, Interest::Writable] {
            let fd = self.endpoint.event_fd(interest)?.as_raw_fd();
            registry.deregister(&mut SourceFd(&fd))?;
        }
        Ok(())
    }

    /// Receives messages and replies to them until no message is pending or the window is full.
    /// Returns `false` if the connection has ended.
    fn serve(&mut self) -> bool {
        loop {
            let message = match self.waiting.take() {
                Some(message) => message,
                None => match self.endpoint.try_recv() {
                    Ok(Some(message)) => message,
                    Ok(None) => return true,
                    Err(error) => {
                        log::debug!("removing client {}: {error}", self.endpoint.info().id);
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
                // The connection has ended, and the next receive returns the reason.
                Err(_) => {}
            }
        }
    }
}
