//! The reasons why a send must wait.

use super::{Connection, State};
use crate::Stall;

impl Connection {
    /// Returns the reason why a refused send still waits: see [`is_blocked`](Self::is_blocked).
    pub fn stall(&self) -> Option<Stall> {
        let State::Open(open) = &self.state else {
            return None;
        };
        let transfer = &open.transfer;
        if !transfer.is_blocked() {
            return None;
        }
        Some(if transfer.send_credit.available() == 0 {
            let window = self.negotiated().map_or(0, |both| both.send_window);
            Stall::Window { window }
        } else if !transfer.ring.has_room_for_data() || transfer.outbound.untaken() == 0 {
            Stall::SendRing
        } else {
            Stall::Large {
                messages: transfer.outbound.untaken(),
                bytes: transfer.outbound.bytes(),
            }
        })
    }
}
