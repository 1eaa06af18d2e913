//! Models the two sides of a session, their connections, and all possible steps.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use super::scope::{A, Mistake, P, Scope};
use crate::session::{ResumeRefused, Session, Unconfirmed};

/// A step of a side or of the network. Each `usize` is the index of a side or of a request. Each
/// `u32` is the epoch of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// The side sends its next new message, or resends a message.
    Send(usize),
    /// The side receives the next message of the connection.
    Take(usize, u32),
    /// The side finishes reading a large message.
    Read(usize),
    /// The peer receives a report from the side: its grants, and its count of large messages taken.
    Report(usize),
    /// The connection breaks. The array contains, for each side, the number of its messages in
    /// flight that still arrive.
    Cut(u32, [usize; 2]),
    /// The side gives up its connection or its attempt.
    Leave(usize),
    Dial,
    /// The request arrives at the passive side.
    Request(usize),
    LoseRequest(usize),
    /// The network duplicates the request.
    RepeatRequest(usize),
    /// Another host that knows the session's identity sends a request to resume the session,
    /// although both sides still use their connection.
    ForgedRequest,
    /// The side considers the connection of its attempt established.
    Establish(usize),
    /// The active side sends a request over another path, to check whether the path works. The
    /// request has the epoch of the working connection.
    Trial,
}

/// The state of a side's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Link {
    Working(u32),
    Idle,
    Attempt(u32),
}

impl Link {
    fn epoch(self) -> Option<u32> {
        match self {
            Self::Working(epoch) | Self::Attempt(epoch) => Some(epoch),
            Self::Idle => None,
        }
    }
}

