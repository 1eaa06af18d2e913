//! Tests in which a connection communicates with another connection.
//!
//! [`pair`] connects two connections with a simulated wire and a simulated connection manager, and
//! [`actions`] adds the actions of their applications, processes and devices. [`establishing`],
//! [`greeting`], [`refusing`], [`unusable_hello`], [`transferring`], [`control_messages`],
//! [`fragments`], [`large`], [`streaming`], [`finishing`], [`living`], [`suspecting`], [`memory`],
//! [`ending`], [`crossing`] and [`hostile`] test fixed sequences of events. [`random`] tests random
//! sequences, [`exhaustive`] tests every order of a few events, and [`table`] checks each input in
//! each state.

mod actions;
mod control_messages;
mod crossing;
mod ending;
mod establishing;
mod exhaustive;
mod finishing;
mod fragments;
mod greeting;
mod hostile;
mod large;
mod living;
mod memory;
mod pair;
mod random;
mod refusing;
mod side;
mod streaming;
mod suspecting;
mod table;
mod transferring;
mod unusable_hello;

use std::time::Instant;

use self::pair::Pair;
use super::Connection;
use crate::{CloseReason, CmInput, CmOp, Event, Output, Params, hello::Hello, testing::params};

/// Creates a pair whose connection is established.
fn pair() -> Pair {
    Pair::established(params(), params())
}

/// Creates an active connection, and lets it begin to connect.
fn started(params: Params, nonce: u64, data: &[u8], now: Instant) -> Connection {
    let mut conn = Connection::connect(params, nonce, data, now);
    assert!(matches!(
        conn.poll_output(),
        Some(Output::Cm(CmOp::AwaitSetupSlot))
    ));
    conn.begin_setup(now);
    conn
}

fn last_event(conn: &mut Connection) -> Option<Event> {
    std::iter::from_fn(|| conn.poll_output())
        .filter_map(|output| {
            if let Output::Event(event) = output {
                Some(event)
            } else {
                None
            }
        })
        .last()
}

fn ops(conn: &mut Connection) -> Vec<CmOp> {
    std::iter::from_fn(|| conn.poll_output())
        .filter_map(|output| {
            if let Output::Cm(op) = output {
                Some(op)
            } else {
                None
            }
        })
        .collect()
}

fn end(conn: &mut Connection) -> CloseReason {
    match last_event(conn) {
        Some(Event::Disconnected {
            reason,
            delivered: false,
        }) => reason,
        other => panic!("{other:?}"),
    }
}

fn hello(version: u8, window: u16) -> Hello {
    Hello {
        version,
        features: 0,
        window,
        credits: 0,
        eager_size: 64,
        max_message: 64,
        keepalive_ms: 0,
        engine: 1,
    }
}

fn connecting(now: Instant) -> Connection {
    let mut conn = started(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    conn.handle_cm_event(CmInput::RouteResolved, now);
    conn
}
