//! A connection's life, in any order: what the application, the peer, the connection manager, the
//! device and the clock do.

use std::time::{Duration, Instant};

use arbitrary::Arbitrary;

use crate::{
    device::Device,
    proto::{CloseReason, CmCall, CmInput, Connection, Params},
    sizes::{BOTH_WAYS, hello, params},
    status::{CmStatus, RejectReason, WcStatus},
};

/// What happens, and to whom.
#[derive(Debug, Arbitrary)]
pub struct Operations {
    ours: Sizes,
    theirs: Sizes,
    active: bool,
    retry_refused: bool,
    keepalive: bool,
    /// Whether it begins with a connection that is established: most of what can happen happens
    /// then.
    established: bool,
    operations: Vec<Operation>,
}

/// How much fits.
#[derive(Debug, Arbitrary)]
struct Sizes {
    window: u8,
    send_slots: u8,
    large_memory: u16,
}

#[derive(Debug, Arbitrary)]
enum Operation {
    /// What is wanted of the connection manager next is done, and it says so.
    Perform,
    FailToPerform(u8),
    Event(CmEvent),
    Accept,
    Reject,
    Frame(Frame),
    /// Frames that have all arrived when the first is looked at.
    Frames(Vec<Frame>),
    Bytes(Vec<u8>),
    Immediate(u32, u32),
    Complete,
    Fail {
        recv: bool,
        status: u8,
    },
    Flush {
        recv: bool,
    },
    Send(u8),
    SendLarge(u32),
    Operate {
        takes_receive: bool,
    },
    Hold,
    SendHeld,
    Ask,
    Finish,
    Release,
    ReleaseLarge,
    Pass {
        millis: u16,
    },
    Close,
    Abort(u32),
}

/// An event that nobody expects.
#[derive(Debug, Arbitrary)]
enum CmEvent {
    AddrResolved,
    AddrError(i8),
    RouteResolved,
    RouteError(i8),
    ConnectResponse,
    ConnectError(i8),
    Unreachable(i8),
    Rejected(i8, Vec<u8>),
    Established(Vec<u8>),
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    Other(u32),
    Failed,
}

/// A frame with few mistakes, so that what comes behind it is looked at as well.
#[derive(Debug, Arbitrary)]
struct Frame {
    kind: Kind,
    grant: Count,
    taken: Count,
    mistake: Option<(u8, u8)>,
}

#[derive(Debug, Arbitrary)]
enum Kind {
    Data(u8),
    Batch(Vec<u8>),
    Grant,
    Ping,
    Pong,
    Finish,
    Close,
    Abort,
    CloseAck,
    Rendezvous { addr: u64, len: u32, rkey: u32 },
}

/// A counter of the peer's.
#[derive(Debug, Arbitrary)]
enum Count {
    /// As it was.
    Same,
    /// As far ahead as it may be.
    Most,
    /// One further ahead.
    TooMany,
    /// Any.
    Some(u32),
}

impl Count {
    fn pick(&self, same: u32, most: u32) -> u32 {
        match self {
            Self::Same => same,
            Self::Most => most,
            Self::TooMany => most + 1,
            Self::Some(count) => *count,
        }
    }
}

impl Sizes {
    fn params(&self) -> Params {
        Params {
            window: 1 + u16::from(self.window % 6),
            send_slots: 1 + u32::from(self.send_slots % 6),
            large_memory: 1 + u64::from(self.large_memory) * 64,
            max_message: 4 << 20,
            ..params()
        }
    }
}

