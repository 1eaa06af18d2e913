//! An echo server for many clients with a thread for each: the simplest way.
//!
//! A client that does not receive its answers blocks its own thread in `send`. The message that is
//! being answered and the messages behind it stay in their receive buffers. So they never occupy
//! more than the client's window, and then the client waits.
//!
//! `echo_group` and `echo_epoll` do the same with one thread; `echo_clients` is the counterpart.
//! SIGUSR1 prints statistics; SIGINT and SIGTERM let the clients finish.

use std::{process::ExitCode, thread};

use clap::Parser;
use cm_examples::{
    Result, end, init_debug,
    service::{Options, Service, config_for_threads},
};
use rdmsg::Endpoint;

#[derive(Parser)]
#[command(version, about = "Echoes messages, with a thread for each client.")]
struct Program {
    #[command(flatten)]
    options: Options,
}

/// A generous stack size for threads that only echo.
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
