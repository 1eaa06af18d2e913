//! A connection is tested against another one: [`pair`] puts two of them on a simulated wire and a
//! simulated connection manager, [`establishing`], [`transferring`], [`large`], [`living`],
//! [`memory`], [`ending`] and [`hostile`] play named scenes on it, [`random`] plays anything, and
//! [`table`] looks at each event in each state.

mod ending;
mod establishing;
mod hostile;
mod large;
mod living;
mod memory;
mod pair;
mod random;
mod side;
mod table;
mod transferring;

use std::time::{Duration, Instant};

use self::pair::Pair;
use super::Connection;
use crate::proto::{CmOp, Output, Params};

fn params() -> Params {
    Params {
        window: 4,
        shared: false,
        eager_size: 64,
        max_message: 8 << 20,
        large_memory: 4 << 20,
        longest_chunk: 1 << 20,
        read_timeout: Duration::from_secs(30),
        send_slots: 4,
        connect_timeout: Duration::from_secs(5),
        resolve_timeout: Duration::from_secs(2),
        retry_refused: false,
        close_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(2),
        keepalive_interval: None,
        keepalive_timeout: Duration::from_secs(3),
        engine: 0,
    }
}

/// Two sides between which messages flow.
fn pair() -> Pair {
    Pair::established(params(), params())
}

/// A connection whose turn to connect came at once.
fn started(params: Params, nonce: u64, data: &[u8], now: Instant) -> Connection {
    let mut conn = Connection::connect(params, nonce, data, now);
    assert!(matches!(
        conn.poll_output(),
        Some(Output::Cm(CmOp::AwaitTurn))
    ));
    conn.take_turn(now);
    conn
}
