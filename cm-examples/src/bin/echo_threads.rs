//! An echo server that serves each client in its own thread. This is the simplest design.
//!
//! A client that does not receive its replies blocks its thread in `send`. The message being echoed
//! and the messages after it stay in their receive buffers. When they fill the client's window, the
//! client waits, too.
//!
//! `echo_group` and `echo_epoll` are the same server with one thread. The client is `echo_clients`.
//! SIGUSR1 prints statistics. After SIGINT or SIGTERM, the server waits until the clients finish.

use std::{process::ExitCode, thread};

use clap::Parser;
use cm_examples::{
    Result, end, init_debug,
    service::{Options, Service, config_for_threads},
};
use rdmsg::Endpoint;

#[derive(Parser)]
#[command(version, about = "An echo server with a thread for each client.")]
struct Program {
    #[command(flatten)]
    options: Options,
}

/// The stack size of each thread in bytes. An echo thread needs much less.
const STACK: usize = 128 << 10;

fn main() -> ExitCode {
    let Program { options } = Program::parse();
    init_debug(options.debug);
    end("echo_threads", serve(&options))
}

fn serve(options: &Options) -> Result<()> {
    let service = Service::start(options, config_for_threads())?;
    for endpoint in &service.listener {
        let endpoint = endpoint?;
        thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || echo(&endpoint))?;
    }
    service.finish()
}

fn echo(endpoint: &Endpoint) {
    while let Ok(message) = endpoint.recv() {
        if endpoint.send(&message).is_err() {
            break;
        }
    }
}
