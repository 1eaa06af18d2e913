//! Mistakes of a wire, a device, a driver or a library. The search must detect each of them.

use super::world::World;
use crate::{
    connection::tests::{
        pair::B,
        side::{Completion, InFlight, Kept, Side, WorkKind},
    },
    frame::{Control, Header, Kind},
};

/// A mistake of one side. All mistakes except `AcknowledgeClose` occur only once.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Mistake {
    /// The wire duplicates the side's next frame.
    Repeat,
    /// The wire loses the side's next frame, but the side's device reports the frame as sent.
    Lose,
    /// The side's device reports the next frame as sent before the frame arrives.
    AcknowledgeEarly,
    /// The side's library grants one credit too many.
    GrantMore,
    /// B's library sends its CloseAck directly after its own Close, even if A's Close has not
    /// arrived.
    AcknowledgeClose,
    /// The side's library reports a large message as taken before the message is read.
    TakeEarly,
    /// The side's drain markers overtake other completions.
    DrainEarly,
    /// The side's driver loses the completion of a send.
    LoseCompletion,
    /// The side's driver does not repost the receive of a released message.
    KeepReceive,
    /// The side's library does not report `Writable` after a refused send.
    ForgetWritable,
}

impl Mistake {
    /// Returns whether the side `at` can make this mistake now.
    pub(super) fn is_possible(self, world: &World, at: usize) -> bool {
        let side = &world.pair.sides[at];
        let next = side.sending.front();
        let next_is_read = next.is_some_and(|next| matches!(next.what, WorkKind::Read(_)));
        if side.ended.is_some() || !side.established {
            return false;
        }
        match self {
            Self::Repeat | Self::Lose => next.is_some() && !next_is_read,
            Self::AcknowledgeEarly => {
                side.unacknowledged.is_empty() && next.is_some() && !next_is_read
            }
            Self::GrantMore => next_header(side).is_some(),
            // This mistake is repeated after every transition: see [`repeat`](Self::repeat).
            Self::AcknowledgeClose => false,
            Self::TakeEarly => next_header(side).is_some() && !side.reads.is_empty(),
            Self::DrainEarly => {
                let is_marker = |it: &Completion| matches!(it, Completion::Drained(_));
                side.cq.iter().any(is_marker) && !side.cq.front().is_some_and(is_marker)
            }
            Self::LoseCompletion => matches!(side.cq.front(), Some(Completion::Sent { .. })),
            Self::KeepReceive => matches!(side.kept.front(), Some(Kept::Buffer(_))),
            Self::ForgetWritable => side.conn.is_blocked(),
        }
    }

    /// Makes the mistake `AcknowledgeClose`. Must be called after each transition. Has no effect if
    /// `self` is a different mistake: [`make`](Self::make) makes the other mistakes, each once.
    pub(super) fn repeat(self, world: &mut World) {
        if self != Self::AcknowledgeClose {
            return;
        }
        let kind = |sent: &InFlight| header(sent).map(|header| header.kind);
        let is_real = |sent: &&mut InFlight| sent.slot != u32::MAX;
        for sent in world.pair.sides[B].sending.iter_mut().filter(is_real) {
            if kind(sent) == Some(Kind::Control(Control::CloseAck)) {
                change_header(sent, |header| header.kind = Kind::Control(Control::Grant));
            }
        }
        if let Some(last) = world.pair.sides[B].sending.back()
            && kind(last) == Some(Kind::Control(Control::Close))
        {
            let mut header = header(last).expect("the newest send is a frame");
            header.kind = Kind::Control(Control::CloseAck);
            world.pair.forge(B, &header.emit());
        }
    }

    /// Makes the mistake once, at the side `at`.
    pub(super) fn make(self, world: &mut World, at: usize) {
        let pair = &mut world.pair;
        let side = &mut pair.sides[at];
        match self {
            Self::Repeat => {
                let copy = InFlight {
                    signalled: false,
                    ..side.sending[0].clone()
                };
                side.sending.push_front(copy);
            }
            Self::Lose => {
                let lost = side.sending.pop_front();
                side.unacknowledged.extend(lost);
            }
            Self::AcknowledgeEarly => {
                let next = &mut side.sending[0];
                if std::mem::take(&mut next.signalled) {
                    let slot = next.slot;
                    side.cq.push_back(Completion::Sent { slot });
                }
            }
            Self::GrantMore => change_header(&mut side.sending[0], |header| header.grant += 1),
            Self::TakeEarly => change_header(&mut side.sending[0], |header| header.arg += 1),
            Self::AcknowledgeClose => {}
            Self::DrainEarly => {
                let is_marker = |it: &Completion| matches!(it, Completion::Drained(_));
                let (markers, others): (Vec<_>, Vec<_>) = side.cq.drain(..).partition(is_marker);
                side.cq.extend(markers.into_iter().chain(others));
            }
            Self::LoseCompletion => {
                side.cq.pop_front();
            }
            Self::KeepReceive => {
                side.kept.pop_front();
                side.conn.release(pair.now);
                pair.perform_outputs(at);
            }
            Self::ForgetWritable => {
                let (open, _) = side.conn.open().expect("the connection is established");
                open.transfer.take_blocked();
            }
        }
    }
}

/// Returns the header of a frame in flight.
fn header(sent: &InFlight) -> Option<Header> {
    match &sent.what {
        WorkKind::Frame(frame) => Header::parse(frame).ok(),
        WorkKind::Read(_) | WorkKind::Nudge => None,
    }
}

fn next_header(side: &Side) -> Option<Header> {
    side.sending.front().and_then(header)
}

/// Changes the header of a frame in flight.
fn change_header(sent: &mut InFlight, change: impl FnOnce(&mut Header)) {
    if let Some(mut header) = header(sent)
        && let WorkKind::Frame(frame) = &mut sent.what
    {
        change(&mut header);
        frame.splice(..header.emit().len(), header.emit());
    }
}
