//! Tests of clients that continue when their server is restarted.

use nix::sys::signal::Signal;
use rdmsg::Transport;

use super::stage::{Program, TIME_LIMIT, ip_and_transport};

const ORDERS: &str = env!("CARGO_BIN_EXE_orders");

/// Sends SIGTERM to a program, and returns the number that follows `beginning` in its output.
fn end(mut program: Program, beginning: &str) -> u64 {
    program.signal(Signal::SIGTERM);
    let count = program.line(beginning).parse().unwrap();
    let ended = program.0.finish(TIME_LIMIT).unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
    assert!(!ended.output.contains("did not"), "{}", ended.output);
    count
}

#[test]
fn each_order_is_executed_once_in_20_restarts() {
    let (mut server, address) = Program::serve(ORDERS, &["serve", "ADDR"]);
    // The prefix of the address selects the transport. Without a prefix, clients could fall back to
    // TCP.
    let servers = match ip_and_transport().1 {
        Transport::Rdma => format!("rdma://{address}"),
        _ => format!("tcp://{address}"),
    };
    let clients = Program::start(ORDERS, &["place", &servers], address);
    let mut executed = Vec::new();
    for _ in 0..20 {
        server.line("executes orders");
        let mut next = Program::start(ORDERS, &["serve", "ADDR"], address);
        executed.push(end(server, "executed "));
        next.line("listening on ");
        server = next;
    }
    server.line("executes orders");
    let answered = end(clients, "answered ");
    executed.push(end(server, "executed "));
    assert_eq!(answered, executed.iter().sum::<u64>(), "{executed:?}");
}
