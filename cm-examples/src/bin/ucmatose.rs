//! Sends messages on connections that share an event channel. Works with the C program `ucmatose`.
//!
//! Run `ucmatose -c 100` on one host and `ucmatose -s ADDR -c 100` on another. One thread handles
//! the events of all connections. An event contains the context of its id: here the index of the
//! connection in the list.
//!
//! When all connections are established, the server sends its messages on each connection. Then the
//! client replies on each connection, and the server disconnects. Both sides post all receives
//! before they send anything, because a send fails if the peer has no posted receive.

use std::{
    net::SocketAddr,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use cm_examples::{
    Result,
    cm::{lookup_as, rejection_cause},
    end, init_debug,
    transfer::Transfer,
};
use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    status::CmEventType,
};

/// Establish connections between two hosts and send messages on them
#[derive(Parser, Clone)]
struct Options {
    /// The host name or address of the server; without it, this program is the server
    #[arg(short, value_name = "ADDRESS")]
    server: Option<String>,
    /// The address to listen on, or to connect from [default: any]
    #[arg(short, value_name = "ADDRESS")]
    bind: Option<String>,
    /// The format of addresses
    #[arg(short, default_value = "name", value_parser = ["name", "ip", "gid"])]
    format: String,
    /// The port space
    #[arg(short = 'P', default_value = "tcp", value_parser = ["tcp", "ib"])]
    space: String,
    /// The number of connections; must be the same on both sides
    #[arg(short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// The number of messages in each direction per connection; must be the same on both sides
    #[arg(short = 'C', default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10000))]
    count: u32,
    /// The size of a message in bytes; must be the same on both sides; with 0, no message is sent
    #[arg(short = 'S', default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=16 << 20))]
    size: u32,
    /// The type of service of the connections
    #[arg(short, value_name = "TOS")]
    tos: Option<u8>,
    /// The port of the server
    #[arg(short, default_value_t = 7471)]
    port: u16,
    /// The exponent N of the acknowledgement timeout, 4.096 µs × 2ᴺ
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=31))]
    ack_timeout: Option<u8>,
    /// After all messages, move all connections to another event channel
    #[arg(short)]
    migrate: bool,
}

/// The maximum time without an event or a completion.
const TIME_LIMIT: Duration = Duration::from_secs(20);
const RESOLVE: Duration = Duration::from_secs(2);
/// The hint in errors about missing messages or connections.
const SAME: &str = "-c, -C and -S must be the same on both sides";

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(false);
    let result = match &options.server {
        Some(server) => connect(&options, server),
        None => serve(&options),
    };
    println!("test complete");
    println!("return status {}", if result.is_ok() { 0 } else { -1 });
    end("cmatose", result)
}

fn serve(options: &Options) -> Result<()> {
    println!("cmatose: starting server");
    let address = options.address(options.bind.as_deref().unwrap_or("0.0.0.0"), options.port)?;
    let mut all = Connections::new(options)?;
    let mut listener = CmId::new(&all.events, options.space(), u64::MAX)?;
    listener.bind_addr(address)?;
    listener.listen(0)?;
    // The server waits for its clients without a time limit.
    while all.established < options.connections {
        all.handle(Duration::MAX)?;
    }
    if options.count() > 0 {
        println!("initiating data transfers");
        all.connections.iter().try_for_each(Transfer::send)?;
        println!("completing sends");
        all.complete(|connection| connection.unsent)?;
        println!("receiving data transfers");
        all.complete(|connection| connection.missing)?;
        println!("data transfers complete");
    }
    all.migrate()?;
    println!("cmatose: disconnecting");
    for connection in &mut all.connections {
        connection.id.disconnect()?;
    }
    all.until_disconnected()?;
    println!("disconnected");
    Ok(())
}

fn connect(options: &Options, server: &str) -> Result<()> {
    println!("cmatose: starting client");
    let server = options.address(server, options.port)?;
    let source = match &options.bind {
        Some(host) => Some(options.address(host, 0)?),
        None => None,
    };
    let mut all = Connections::new(options)?;
    println!("cmatose: connecting");
    for number in 0..options.connections {
        let mut id = CmId::new(&all.events, options.space(), number.into())?;
        id.resolve_addr(source, server, RESOLVE)?;
        all.resolving.push(Some(id));
    }
    while all.established < options.connections {
        all.handle(TIME_LIMIT)?;
    }
    if options.count() > 0 {
        println!("receiving data transfers");
        all.complete(|connection| connection.missing)?;
        println!("sending replies");
        all.connections.iter().try_for_each(Transfer::send)?;
        println!("data transfers complete");
    }
    all.migrate()?;
    all.until_disconnected()
}

impl Options {
    /// Returns the number of messages in each direction, which is 0 if the size of a message is 0.
    fn count(&self) -> u32 {
        if self.size > 0 { self.count } else { 0 }
    }

    fn space(&self) -> PortSpace {
        if self.space == "ib" {
            PortSpace::IB
        } else {
            PortSpace::TCP
        }
    }