/// The messages in one direction of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flow {
    wire: VecDeque<u8>,
    /// A large message that the receiver has not read completely, and the messages behind it.
    waiting: VecDeque<u8>,
    /// The number of messages delivered over this connection.
    delivered: u8,
    /// The number of credits that the sender has.
    available: u8,
    /// The number of credits that the receiver has freed but not reported yet.
    returned: u8,
    /// The number of large messages that the sender considers unread.
    untaken: u8,
    /// The number of large messages that the receiver has read but not reported yet.
    taken: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Conn {
    is_whole: bool,
    /// Whether each side still uses the connection.
    open: [bool; 2],
    /// The messages from each side.
    flows: [Flow; 2],
    /// The numbers of received messages that are stated in the request and in the reply.
    received: [u32; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    session: Session<u8>,
    link: Link,
    /// The number of messages that the application has sent.
    sent: u8,
    /// The number of messages that the application has received.
    delivered: u8,
    /// The epoch of a connection that still delivers messages to this side, although the side has
    /// already stated the number of messages received. This happens only with the mistake
    /// `CountBeforeFence`.
    late: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    sides: [Side; 2],
    /// The connections by epoch. The session's first connection has epoch 0.
    conns: BTreeMap<u32, Conn>,
    /// The requests in flight. Each consists of the epoch and the number of messages that the
    /// active side has received.
    requests: Vec<(u32, u32)>,
    cuts: u8,
    suspicions: u8,
    trials: u8,
    forged_requests: u8,
    /// Whether the passive side has refused a request because the passive side's connection seemed
    /// to work. When the next request arrives, the passive side gives up this connection if the
    /// active side does not answer Pings over it.
    is_doubted: bool,
}

/// The maximum epoch. The search reports a violation if the active side needs more attempts to
/// resume the session.
const MOST_EPOCHS: u32 = 16;

type Judged = Result<(), &'static str>;

impl Flow {
    /// Returns the bounds on unconfirmed messages that the driver passes to the session.
    fn known(&self, scope: &Scope) -> Unconfirmed {
        let (messages, large) = match scope.mistake {
            Some(Mistake::TrustDevice) => (0, 0),
            _ => (scope.window - self.available, self.untaken),
        };
        let max_messages = match scope.mistake {
            Some(Mistake::KeepWindow) => scope.window.into(),
            _ => u32::from(scope.window) + scope.most_large(),
        };
        Unconfirmed {
            messages: messages.into(),
            large: large.into(),
            max_messages,
        }
    }
}

impl Conn {
    fn new(scope: &Scope, open: [bool; 2], received: [u32; 2]) -> Self {
        let flow = Flow {
            wire: VecDeque::new(),
            waiting: VecDeque::new(),
            delivered: 0,
            available: scope.window,
            returned: 0,
            untaken: 0,
            taken: 0,
        };
        Self {
            is_whole: true,
            open,
            flows: [flow.clone(), flow],
            received,
        }
    }
}

impl Side {
    fn deliver(&mut self, message: u8) -> Judged {
        if message < self.delivered {
            return Err("a message is delivered twice");
        }
        if message > self.delivered {
            return Err("a message is missing");
        }
        self.delivered += 1;
        Ok(())
    }
}

impl World {
    pub(super) fn new(scope: &Scope) -> Self {
        let session = Session {
            front: scope.start,
            received: scope.start,
            ..Session::default()
        };
        let side = Side {
            session,
            link: Link::Working(0),
            sent: 0,
            delivered: 0,
            late: None,
        };
        let first = Conn::new(scope, [true; 2], [scope.start; 2]);
        Self {
            sides: [side.clone(), side],
            conns: BTreeMap::from([(0, first)]),
            requests: Vec::new(),
            cuts: scope.cuts,
            suspicions: scope.suspicions,
            trials: scope.trials,
            forged_requests: scope.forged_requests,
            is_doubted: false,
        }
    }

    /// Returns whether all messages have been delivered.
    pub(super) fn is_done(&self, scope: &Scope) -> bool {
        [A, P]
            .into_iter()
            .all(|at| self.sides[at].delivered == scope.messages[1 - at])
    }

    /// Returns whether the side's connection or attempt with this epoch has failed or will fail.
    fn is_hopeless(&self, at: usize, epoch: u32) -> bool {
        match self.conns.get(&epoch) {
            Some(conn) => !conn.is_whole || !conn.open[1 - at],
            None => !self.requests.iter().any(|request| request.0 == epoch),
        }
    }

    /// Returns the epoch of the connection over which the side can send a message now. Returns
    /// `None` if the side cannot send.
    fn sends_on(&self, at: usize, scope: &Scope) -> Option<u32> {
        let side = &self.sides[at];
        let epoch = match side.link {
            Link::Working(epoch) => epoch,
            Link::Attempt(epoch) if scope.mistake == Some(Mistake::SendBeforeCount) => epoch,
            Link::Attempt(_) | Link::Idle => return None,
        };
        let has_room = self.conns.get(&epoch)?.flows[at].available > 0;
        let has_next = side.session.has_messages_to_resend() || side.sent < scope.messages[at];
        (has_room && has_next).then_some(epoch)
    }

    /// Returns all steps that are possible now.
    pub(super) fn acts(&self, scope: &Scope) -> Vec<Act> {
        let mut acts = Vec::new();
        for at in [A, P] {
            let side = &self.sides[at];
            if self.sends_on(at, scope).is_some() {
                acts.push(Act::Send(at));
            }
            for (&epoch, conn) in &self.conns {
                let flow = &conn.flows[1 - at];
                let is_working = side.link == Link::Working(epoch);
                if (is_working || side.late == Some(epoch)) && !flow.wire.is_empty() {
                    acts.push(Act::Take(at, epoch));
                }
                let is_connected = is_working && conn.is_whole && conn.open[1 - at];
                if is_connected && !flow.waiting.is_empty() {
                    acts.push(Act::Read(at));
                }
                let peer_works = self.sides[1 - at].link == Link::Working(epoch);
                if is_connected && peer_works && flow.returned + flow.taken > 0 {
                    acts.push(Act::Report(at));
                }
                if at == A && conn.is_whole && self.cuts > 0 {
                    let [most, most_back] = [A, P].map(|from| conn.flows[from].wire.len());
                    for arrive in 0..=most {
                        let back = 0..=most_back;
                        acts.extend(back.map(|back| Act::Cut(epoch, [arrive, back])));
                    }
                }
            }
            if let (A, Link::Working(_), 1..) = (at, side.link, self.trials) {
                acts.push(Act::Trial);
            }
            match side.link.epoch() {
                None if at == A && side.session.epoch < MOST_EPOCHS => acts.push(Act::Dial),
                Some(epoch) if self.suspicions > 0 || self.is_hopeless(at, epoch) => {
                    acts.push(Act::Leave(at));
                }
                None | Some(_) => {}
            }
            if let Link::Attempt(epoch) = side.link
                && let Some(conn) = self.conns.get(&epoch)
                && (at == P || conn.is_whole)
            {
                acts.push(Act::Establish(at));
            }
        }
        for index in 0..self.requests.len() {
            acts.push(Act::Request(index));
            if self.cuts > 0 {
                acts.extend([Act::LoseRequest(index), Act::RepeatRequest(index)]);
            }
        }
        if self.forged_requests > 0 && self.answers() {
            acts.push(Act::ForgedRequest);
        }
        acts
    }

    /// Returns whether the active side would answer a Ping over the passive side's connection.
    fn answers(&self) -> bool {
        let [active, passive] = [A, P].map(|at| self.sides[at].link);
        match passive {
            Link::Working(epoch) => active == passive && !self.is_hopeless(A, epoch),
            Link::Idle | Link::Attempt(_) => false,
        }
    }

    /// Performs a step, and checks the resulting state.
    pub(super) fn apply(&mut self, act: Act, scope: &Scope) -> Judged {
        match act {
            Act::Send(at) => self.send(at, scope),
            Act::Take(at, epoch) => self.take(at, epoch, scope)?,
            Act::Read(at) => self.read(at, scope)?,
            Act::Report(at) => {
                if let Some(conn) = self.conn_of(at) {
                    let flow = &mut conn.flows[1 - at];
                    flow.available += mem::take(&mut flow.returned);
                    flow.untaken -= mem::take(&mut flow.taken);
                }
            }
            Act::Cut(epoch, arrive) => {
                self.cuts -= 1;
                if let Some(conn) = self.conns.get_mut(&epoch) {
                    conn.is_whole = false;
                    for (flow, arrive) in conn.flows.iter_mut().zip(arrive) {
                        flow.wire.truncate(arrive);
                    }
                }
            }
            Act::Leave(at) => {
                if let Some(epoch) = self.sides[at].link.epoch() {
                    self.suspicions -= u8::from(!self.is_hopeless(at, epoch));
                }
                self.leave(at, scope);
            }
            Act::Dial => {
                let side = &mut self.sides[A];
                let epoch = side.session.begin_attempt();
                side.link = Link::Attempt(epoch);
                self.requests.push((epoch, side.session.received()));
            }
            Act::Trial => {
                self.trials -= 1;
                let session = &self.sides[A].session;
                self.requests.push((session.epoch(), session.received()));
            }
            Act::Request(index) => {
                let (epoch, received) = self.requests.remove(index);
                self.answer(epoch, received, scope)?;
            }
            Act::ForgedRequest => {
                self.forged_requests -= 1;
                let received = self.sides[P].session.front;
                self.answer(u32::MAX, received, scope)?;
            }
            Act::LoseRequest(index) => {
                self.cuts -= 1;
                self.requests.remove(index);
            }
            Act::RepeatRequest(index) => {
                self.cuts -= 1;
                self.requests.push(self.requests[index]);
            }
            Act::Establish(at) => self.establish(at, scope)?,
        }
        // Connections that neither side uses have no effect, so the model removes them.
        let sides = &self.sides;
        self.conns.retain(|&epoch, conn| {
            let uses = |side: &Side| side.link.epoch() == Some(epoch);
            let is_late =
                |at: usize| sides[at].late == Some(epoch) && !conn.flows[1 - at].wire.is_empty();
            sides.iter().any(uses) || is_late(A) || is_late(P)
        });
        self.judge(scope)
    }

    fn conn_of(&mut self, at: usize) -> Option<&mut Conn> {
        let epoch = self.sides[at].link.epoch()?;
        self.conns.get_mut(&epoch)
    }

    fn send(&mut self, at: usize, scope: &Scope) {
        let Some(epoch) = self.sends_on(at, scope) else {
            return;
        };
        let side = &mut self.sides[at];
        let message = side.session.next_to_resend().unwrap_or_else(|| {
            side.sent += 1;
            side.sent - 1
        });
        let is_large = scope.is_large(at, message);
        if let Some(conn) = self.conns.get_mut(&epoch) {
            let flow = &mut conn.flows[at];
            flow.available -= 1;
            flow.untaken += u8::from(is_large);
            side.session
                .keep(is_large, || flow.known(scope), |kept| *kept = message);
            let is_late = self.sides[1 - at].late == Some(epoch);
            if conn.is_whole && (conn.open[1 - at] || is_late) {
                flow.wire.push_back(message);
            }
        }
    }

    fn take(&mut self, at: usize, epoch: u32, scope: &Scope) -> Judged {
        let Some(conn) = self.conns.get_mut(&epoch) else {
            return Ok(());
        };
        let flow = &mut conn.flows[1 - at];
        let Some(message) = flow.wire.pop_front() else {
            return Ok(());
        };
        let is_large = scope.is_large(1 - at, message);
        // The receiver returns the credit of a Rendezvous immediately, before it has read the large
        // message.
        flow.returned += u8::from(is_large);
        if is_large || !flow.waiting.is_empty() {
            flow.waiting.push_back(message);
            return Ok(());
        }
        flow.returned += 1;
        flow.delivered += 1;
        self.sides[at].deliver(message)
    }

    fn read(&mut self, at: usize, scope: &Scope) -> Judged {
        let Some(conn) = self.conn_of(at) else {
            return Ok(());
        };
        let flow = &mut conn.flows[1 - at];
        let behind = flow.waiting.iter().skip(1);
        let small = behind.take_while(|message| !scope.is_large(1 - at, **message));
        let count = 1 + small.count();
        flow.taken += 1;
        flow.returned += count as u8 - 1;
        flow.delivered += count as u8;
        let mut whole: Vec<_> = flow.waiting.drain(..count).collect();
        let side = &mut self.sides[at];
        whole
            .drain(..)
            .try_for_each(|message| side.deliver(message))
    }

    /// Makes a side give up its connection or attempt. The connection then delivers nothing more to
    /// this side, except with the mistake `CountBeforeFence`.
    fn leave(&mut self, at: usize, scope: &Scope) {
        self.is_doubted &= at != P;
        let side = &mut self.sides[at];
        let old = mem::replace(&mut side.link, Link::Idle);
        let is_working = matches!(old, Link::Working(_));
        let Some((epoch, conn)) = old
            .epoch()
            .and_then(|epoch| Some((epoch, self.conns.get_mut(&epoch)?)))
        else {
            return;
        };
        conn.open[at] = false;
        if is_working {
            let known = conn.flows[at].known(scope);
            let delivered = conn.flows[1 - at].delivered.into();
            side.session.suspend(delivered, known);
        }
        if is_working && scope.mistake == Some(Mistake::CountBeforeFence(at)) {
            side.late = Some(epoch);
        } else {
            conn.flows[1 - at].wire.clear();
        }
        conn.flows[1 - at].waiting.clear();
    }

    /// Makes the passive side process a request to resume the session.
    fn answer(&mut self, epoch: u32, received: u32, scope: &Scope) -> Judged {
        let mut trusts = scope.mistake == Some(Mistake::TrustRequest);
        match self.sides[P].session.check_attempt(epoch, received) {
            Err(ResumeRefused::Stale) if scope.mistake != Some(Mistake::AcceptOldRequest) => {
                return Ok(());
            }
            Err(ResumeRefused::Impossible(_)) => return Err("a correct count is refused"),
            Err(ResumeRefused::Stale) => trusts = true,
            Ok(()) => {}
        }
        let is_working = matches!(self.sides[P].link, Link::Working(_));
        if is_working && !trusts && (self.answers() || !self.is_doubted) {
            self.is_doubted = true;
            if scope.mistake == Some(Mistake::TakeRefusedEpoch) {
                self.sides[P].session.take_attempt(epoch);
            }
            return Ok(());
        }
        if self.answers() {
            return Err("a request ends a working connection");
        }
        self.sides[P].session.take_attempt(epoch);
        self.leave(P, scope);
        let side = &mut self.sides[P];
        let counts = [received, side.session.received()];
        side.link = Link::Attempt(epoch);
        let open = [self.sides[A].link == Link::Attempt(epoch), true];
        self.conns.insert(epoch, Conn::new(scope, open, counts));
        Ok(())
    }

    fn establish(&mut self, at: usize, scope: &Scope) -> Judged {
        let Some(conn) = self.conn_of(at) else {
            return Ok(());
        };
        let mut received = conn.received[1 - at];
        let side = &mut self.sides[at];
        if scope.mistake == Some(Mistake::RepeatEverything) {
            received = side.session.front;
        }
        if let Link::Attempt(epoch) = side.link {
            side.link = Link::Working(epoch);
        }
        if scope.mistake == Some(Mistake::SendBeforeCount) && side.session.kept() > 0 {
            // With the mistake `SendBeforeCount`, the side has already sent messages when the
            // peer's count arrives. The side can then no longer apply the count.
            return Ok(());
        }
        let resumed = side.session.resume(received);
        resumed
            .map(drop)
            .map_err(|_| "a correct count is a violation")
    }

    /// Checks that each side keeps all messages that the peer has not received.
    fn judge(&self, scope: &Scope) -> Judged {
        for at in [A, P] {
            let Side { session, .. } = &self.sides[at];
            let kept: Vec<_> = session
                .kept_indices()
                .map(|at| session.ring[at].message)
                .collect();
            let forgotten = session.kept() - kept.len() as u32;
            let front = session.front.wrapping_add(forgotten);
            let first = front.wrapping_sub(scope.start);
            if first > self.sides[1 - at].delivered.into() {
                return Err("an undelivered message is discarded");
            }
            let all = kept
                .into_iter()
                .rev()
                .chain(session.to_resend.iter().map(|kept| kept.message));
            if !all.eq(first as u8..self.sides[at].sent) {
                return Err("the kept messages are not consecutive");
            }
        }
        Ok(())
    }
}
