//! A load generator for the echo servers: one process with many connections. On some connections,
//! the process only sends and never receives the replies.
//!
//! The servers `echo_threads`, `echo_group` and `echo_epoll` continue to serve the other
//! connections. Start a server, and then this program on another host.

use std::{
    collections::HashMap,
    net::SocketAddr,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use cm_examples::{
    Result, check, end, fill, init_debug,
    service::{allow_many_fds, config},
};
use rdmsg::{Completion, Connector, Endpoint, Engine, Error, Group};

#[derive(Parser)]
#[command(
    version,
    about = "Opens many connections to an echo server, and checks its replies."
)]
struct Options {
    /// The address and port of the server
    address: SocketAddr,
    /// The number of connections to open
    #[arg(short, long, default_value_t = 500)]
    connections: usize,
    /// How many of the connections only send messages, and never receive the replies
    #[arg(short, long, default_value_t = 1)]
    stuck: usize,
    /// The number of rounds; in a round, the client sends one message on each connection that
    /// receives replies, and waits for all replies
    #[arg(short, long, default_value_t = 20)]
    rounds: u64,
    /// The size of the messages in bytes
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// The idle time in seconds before one additional round; with 0, skip the additional round
    #[arg(long, default_value_t = 0)]
    idle: u64,
    /// Show the log of the library
    #[arg(short, long)]
    debug: bool,
}

/// The number of threads that open connections.
const OPENERS: usize = 8;

/// The time limit of a send on a stuck connection, whose replies the client does not receive. If
/// the send times out, the program considers the window full.
const REFUSED: Duration = Duration::from_millis(500);

/// The time limit for a reply.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(options.debug);
    end("echo_clients", run(&options))
}

fn run(options: &Options) -> Result<()> {
    allow_many_fds()?;
    let engine = Engine::new()?;
    let began = Instant::now();
    let mut clients = open(options, &engine)?;
    println!(
        "{} connections in {} ms",
        clients.len(),
        began.elapsed().as_millis()
    );
    let stuck = clients.split_off(clients.len().saturating_sub(options.stuck));
    for client in &stuck {
        println!(
            "stuck after {} messages",
            fill_window(client, options.size)?
        );
    }
    let group = Group::new();
    for client in &clients {
        group.add(client)?;
    }
    let began = Instant::now();
    for round in 0..options.rounds {
        ask_all(&clients, &group, round, options.size)?;
    }
    println!(
        "{} rounds over {} connections, every byte as expected, in {} ms",
        options.rounds,
        clients.len(),
        began.elapsed().as_millis()
    );
    if options.idle > 0 {
        println!("idle");
        thread::sleep(Duration::from_secs(options.idle));
        println!("awake");
        ask_all(&clients, &group, options.rounds, options.size)?;
    }
    for client in &stuck {
        client.abort(0);
    }
    for client in clients {
        client.close()?;
    }
    println!("closed: everything was delivered");
    Ok(())
}

/// Opens all connections, with `OPENERS` threads.
fn open(options: &Options, engine: &Engine) -> Result<Vec<Endpoint>> {
    let connector = Connector::new().config(&config()).engine(engine);
    let share = |opener: usize| (opener..options.connections).step_by(OPENERS);
    thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS)
            .map(|opener| {
                let connector = &connector;
                scope.spawn(move || -> Result<Vec<Endpoint>, Error> {
                    let connect = |_| connector.connect(options.address);
                    share(opener).map(connect).collect()
                })
            })
            .collect();
        let mut all = Vec::new();
        for opener in openers {
            let opened = opener.join().map_err(|_| "a thread has panicked")?;
            all.extend(opened?);
        }
        Ok(all)
    })
}

/// Sends messages until the window is full. The client does not receive the replies, so the server
/// stops receiving from this connection. Returns the number of messages sent.
fn fill_window(client: &Endpoint, size: usize) -> Result<u64> {
    let message = vec![0; size];
    for sent in 0.. {
        match client.send_timeout(&message, REFUSED) {
            Ok(()) => {}
            Err(Error::TimedOut) => return Ok(sent),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(0)
}

/// Sends one message on each connection, and checks the replies.
fn ask_all(clients: &[Endpoint], group: &Group, round: u64, size: usize) -> Result<()> {
    let mut message = vec![0; size];
    let mut numbers = HashMap::new();
    for client in clients {
        let number = round << 32 | client.info().id;
        fill(number, &mut message);
        client.send(&message)?;
        numbers.insert(client.info().id, number);
    }
    while !numbers.is_empty() {
        let (key, completion) = group.completions().recv_timeout(TIME_LIMIT)?;
        match completion {
            Completion::Received(answer) => {
                let number = numbers
                    .remove(&key)
                    .ok_or("received a reply on a connection that expects no reply")?;
                check(number, &answer)?;
            }
            other => return Err(format!("connection {key}: {other:?}").into()),
        }
    }
    Ok(())
}
