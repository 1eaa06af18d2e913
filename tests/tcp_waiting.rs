//! Tests that blocking calls over TCP return at their deadline, even if the peer sends very slowly.

#[path = "waiting/lateness.rs"]
mod lateness;
#[path = "waiting/matrix.rs"]
mod matrix;
#[path = "waiting/peer.rs"]
mod peer;
#[allow(dead_code)]
#[path = "waiting/stage.rs"]
mod stage;

use matrix::{Peers, assert_in_time};
use peer::{SlowPeers, State};

#[test]
fn returns_in_time_from_every_wait() {
    let states = State::ALL.map(|state| Box::new(SlowPeers::new(state)) as Box<dyn Peers>);
    assert_in_time(states.into());
}
