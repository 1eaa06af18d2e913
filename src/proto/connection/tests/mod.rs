//! A connection is tested against another one: [`pair`] puts two of them on a simulated wire and a simulated connection manager,
//! [`establishing`], [`transferring`], [`large`], [`living`], [`memory`], [`ending`] and [`hostile`] play named scenes on it, [`random`] plays anything, and [`table`] looks at
//! each event in each state.

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

use std::time::Duration;

use self::pair::Pair;
use crate::proto::Params;

fn params() -> Params {
    Params {
        window: 4,
        shared: false,
        eager_size: 64,
        max_message: 8 << 20,
        large_memory: 4 << 20,
        longest_piece: 1 << 20,
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
