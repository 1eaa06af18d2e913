//! An echo server that serves each client in its own thread. This is the simplest design.
//!
//! If a client does not receive its replies, the server's thread for this client blocks in `send`.
//! The message that this thread echoes and all later messages stay in their receive buffers. When
//! these messages fill the client's window, the client waits, too.
//!
//! `echo_group` and `echo_epoll` are the same server with one thread. The client is `echo_clients`.
//! On SIGUSR1, the server prints statistics. After SIGINT or SIGTERM, the server waits for the
//! clients to finish, up to the time limit `--patience`.

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

/// The stack size of each thread in bytes. It is much smaller than Rust's default of 2 MiB, because
/// an echo thread needs little stack.
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