impl Frame {
    fn bytes(&self, device: &Device) -> Vec<u8> {
        let (kind, payload) = match &self.kind {
            Kind::Data(len) => (1, vec![7; usize::from(len % 65)]),
            Kind::Batch(lens) => {
                let lens = lens.iter().map(|len| len % 16);
                let message = |len: u8| [&[0, 0, 0, len][..], &[7; 15][..len.into()]].concat();
                (17, lens.flat_map(message).collect())
            }
            Kind::Grant => (2, Vec::new()),
            Kind::Ping => (3, Vec::new()),
            Kind::Pong => (4, Vec::new()),
            Kind::Close => (5, Vec::new()),
            Kind::Abort => (6, Vec::new()),
            Kind::CloseAck => (7, Vec::new()),
            Kind::Finish => (9, Vec::new()),
            Kind::Rendezvous { addr, len, rkey } => {
                let mut payload = addr.to_be_bytes().to_vec();
                payload.extend(u64::from(len % (5 << 20)).to_be_bytes());
                payload.extend(rkey.to_be_bytes());
                payload.extend([0; 4]);
                (16, payload)
            }
        };
        let most = device.credit.1.max(device.credit.0 + device.window());
        let grant = self.grant.pick(device.credit.1, most);
        let taken = self.taken.pick(device.exposed.1, device.exposed.0);
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend(grant.to_be_bytes());
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(taken.to_be_bytes());
        bytes.extend(payload);
        if let Some((at, byte)) = self.mistake {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        bytes
    }
}

/// Plays a life to its end.
pub fn one_life(operations: &Operations) {
    let now = Instant::now();
    let ours = Params {
        retry_refused: operations.retry_refused,
        keepalive_interval: operations.keepalive.then_some(Duration::from_secs(1)),
        ..operations.ours.params()
    };
    let theirs = operations.theirs.params();
    let conn = if operations.active {
        Connection::connect(ours.clone(), 7, b"", now)
    } else {
        Connection::requested(ours.clone(), &hello(&theirs), BOTH_WAYS, now).expect("a good hello")
    };
    let mut device = Device::new(conn, ours, theirs.window, now);
    if operations.established {
        device.conn.accept(b"", now);
        device.settle();
        while !device.wanted.is_empty() {
            perform(&mut device, &theirs);
            device.settle();
        }
    }
    for operation in &operations.operations {
        operation.apply(&mut device, &theirs);
        device.settle();
    }
    finish(&mut device);
}

impl Operation {
    fn apply(&self, device: &mut Device, theirs: &Params) {
        let now = device.now;
        match self {
            Self::Perform => perform(device, theirs),
            Self::FailToPerform(errno) => device.fail_to_perform((*errno).into()),
            Self::Event(event) => device.conn.handle_cm_event(event.input(), now),
            Self::Accept => device.conn.accept(b"", now),
            Self::Reject => device.conn.reject(b"", now),
            Self::Frame(frame) => device.frames(&[frame.bytes(device)]),
            Self::Frames(frames) => {
                let frames: Vec<_> = frames.iter().map(|frame| frame.bytes(device)).collect();
                device.frames(&frames);
            }
            Self::Bytes(bytes) => device.frames(std::slice::from_ref(bytes)),
            Self::Immediate(word, len) => device.immediate(*word, *len),
            Self::Complete => device.complete(),
            Self::Fail { recv, status } => {
                device.fail(*recv, WcStatus::from_raw(1 + u32::from(*status) % 23));
            }
            Self::Flush { recv } => device.flush(*recv),
            Self::Send(len) => device.send((*len).into()),
            Self::SendLarge(len) => device.send((*len % (5 << 20)) as usize),
            Self::Operate { takes_receive } => device.operate(*takes_receive),
            Self::Hold => device.hold(),
            Self::SendHeld => device.send_held(),
            Self::Ask => device.ask(),
            Self::Finish => device.finish(),
            Self::Release => device.release(),
            Self::ReleaseLarge => device.release_large(),
            Self::Pass { millis } => device.pass(Duration::from_millis((*millis).into())),
            Self::Close => device.conn.close(now),
            Self::Abort(code) => device.conn.abort(*code, now),
        }
    }
}

/// The connection manager does what is wanted next, as it does when all is well.
fn perform(device: &mut Device, theirs: &Params) {
    let private_data = &hello(theirs);
    let event = match device.perform() {
        Some(CmCall::ResolveAddr) => CmInput::AddrResolved,
        Some(CmCall::ResolveRoute) => CmInput::RouteResolved,
        Some(CmCall::Connect) => CmInput::Established {
            private_data,
            reads: BOTH_WAYS,
        },
        Some(CmCall::Accept) => CmInput::Established {
            private_data: &[],
            reads: BOTH_WAYS,
        },
        Some(CmCall::Disconnect) => CmInput::Disconnected,
        Some(
            CmCall::AwaitTurn
            | CmCall::CreateId
            | CmCall::CreateTransport
            | CmCall::Reject
            | CmCall::SetMinRnrTimer
            | CmCall::Discard,
        )
        | None => return,
    };
    device.conn.handle_cm_event(event, device.now);
}

impl CmEvent {
    fn input(&self) -> CmInput<'_> {
        let status = |status: &i8| CmStatus::from_raw((*status).into());
        match self {
            Self::AddrResolved => CmInput::AddrResolved,
            Self::AddrError(error) => CmInput::AddrError(status(error)),
            Self::RouteResolved => CmInput::RouteResolved,
            Self::RouteError(error) => CmInput::RouteError(status(error)),
            Self::ConnectResponse => CmInput::ConnectResponse,
            Self::ConnectError(error) => CmInput::ConnectError(status(error)),
            Self::Unreachable(error) => CmInput::Unreachable(status(error)),
            Self::Rejected(reason, private_data) => CmInput::Rejected {
                reason: RejectReason::from_raw((*reason).into()),
                private_data,
            },
            Self::Established(private_data) => CmInput::Established {
                private_data,
                reads: BOTH_WAYS,
            },
            Self::Disconnected => CmInput::Disconnected,
            Self::DeviceRemoval => CmInput::DeviceRemoval,
            Self::AddrChange => CmInput::AddrChange,
            Self::TimewaitExit => CmInput::TimewaitExit,
            Self::Other(number) => CmInput::Other(*number),
            Self::Failed => CmInput::Failed(&CloseReason::PeerDisconnected),
        }
    }
}

/// Whatever came before: a close, and time, bring the end.
fn finish(device: &mut Device) {
    device.conn.close(device.now);
    device.settle();
    // Keepalive checks the peer twice an interval until the close has timed out.
    for _ in 0..100 {
        if device.has_ended() {
            break;
        }
        let deadline = device.conn.next_timeout().expect("no state lasts for ever");
        device.pass(deadline.saturating_duration_since(device.now));
        device.settle();
    }
    assert!(device.has_ended(), "{device:?}");
    // Nothing that comes now changes anything.
    device
        .conn
        .handle_cm_event(CmInput::Disconnected, device.now);
    device.conn.abort(1, device.now);
    device.send(1);
    device.settle();
}
