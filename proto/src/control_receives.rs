//! The receives that are posted for control frames.
//!
//! # Why [`CONTROL_RECEIVES`] suffice
//!
//! Control frames take no credit, so receives are posted for them beside those of the window, and
//! each is posted again as soon as its frame is processed, before anything is sent that the frame
//! permits. So the question is how many control frames can be unprocessed at the receiver at once:
//!
//! * **Grants: 2.** A grant frame of its own is sent when the limit has grown by at least half the
//!   window, rounded up, since it was last announced. Let g1 < g2 < g3 be the limits of three such
//!   frames in a row: g3 ≥ g1 + window. The limit is at most the number of frames released plus the
//!   window, so when g3 is sent frame number g1 has been received. The peer may send that frame
//!   only after it has processed a limit of at least g1, and the first frame that carried one was
//!   the first of the three. So the first is processed before the third is sent. A grant frame is
//!   also sent, however small, when the peer has used up its credit. Then it has sent the frame
//!   whose number was last announced, so it has processed every grant before: such a frame finds
//!   none unprocessed, and may stand for any of the three.
//! * **Grants that report large messages taken: [`LARGE_IN_FLIGHT`]**, because each reports at
//!   least one more, and no more than that are in flight and not reported.
//! * **Ping: 1**, because the next one is sent after the pong of the one before.
//! * **Pong: 1**, because there is one ping at a time.
//! * **Finish: 1**, **Close: 1**, **CloseAck: 1**, and **Abort or Failure: 1**, because each is
//!   sent once, and of the last two only one.

use super::outbound::LARGE_IN_FLIGHT;

/// The receives that are posted for control frames beside those of the window.
pub const CONTROL_RECEIVES: u32 = 8 + LARGE_IN_FLIGHT;
