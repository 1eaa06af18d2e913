//! How many receives are posted for control frames.
//!
//! # Why [`CONTROL_RECEIVES`] are enough
//!
//! Control frames take no credit, so receives are posted for them beside the window's, and each is posted again as soon as its frame is
//! looked at, before anything is sent that the frame allows. So the question is how many control frames can be unseen by the
//! receiver at once:
//!
//! * **Grants: 2.** A grant frame of its own is sent when the limit has grown by at least half the window, rounded up, since it was
//!   last announced. Let g1 < g2 < g3 be the limits of three such frames in a row: g3 ≥ g1 + window. The limit is at most the number
//!   of frames consumed plus the window, so when g3 is sent frame number g1 has been consumed. The peer may send that frame only
//!   after it has seen a limit of at least g1, and the first frame that carried one was the first of the three. So the first is seen
//!   before the third is sent.
//!   A grant frame is also sent, however small, when the peer has used up what it was told of. Then it has sent the frame whose number was
//!   last announced, so it has seen every grant before: such a frame finds none unseen, and may stand for any of the three.
//! * **Grants that tell of large messages taken: [`LARGE_IN_FLIGHT`]**, because each tells of at least one more, and the peer has no more
//!   than that on their way of which it was not told.
//! * **Ping: 1**, because there is no second before the first one's pong.
//! * **Pong: 1**, because the peer sends its next ping after it has seen the pong to the one before.
//! * **Close: 1**, **CloseAck: 1**, and **Abort or Failure: 1**, because each is sent once, and of
//!   the last two only one.

use super::outbound::LARGE_IN_FLIGHT;

/// Receives that are posted for control frames beside the window's. See the top of this file.
pub(crate) const CONTROL_RECEIVES: u32 = 7 + LARGE_IN_FLIGHT;