    fn address(&self, host: &str, port: u16) -> Result<SocketAddr> {
        lookup_as(&self.format, host, port)
    }
}

/// All connections, and the event channel that they share.
struct Connections {
    options: Options,
    events: EventChannel,
    /// The client's ids whose routes are not resolved yet. The index is the connection number.
    resolving: Vec<Option<CmId>>,
    connections: Vec<Transfer>,
    established: u16,
    disconnected: u16,
}

impl Connections {
    fn new(options: &Options) -> Result<Self> {
        Ok(Self {
            options: options.clone(),
            events: EventChannel::new()?,
            resolving: Vec::new(),
            connections: Vec::new(),
            established: 0,
            disconnected: 0,
        })
    }

    /// Waits for the next event, and performs the next step of the event's connection.
    fn handle(&mut self, time_limit: Duration) -> Result<()> {
        let Some(mut event) = self.events.wait_event(time_limit)? else {
            if time_limit == Duration::MAX {
                return Ok(());
            }
            return Err(format!("no event arrived within {time_limit:?}: {SAME}").into());
        };
        let number = match event.event() {
            CmEventType::CONNECT_REQUEST => self.connections.len(),
            _ => event.context() as usize,
        };
        log::info!("connection {number}: {}", event.event());
        match event.event() {
            CmEventType::CONNECT_REQUEST => {
                let mut id = event.take_request().ok_or("the request has no id")?;
                if self.connections.len() == usize::from(self.options.connections) {
                    return Ok(id.reject(&[])?);
                }
                id.set_context(number as u64);
                self.prepare(id)?.accept(&ConnParam::default())?;
            }
            CmEventType::ADDR_RESOLVED => {
                let id = self.resolving[number].as_mut().ok_or("resolved twice")?;
                if let Some(tos) = self.options.tos {
                    id.set_tos(tos)?;
                }
                id.resolve_route(RESOLVE)?;
            }
            CmEventType::ROUTE_RESOLVED => {
                let id = self.resolving[number].take().ok_or("resolved twice")?;
                let param = ConnParam {
                    responder_resources: 1,
                    initiator_depth: 1,
                    retry_count: 5,
                    rnr_retry_count: 0,
                    ..ConnParam::default()
                };
                self.prepare(id)?.connect(&param)?;
            }
            CmEventType::ESTABLISHED => self.established += 1,
            CmEventType::DISCONNECTED => {
                self.disconnected += 1;
                if self.options.server.is_some() {
                    let mut connections = self.connections.iter_mut();
                    let ended = connections.find(|it| it.id.context() == number as u64);
                    let ended = ended.ok_or("no connection has this number")?;
                    ended.id.disconnect()?;
                }
            }
            // This event follows the end of a connection, and requires no action.
            CmEventType::TIMEWAIT_EXIT => {}
            CmEventType::REJECTED => return Err(rejection_cause(&event).into()),
            other => return Err(format!("event: {other}, {}", event.cm_status()).into()),
        }
        Ok(())
    }

    /// Adds a connection with the objects that the id needs before it connects or accepts.
    fn prepare(&mut self, mut id: CmId) -> Result<&mut CmId> {
        if let Some(ack_timeout) = self.options.ack_timeout {
            id.set_ack_timeout(ack_timeout)?;
        }
        let (count, size) = (self.options.count(), self.options.size);
        self.connections.push(Transfer::new(id, count, size)?);
        Ok(&mut self.connections.last_mut().ok_or("the list is empty")?.id)
    }

    /// Waits until `left` returns 0 for each connection.
    fn complete(&mut self, left: impl Fn(&Transfer) -> u32) -> Result<()> {
        let mut last = Instant::now();
        for number in 0..self.connections.len() {
            while left(&self.connections[number]) > 0 {
                let progress = self.connections[number].progress();
                if progress.map_err(|error| format!("connection {number}: {error}: {SAME}"))? {
                    last = Instant::now();
                    continue;
                }
                // Poll instead of sleeping, because messages in flight arrive soon.
                thread::yield_now();
                let event = self.events.poll_event()?;
                if event.is_some() || last.elapsed() > TIME_LIMIT {
                    let event = event.map(|event| format!(" ({})", event.event()));
                    return Err(format!(
                        "connection {number}: messages are missing{}: {SAME}",
                        event.unwrap_or_default()
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    /// Moves all connections to another event channel, if the option `-m` is given.
    fn migrate(&mut self) -> Result<()> {
        if self.options.migrate {
            println!("migrating to new event channel");
            let events = EventChannel::new()?;
            for connection in &mut self.connections {
                connection.id.migrate(&events)?;
            }
            self.events = events;
        }
        Ok(())
    }

    fn until_disconnected(&mut self) -> Result<()> {
        while self.disconnected < self.options.connections {
            self.handle(TIME_LIMIT)?;
        }
        Ok(())
    }
}
